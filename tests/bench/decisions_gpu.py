"""Decisions on real GPUs: the capacity of a head under a bursty envelope and under Poisson, eager against CUDA graphs.

    python -m tests.bench.decisions_gpu OUT [--only capacity compare] [--seconds S] [--seeds N] [--pairs N]

Servers are started once, as a user starts them, with what `squall inject` prints; each run is a `squall run` of the
command against one of them. `capacity`: both shapes at the same time where there are two GPUs and cores for both, else
one after the other. `compare`: both servers on the first GPU, one of them idle. `gpus`: `squall capacity --gpus`, a
server for each GPU that the runs start. Prints one JSON object; exit code 1 where a command ended with 1 or 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.server import TritonServer
from squall.scenarios.config.scenario import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from tests.bench.gpus import n_gpus

_SQUALL = [sys.executable, "-m", "squall.cluster.cli"]
_HEAD = "linear_head"
_PROMISE = "p(95)<8ms"
_START = "1200/s"
_ENVELOPE_BINS = 60
_CODES = {0, 4, 99}
"""Of a command that decided, or could not: the others are errors."""
SHAPES: dict[str, dict[str, Any]] = {
    "poisson": {"kind": "poisson"},
    "envelope": {"kind": "envelope", "preset": "nasa-flash-crowd"},
}


def model(options: argparse.Namespace, has_graphs: bool = False) -> dict[str, Any]:
    if options.device == "cpu":
        return {"name": _HEAD, "max_batch_size": 32}
    return {
        "name": _HEAD, "framework": "torch", "device": "gpu", "precision": "fp16", "max_batch_size": 64,
        "cuda_graphs": has_graphs,
    }  # fmt: skip


@contextmanager
def served(
    options: argparse.Namespace, name: str, gpu: int, cores: set[int], has_graphs: bool = False
) -> Iterator[Endpoint]:
    """A Triton on one GPU and some cores, with the variables that `squall inject` prints."""
    folder: Path = options.out / "servers" / name
    folder.mkdir(parents=True)
    printed = subprocess.run(
        [*_SQUALL, "inject", "--folder", str(folder / "rings")], capture_output=True, text=True, check=True
    )
    injected = dict(word.split("=", 1) for word in printed.stdout.split() if "=" in word)
    server = TritonServer(
        ModelConfig.model_validate(model(options, has_graphs)), ServerConfig(), folder, None,
        has_gpu=options.device == "gpu", cores=tuple(sorted(cores)), injected=injected,
        gpus=(str(gpu),) if options.device == "gpu" else None,
    )  # fmt: skip
    try:
        yield server.start()
    finally:
        server.stop()


def scenario(options: argparse.Namespace, name: str, shape: Mapping[str, Any], rate: str) -> Path:
    """The file of a scenario with a warm-up and one measured phase."""
    arrivals = {**shape, "rate": rate}
    if shape["kind"] == "envelope":
        arrivals["bin"] = f"{1e3 * options.seconds / _ENVELOPE_BINS:g}ms"
    mapping = {
        "name": name, "seed": 1, "model": model(options, name == "graphs"),
        "clients": {"workers_per_node": 2, "timeout": "5s", "rows": {"kind": "constant", "value": 8}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "2s", "arrivals": {"kind": "poisson", "rate": rate}},
            {"name": "measured", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "3s"},
        ],
        "profile": {"nsys": "off"},
    }  # fmt: skip
    path: Path = options.out / f"{name}.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


def told(options: argparse.Namespace, name: str, cores: set[int], *words: str) -> dict[str, Any]:
    """What a command of squall, on these cores, prints with --json; its exit code, and how long it took."""
    out: Path = options.out / "runs" / name
    begun = time.monotonic()
    pinned = ["taskset", "-c", ",".join(map(str, sorted(cores))), *_SQUALL]
    done = subprocess.run(
        [*pinned, *words, "--out", str(out), "--json"], capture_output=True, text=True, check=False
    )
    (options.out / f"{name}.log").write_text(done.stderr)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = done.stdout[-2_000:] + done.stderr[-2_000:]
    return {"rc": done.returncode, "seconds": round(time.monotonic() - begun, 1), "answer": answer}


def halves(n: int) -> list[tuple[set[int], set[int]]]:
    """Cores of a server and of its clients, for each of `n` at once."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // n
    parts = [cores[i * each : (i + 1) * each] for i in range(n)]
    return [(set(part[: len(part) // 2]), set(part[len(part) // 2 :])) for part in parts]


def capacities(options: argparse.Namespace) -> dict[str, Any]:
    n = 2 if options.device == "cpu" or n_gpus() > 1 else 1
    places = halves(n)

    def search(number: int, shape: str) -> dict[str, Any]:
        servers, clients = places[number % n]
        with served(options, f"capacity-{shape}", number % n, servers) as endpoint:
            return told(
                options, f"capacity-{shape}", clients, "capacity",
                str(scenario(options, f"capacity-{shape}", SHAPES[shape], options.start)),
                "--server", f"http://{endpoint.host}:{endpoint.port}", "--promise", options.promise,
                "--seeds", str(options.seeds), "--start", options.start,
            )  # fmt: skip

    with ThreadPoolExecutor(n) as pool:
        found = pool.map(search, range(len(SHAPES)), SHAPES)
        return dict(zip(SHAPES, found, strict=True))


def comparison(options: argparse.Namespace) -> dict[str, Any]:
    ((servers, clients),) = halves(1)
    with ExitStack() as stack:
        urls = {}
        for name in ("eager", "graphs"):
            endpoint = stack.enter_context(served(options, name, 0, servers, name == "graphs"))
            urls[name] = f"http://{endpoint.host}:{endpoint.port}"
        files = [str(scenario(options, name, SHAPES["poisson"], options.compare_at)) for name in urls]
        return told(
            options, "compare", clients, "compare", *files, "--server-a", urls["eager"], "--server-b", urls["graphs"],
            "--pairs", str(options.pairs),
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=["capacity", "compare"])
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--promise", default=_PROMISE)
    parser.add_argument("--start", default=_START)
    parser.add_argument("--compare-at", default=_START)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"promise": options.promise}
    if "capacity" in options.only:
        found["capacity"] = capacities(options)
    if "compare" in options.only:
        found["compare"] = {"eager against graphs": comparison(options)}
    print(json.dumps(found, indent=1))
    every = [one for kind in ("capacity", "compare") for one in found.get(kind, {}).values()]
    sys.exit(any(one["rc"] not in _CODES for one in every))


if __name__ == "__main__":
    main()
