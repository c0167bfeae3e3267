"""`squall capacity` of linear_head on a real GPU: under a bursty envelope, and under Poisson of the same mean.

    python -m tests.bench.capacity_gpu OUT [--gpu N …] [--seconds S] [--seeds N] [--shapes poisson envelope]

The server is started once, as a user starts one, with what `squall inject` prints; the two searches follow one another
on it. It has half of this process's cores, the clients have the rest. Several `--gpu`: a server each, the load goes to
them in turn; `--by-servers` then searches one of them, and all but one, too. Prints one JSON object; exit code 1 where
a search did not end with an answer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.server import TritonServer
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig

_SQUALL = [sys.executable, "-m", "squall.cluster.cli"]
_HEAD = "linear_head"
_ENVELOPE_BINS = 60
_CODES = {0, 4, 99}
"""Of a command that decided, or could not: the others are errors."""
SHAPES: dict[str, dict[str, Any]] = {
    "poisson": {"kind": "poisson"},
    "envelope": {"kind": "envelope", "preset": "nasa-flash-crowd"},
}


def model(options: argparse.Namespace) -> dict[str, Any]:
    """As a scenario has it."""
    if options.device == "cpu":
        return {"name": _HEAD, "max_batch_size": 32}
    return {
        "name": _HEAD, "framework": "torch", "device": "gpu", "precision": "fp16", "max_batch_size": 64,
    }  # fmt: skip


@contextmanager
def served(options: argparse.Namespace, gpu: int, cores: Sequence[int]) -> Iterator[Endpoint]:
    """A Triton on a GPU and some cores, with the variables that `squall inject` prints."""
    folder: Path = options.out / f"server-{gpu}"
    folder.mkdir(parents=True)
    printed = subprocess.run(
        [*_SQUALL, "inject", "--folder", str(folder / "rings")], capture_output=True, text=True, check=True
    )
    injected = dict(word.split("=", 1) for word in printed.stdout.split() if "=" in word)
    server = TritonServer(
        [ModelConfig.model_validate(model(options))], ServerConfig(), folder, None,
        has_gpu=options.device == "gpu", cores=tuple(cores), injected=injected,
        gpus=(str(gpu),) if options.device == "gpu" else None,
    )  # fmt: skip
    try:
        yield server.start()
    finally:
        server.stop()


def scenario(options: argparse.Namespace, shape: str, urls: Sequence[str]) -> Path:
    """The file of a scenario with a warm-up and one measured phase, for the servers at `urls`."""
    arrivals: dict[str, Any] = {**SHAPES[shape], "rate": options.start}
    poisson = {**SHAPES["poisson"], "rate": options.start}
    if shape == "envelope":
        arrivals["bin"] = f"{1e3 * options.seconds / _ENVELOPE_BINS:g}ms"
    mapping = {
        "name": f"capacity-{shape}", "seed": 1, "model": model(options),
        "clients": {"workers_per_node": 2, "timeout": "5s", "rows": {"kind": "constant", "value": 8}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "2s", "arrivals": poisson},
            {"name": "measured", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "3s"},
        ],
        "profile": {"nsys": "off"}, "servers": [{"url": url} for url in urls],
    }  # fmt: skip
    path: Path = options.out / f"{shape}.yaml"
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


def halves(n_servers: int) -> tuple[list[list[int]], set[int]]:
    """Cores of each server and of their clients."""
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // 2 // n_servers
    return [cores[place * each : (place + 1) * each] for place in range(n_servers)], set(
        cores[n_servers * each :]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", type=int, nargs="+", default=[0])
    parser.add_argument("--by-servers", action="store_true", help="as --gpus of squall capacity")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--seconds", type=float, default=12, help="of the measured phase at the start's rate")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--promise", default="p(95)<8ms")
    parser.add_argument("--start", default="4000/s")
    parser.add_argument("--low", default="25%", help="as of squall capacity")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    servers, clients = halves(len(options.gpu))
    more = ["--gpus"] if options.by_servers else []
    found = {}
    with ExitStack() as stack:
        endpoints = [
            stack.enter_context(served(options, gpu, cores))
            for gpu, cores in zip(options.gpu, servers, strict=True)
        ]
        urls = [f"http://{one.host}:{one.port}" for one in endpoints]
        for shape in options.shapes:
            found[shape] = told(
                options, shape, clients, "capacity", str(scenario(options, shape, urls)),
                "--promise", options.promise, "--seeds", str(options.seeds), "--start", options.start,
                "--low", options.low, *more,
            )  # fmt: skip
    print(json.dumps(found, indent=1))
    sys.exit(any(one["rc"] not in _CODES for one in found.values()))


if __name__ == "__main__":
    main()
