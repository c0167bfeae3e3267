"""Models of the zoo for other backends of Triton: the command from end to end, and what can be run of what it writes.

No Triton at hand has the backends `onnxruntime` and `tensorrt`. In the first one's place stands a backend of that name
in Python, which serves `model.onnx` by the package onnxruntime; plans are built by TensorRT-RTX where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from squall.actors.inject.library import built_library
from squall.cluster.node.triton_home import TritonHome, find_triton
from squall.models.onnx_export import DEFAULT_OPSET, export_onnx
from squall.models.plan_export import PlanOptions, PlanRecord, build_plan, gpu_kind, write_plan_repository
from squall.models.repository import Serving, config_pbtxt, zoo_spec
from squall.models.spec import HEADS, head_spec
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import TargetError
from tests.integration.live_runs import Bench
from tests.integration.serving import serving
from tests.integration.test_foreign_batches import assert_all_joined, finish, scenario

PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_export = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
RTX = "tensorrt_rtx_bindings"
needs_rtx = pytest.mark.skipif(
    bool(MISSING) or importlib.util.find_spec(RTX) is None,
    reason=f"not installed: {', '.join([*MISSING, RTX])} (tensorrt-rtx-cu13-libs and -bindings)",
)
SETTINGS = {"width": 16, "layers": 2}
SIZES = ("--set", "width=16", "--set", "layers=2", "-b", "8")
BACKEND = """
import os, sys
sys.path[:0] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
import json
import numpy as np
import onnxruntime
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        file = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"]["intra_op_thread_count"]["string_value"])
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.names = [one["name"] for one in config["input"]]
        self.output = config["output"][0]["name"]

    def execute(self, requests):
        parts = [[np.from_dlpack(pb.get_input_tensor_by_name(r, name)) for r in requests] for name in self.names]
        fed = {name: np.concatenate(part) for name, part in zip(self.names, parts)}
        (found,) = self.session.run([self.output], fed)
        answers, first = [], 0
        for x in parts[0]:
            own = np.ascontiguousarray(found[first : first + len(x)])
            answers.append(pb.InferenceResponse([pb.Tensor.from_dlpack(self.output, own)]))
            first += len(x)
        return answers
"""


def built(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "squall.cluster.entry",
        "models",
        "build",
        *options,
        "--out",
        str(folder),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def with_stand_in(folder: Path) -> str:
    """A folder for the PATH whose `tritonserver` has a backend `onnxruntime` beside its own."""
    home: TritonHome = find_triton()
    if home.backends is None:
        pytest.skip("a Triton on the PATH has backends of its own")
    backends = folder / "backends"
    (backends / "onnxruntime").mkdir(parents=True)
    (backends / "onnxruntime" / "model.py").write_text(BACKEND)
    (backends / "python").symlink_to(home.backends / "python")
    libraries = os.pathsep.join(map(str, home.library_dirs))
    wrapper = folder / "bin" / "tritonserver"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\nexport LD_LIBRARY_PATH="{libraries}:$LD_LIBRARY_PATH"\n'
        f'exec "{home.binary}" --backend-directory "{backends}" "$@"\n'
    )
    wrapper.chmod(0o755)
    return str(wrapper.parent)


@needs_export
@pytest.mark.slow
def test_a_repository_for_onnx_runtime_is_built_by_one_command(tmp_path: Path) -> None:
    done = built(tmp_path, "linear_head", "--backend", "onnxruntime", "--precision", "fp16", *SIZES)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == f"{tmp_path}/linear_head: INPUT FP32 [16] a row, at most 8 rows a batch"
    assert second.startswith(
        "ONNX opset 18, fp16, 0.0 MB: in ONNX Runtime on the CPU it differs from the module by 0."
    )
    assert {path.name for path in (tmp_path / "linear_head" / "1").iterdir()} == {"model.onnx"}


@needs_export
@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.long
def test_a_run_of_such_a_repository_has_right_answers_and_joined_batches(
    alone: Bench, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    assert (
        built(models, "linear_head", "--backend", "onnxruntime", "--precision", "fp16", *SIZES).returncode
        == 0
    )
    mapping = scenario(models, "linear_head", rate_hz=60, batches="auto")
    mapping["model"]["settings"] = SETTINGS
    mapping["clients"]["check"] = {"share": 1.0, "rtol": 0.02, "atol": 0.02}
    path = f"{with_stand_in(tmp_path)}{os.pathsep}{os.environ['PATH']}"
    store, _, _ = finish(alone, mapping, env={"PATH": path})
    checks = store.manifest.value_checks
    assert checks is not None
    assert checks.n_checked == len(store.read("requests")) > 50, "the zoo knows the right answers"
    assert checks.n_wrong == 0
    if built_library("batches") is not None:
        assert_all_joined(store, "linear_head")


@pytest.mark.beside
def test_a_server_without_the_backend_says_so(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (models / "linear_head" / "1").mkdir(parents=True)
    model = ModelConfig.model_validate({"name": "linear_head", "settings": SETTINGS, "max_batch_size": 8})
    (models / "linear_head" / "config.pbtxt").write_text(
        config_pbtxt(zoo_spec(model)[0], model, Serving("onnxruntime"))
    )
    (models / "linear_head" / "1" / "model.onnx").write_bytes(b"never read")
    with (
        pytest.raises(TargetError, match="onnxruntime"),
        serving(tmp_path / "server", name="linear_head", repository=str(models), settings={}),
    ):
        pass


@pytest.mark.beside
@pytest.mark.slow
def test_a_real_triton_takes_the_order_of_a_head(tmp_path: Path) -> None:
    with serving(
        tmp_path, preserve_ordering=True, instances=2, preferred_batch_sizes=[4, 8], queue={"max_size": 64}
    ) as (_, endpoint):
        url = f"{endpoint.url}/v2/models/{endpoint.models[0].spec.name}/config"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=30) as reply:
            batching = json.load(reply)["dynamic_batching"]
    assert batching["preserve_ordering"] is True
    assert batching["preferred_batch_size"] == [4, 8]


@needs_rtx
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Deprecated in TensorRT-RTX:DeprecationWarning")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_the_builder_of_tensorrt_rtx_takes_each_head(name: str, precision: str, tmp_path: Path) -> None:
    trt = importlib.import_module(RTX)
    sizes = HEADS[name].sizes({**SETTINGS, **({"sequence": 8} if name == "seqlen_head" else {})})
    spec = head_spec(name, "1", sizes, 8)
    onnx = export_onnx(tmp_path / "model.onnx", spec, sizes, precision=precision)
    options = PlanOptions(opt_rows=4, workspace_bytes=1 << 28, timing_cache=tmp_path / "times")
    plan = build_plan(trt, onnx.path, spec, options.rows(8), options)
    assert len(plan) > 10_000
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(TargetError, match=r"does not take the ONNX file of .*Failed to parse"):
        build_plan(trt, tmp_path / "bad.onnx", spec, options.rows(8), options)


@pytest.mark.skipif(importlib.util.find_spec("tensorrt") is not None, reason="tensorrt is installed")
def test_a_host_without_tensorrt_says_what_to_install(tmp_path: Path) -> None:
    done = built(tmp_path, "linear_head", "--backend", "tensorrt", *SIZES)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "squall: tensorrt is not installed, which this export needs: pip install 'squall[tensorrt]' on a host with an "
        "NVIDIA GPU, at the version of the server's TensorRT\n"
    )
    assert list(tmp_path.iterdir()) == []


@needs_rtx
@pytest.mark.slow
def test_a_plan_is_kept_where_a_build_would_make_it_again(tmp_path: Path) -> None:
    trt = importlib.import_module(RTX)
    gpu, other = gpu_kind("NVIDIA GeForce RTX 4090", (8, 9)), gpu_kind("NVIDIA L4", (8, 9))
    keys = {"name": "linear_head", "settings": SETTINGS, "max_batch_size": 8, "framework": "torch"}
    model = ModelConfig.model_validate({**keys, "precision": "fp16", "cuda_graphs": True})
    serving_as = Serving("tensorrt", graph_sizes=(1, 8))

    def is_new(gpu: str, options: PlanOptions) -> bool:
        return write_plan_repository(tmp_path, model, serving_as, options, gpu, trt, DEFAULT_OPSET)[2]

    assert is_new(gpu, PlanOptions())
    version = tmp_path / "linear_head" / "1"
    assert {path.name for path in version.iterdir()} == {"model.plan", "model.plan.json"}
    assert not is_new(gpu, PlanOptions())
    assert is_new(gpu, PlanOptions(opt_rows=2))
    assert is_new(other, PlanOptions(opt_rows=2))
    record = PlanRecord.read(version)
    assert record is not None
    assert record.gpu == "NVIDIA L4 (compute capability 8.9)"
    (version / "model.plan").write_bytes(b"damaged")
    assert is_new(other, PlanOptions(opt_rows=2))
    assert "graphs: true" in (tmp_path / "linear_head" / "config.pbtxt").read_text()
