"""Models that know nothing of squall, on a GPU, with their kernels and batches from one and the same run.

    python -m tests.bench.foreign_gpu OUT [--seconds S] [--rate HZ] [--duty whole|ON/PERIOD ...] [--nsys osrt]
    python -m tests.bench.foreign_gpu OUT --by-hand [--model onnx]
    python -m tests.bench.foreign_gpu OUT --pairs N
    python -m tests.bench.foreign_gpu OUT --against-nsys

The first runs the model in Triton's Python backend (PyTorch, fp16, four instances) once for each duty, and says of each
run: which share of the requests has its kernels, of which share of the time, whether sums over `joined` are those over
`kernels`, what the diagnosis is and what recording cost. `--by-hand`: in a Triton that this program starts as a user
does, with what `squall inject` prints. `--model onnx`: ONNX Runtime instead of PyTorch, on a network that is made here
(needs the packages onnx and onnxruntime-gpu). The second runs N pairs, the batch library in the server and
not, kernels never recorded, and says how p50 and p95 of the response differ. The third sends one request after another,
once recorded by the library and once by nsys, and says of each kernel how often a batch has it and how long it takes.
Each prints one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import yaml

from squall.actors.net.triton_control import Control, ControlError
from squall.actors.process.supervisor import region_prefix, remove_leftovers
from squall.analysis.statistics.paired import paired_ratio
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from squall.cluster.node.server import free_ports, triton_options
from squall.cluster.node.server_environment import server_environment
from squall.cluster.node.triton_home import find_triton
from squall.scenarios.config.servers import ServerConfig

TOKENS, ROWS = 64, 8
_NAME = "theirs"
_SQUALL = [sys.executable, "-m", "squall.cluster.cli"]
_START_S = 120.0

MODEL = """
import os
import sys

sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # the wheel's Triton embeds a Python that ignores it

import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        torch.set_num_threads(1)
        self.device = "cuda" if args["model_instance_kind"] == "GPU" else "cpu"
        self.dtype = torch.float16 if self.device == "cuda" else torch.float32
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(128, 2, 512, batch_first=True)
        self.embed = torch.nn.Embedding(1000, 128).to(self.device, self.dtype).eval()
        self.encoder = torch.nn.TransformerEncoder(layer, 2).to(self.device, self.dtype).eval()
        self.head = torch.nn.Linear(128, 2).to(self.device, self.dtype).eval()

    @torch.inference_mode()
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(one, "tokens").as_numpy() for one in requests]
        tokens = torch.from_numpy(np.concatenate(inputs)).to(self.device)
        answer = self.head(self.encoder(self.embed(tokens)).mean(dim=1)).float().cpu()
        replies, at = [], 0
        for one in inputs:
            part = answer[at : at + len(one)].contiguous()
            at += len(one)
            tensor = pb_utils.Tensor.from_dlpack("scores", torch.utils.dlpack.to_dlpack(part))
            replies.append(pb_utils.InferenceResponse([tensor]))
        return replies
"""
ONNX_MODEL = """
import os
import sys

sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        on_gpu = args["model_instance_kind"] == "GPU"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        gpu = ("CUDAExecutionProvider", {"device_id": int(args["model_instance_device_id"])})
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        providers = [gpu] if on_gpu else ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        used = self.session.get_providers()[0]
        if on_gpu and used != "CUDAExecutionProvider":
            raise pb_utils.TritonModelException("ONNX Runtime uses " + used)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(one, "tokens").as_numpy() for one in requests]
        (answer,) = self.session.run(None, {"tokens": np.concatenate(inputs)})
        replies, at = [], 0
        for one in inputs:
            part = answer[at : at + len(one)].copy()
            at += len(one)
            tensor = pb_utils.Tensor.from_dlpack("scores", part.__dlpack__())
            replies.append(pb_utils.InferenceResponse([tensor]))
        return replies
"""
_WIDTH, _LAYERS, _WORDS = 256, 12, 1000
CONFIG = """
backend: "python"
max_batch_size: 256
input [{{ name: "tokens", data_type: TYPE_INT64, dims: [{tokens}] }}]
output [{{ name: "scores", data_type: TYPE_FP32, dims: [2] }}]
dynamic_batching {{ max_queue_delay_microseconds: 500 }}
instance_group [{{ kind: {kind}, count: {count} }}]
"""


def _onnx_network(path: Path) -> None:
    """Words to vectors, their mean, dense layers: in fp32, as ONNX Runtime runs it without a conversion."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    weights = {"words": rng.normal(size=(_WORDS, _WIDTH))}
    nodes = [
        helper.make_node("Gather", ["words", "tokens"], ["embedded"]),
        helper.make_node("ReduceMean", ["embedded"], ["x0"], axes=[1], keepdims=0),
    ]
    for layer in range(_LAYERS):
        weights[f"w{layer}"] = rng.normal(size=(_WIDTH, _WIDTH)) / _WIDTH**0.5
        weights[f"b{layer}"] = rng.normal(size=_WIDTH)
        nodes += [
            helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"product{layer}"]),
            helper.make_node("Add", [f"product{layer}", f"b{layer}"], [f"sum{layer}"]),
            helper.make_node("Tanh", [f"sum{layer}"], [f"x{layer + 1}"]),
        ]
    weights["out"] = rng.normal(size=(_WIDTH, 2)) / _WIDTH**0.5
    nodes.append(helper.make_node("MatMul", [f"x{_LAYERS}", "out"], ["scores"]))
    graph = helper.make_graph(
        nodes, "theirs",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["n", TOKENS])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(one.astype(np.float32), name) for name, one in weights.items()],
    )  # fmt: skip
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def repository(options: argparse.Namespace) -> Path:
    """A model repository as a user has it."""
    model: Path = options.out / "repository" / _NAME
    (model / "1").mkdir(parents=True, exist_ok=True)
    (model / "1" / "model.py").write_text(ONNX_MODEL if options.model == "onnx" else MODEL)
    if options.model == "onnx":
        _onnx_network(model / "1" / "model.onnx")
    kind, count = ("KIND_GPU", 4) if options.device == "gpu" else ("KIND_CPU", 2)
    (model / "config.pbtxt").write_text(CONFIG.format(tokens=TOKENS, kind=kind, count=count))
    return model.parent


def scenario(options: argparse.Namespace, seed: int, profile: dict[str, Any]) -> dict[str, Any]:
    """A warm-up, then bursts around the rate: gamma gaps of CV 2; or one request after another."""
    arrivals: dict[str, Any] = {"kind": "gamma", "cv": 2.0, "rate": f"{options.rate:g}/s"}
    if options.against_nsys:
        arrivals = {"kind": "closed", "users": 1}
    return {
        "name": "their-model", "seed": seed,
        "model": {"name": _NAME} | ({} if options.by_hand else {"repository": str(repository(options))}),
        "clients": {"workers_per_node": 2, "timeout": "5s", "rows": {"kind": "constant", "value": ROWS}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "3s", "arrivals": arrivals},
            {"name": "bursts", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "3s"},
        ],
        "profile": {"nsys": "off", **profile},
    }  # fmt: skip


def run(options: argparse.Namespace, name: str, seed: int, profile: dict[str, Any]) -> tuple[RunStore, str]:
    """One `squall run`: its sealed directory and its screen. Raises RuntimeError where there is none."""
    path = options.out / f"{name}.yaml"
    path.write_text(yaml.safe_dump(scenario(options, seed, profile)))
    command = [*_SQUALL, "run", str(path), "--out", str(options.out / name)]
    if options.by_hand:
        with by_hand(options, name) as url:
            return _run([*command, "--server", url], options, name)
    return _run(command, options, name)


def _run(command: list[str], options: argparse.Namespace, name: str) -> tuple[RunStore, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    (options.out / f"{name}.screen").write_text(done.stdout + done.stderr)
    runs = sorted((options.out / name).glob("*/manifest.json"))
    if not runs:
        raise RuntimeError(f"no run of {name}: {done.stderr[-800:]}")
    return RunStore.open(runs[-1].parent), done.stdout


@contextmanager
def by_hand(options: argparse.Namespace, name: str) -> Iterator[str]:
    """URL of a Triton that is started as a user starts one, with the variables that `squall inject` prints; ended."""
    folder: Path = options.out / f"{name}-server"
    folder.mkdir()
    command = [*_SQUALL, "inject", "--folder", str(folder / "rings")]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    home, ports = find_triton(), free_ports(ServerConfig())
    environment = server_environment(
        folder, replace(home, library_dirs=(*home.library_dirs, *map(Path, _cuda_folders())))
    )
    own = os.environ.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [own, environment["PYTHONPATH"]]))
    backends = ["--backend-directory", str(home.backends)] if home.backends else []
    server_options = triton_options(
        [str(repository(options))], [_NAME], ports, region_prefix(str(folder)), "theirs"
    )
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            ["env", *shlex.split(printed), home.binary, *backends, *server_options],
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    url = f"http://127.0.0.1:{ports.http}"
    try:
        with closing(Control(url)) as control:
            deadline = time.monotonic() + _START_S
            while not _is_ready(control):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Triton does not serve it:\n{(folder / 'log').read_text()}")
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        server.wait(_START_S)
        remove_leftovers(str(folder))


def _is_ready(control: Control) -> bool:
    try:
        control.ask(f"/v2/models/{_NAME}/ready")
    except ControlError:
        return False
    return True


def _cuda_folders() -> list[Path]:
    """Where the wheels of CUDA have their libraries, which ONNX Runtime looks for by name."""
    spec = importlib.util.find_spec("nvidia")
    places = (spec.submodule_search_locations or []) if spec else []
    return sorted(path for place in places for path in Path(place).glob("*/lib"))


_JOINED = """
SELECT count(*), count(*) FILTER (join_level = 'exact'), count(*) FILTER (n_kernels > 0), sum(kernel_share_ns),
    sum(n_kernels)
FROM joined WHERE outcome = 'ok' AND phase = 'bursts'
"""
_TIED = """
SELECT count(*), count(batch_id), sum(end_ns - start_ns), sum(end_ns - start_ns) FILTER (batch_id IS NOT NULL)
FROM kernels
"""
_WINDOWS = "SELECT count(*), sum(end_ns - start_ns), sum(done_ns - begun_ns) FROM recordings"
_IN_WINDOWS = """
SELECT count(*), count(*) FILTER (n_kernels > 0) FROM joined j WHERE outcome = 'ok' AND EXISTS (
    SELECT 1 FROM recordings r WHERE j.batch_start_ns >= r.start_ns AND j.batch_end_ns <= r.end_ns)
"""
_OF_BATCHES = """
SELECT n_kernels, n_copies, count(*) FROM batch_costs WHERE tie <> 'none' AND n_kernels > 0 GROUP BY ALL
ORDER BY 3 DESC LIMIT 5
"""
_BATCH_KERNELS = """
SELECT sum(kernel_ns) FROM batch_costs WHERE tie <> 'none'
"""


def examine(store: RunStore) -> dict[str, Any]:
    """What the run says of its kernels."""
    manifest = store.manifest
    names = ("joined", "kernels", "recordings", "batch_costs")
    found: dict[str, Any] = {
        "verdict": manifest.status, "reasons": list(manifest.reasons), "losses": list(manifest.losses),
        "notes": list(manifest.notes), "missing": [name for name in names if not store.has(name)],
    }  # fmt: skip
    if found["missing"]:
        return found
    with connect(store, list(names)) as connection:
        for name, query in (("joined", _JOINED), ("kernels", _TIED), ("windows", _WINDOWS),
                            ("requests_in_windows", _IN_WINDOWS), ("batch_kernel_ns", _BATCH_KERNELS)):  # fmt: skip
            found[name] = connection.execute(query).fetchall()[0]
        found["kernels_copies_batches"] = connection.execute(_OF_BATCHES).fetchall()
    return found


def latency(store: RunStore) -> list[float]:
    """p50, p95 of the response in ms, of the measured phase."""
    rows = store.read("joined", ["response_ns", "outcome", "phase"])
    is_ok = pc.and_(pc.equal(rows["outcome"], "ok"), pc.equal(rows["phase"], "bursts"))
    took = rows.filter(is_ok)["response_ns"].to_numpy()
    return [float(one) / 1e6 for one in np.percentile(took, (50, 95))]


def pairs(options: argparse.Namespace) -> dict[str, Any]:
    """ABBA: with the batch library and without."""
    found: dict[str, list[list[float]]] = {"off": [], "required": []}
    for pair in range(options.pairs):
        for batches in ("off", "required") if pair % 2 == 0 else ("required", "off"):
            store, _ = run(options, f"{batches}-{pair}", pair + 1, {"batches": batches, "kernels": "off"})
            found[batches].append(latency(store))
    changes = {}
    for place, name in enumerate(("p50_change_percent", "p95_change_percent")):
        one = paired_ratio(*([run[place] for run in found[which]] for which in ("required", "off")))
        changes[name] = [round(100 * (ratio - 1), 2) for ratio in (one.ratio, one.low, one.high)]
    return found | changes


_BY_NAME = """
SELECT name, count(*) / any_value(n), median(end_ns - start_ns), quantile_cont(end_ns - start_ns, [0.25, 0.75])
FROM kernels, (SELECT count(*)::DOUBLE AS n FROM batches WHERE phase = 'bursts')
WHERE phase = 'bursts' GROUP BY name ORDER BY name
"""


def against_nsys(options: argparse.Namespace) -> dict[str, Any]:
    """One request in flight, by the library and by nsys: of each kernel name how many a batch, and its durations."""
    found: dict[str, Any] = {}
    for name, profile in (
        ("library", {"kernels": "required", "duty": "whole"}),
        ("nsys", {"kernels": "off", "nsys": "required", "trace": ["cuda", "osrt"]}),
    ):
        store, _ = run(options, name, 1, profile)
        with connect(store, ["kernels", "batches"]) as connection:
            found[name] = connection.execute(_BY_NAME).fetchall()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rate", type=float, default=1_500)
    parser.add_argument("--duty", nargs="+", default=["whole", "200ms/2s"])
    parser.add_argument("--kinds", nargs="+", default=["kernels", "copies"])
    parser.add_argument("--nsys", nargs="+", default=[], metavar="TRACE", help="nsys beside it, with these")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--model", choices=("torch", "onnx"), default="torch")
    parser.add_argument(
        "--by-hand", action="store_true", help="the server is started by hand, as a user does"
    )
    parser.add_argument("--against-nsys", action="store_true")
    parser.add_argument("--pairs", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.against_nsys:
        print(json.dumps(against_nsys(options), indent=1, default=float))
        return
    if options.pairs:
        print(json.dumps(pairs(options), indent=2))
        return
    found = {}
    kernels = "required" if options.device == "gpu" else "auto"
    beside = {"nsys": "required", "trace": options.nsys} if options.nsys else {}
    for number, duty in enumerate(options.duty):
        profile = {"kernels": kernels, "duty": duty, "kernel_kinds": options.kinds, **beside}
        store, screen = run(options, f"duty-{number}", 1, profile)
        found[duty] = examine(store) | {"ms": latency(store), "screen": screen.splitlines()[-60:]}
    print(json.dumps(found, indent=2, default=float))


if __name__ == "__main__":
    main()
