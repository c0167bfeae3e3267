"""Kernels of overlapping batches on a real GPU, tied by CUDA events: are they those of the batch that launched them?

    python -m tests.bench.overlap_gpu OUT [--cuda /usr/local/cuda-13.0] [--seconds S] [--rate HZ]
                                          [--duty whole|ON/PERIOD] [--ahead N] [--spin US] [--instances N]

A backend in C (tests/native/minimal_backend.c, gpu_work.h) does on the first GPU what TensorRT's does: it issues
batches while others compute. Its kernels and copies are as large as the number of their batch, and it writes which
requests that was. One run with events and one without; of each, prints as one JSON object how many operations are tied,
how many of these to another batch than the true one (0, else the exit code is 1), and how many are ambiguous.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from squall.analysis.storage.store import RunStore
from tests.reporting import NATIVE, SHARED, compiled

LARGEST = 40_000
"""As in gpu_work.h."""
KINDS = {"with events": ["kernels", "copies", "events"], "without": ["kernels", "copies"]}
CONFIG = """
name: "minimal"
backend: "minimal"
max_batch_size: 8
input [ {{ name: "INPUT", data_type: TYPE_FP32, dims: [ 2 ] }} ]
output [ {{ name: "OUTPUT", data_type: TYPE_FP32, dims: [ 2 ] }} ]
dynamic_batching {{ max_queue_delay_microseconds: 500 }}
instance_group [ {{ kind: KIND_CPU, count: {instances} }} ]
"""


def repository(options: argparse.Namespace, name: str) -> Path:
    """A model repository with the backend, which tells of its batches in `told` beside it."""
    model: Path = options.out / name / "models" / "minimal"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG.format(instances=options.instances))
    flags = [
        f'-DTOLD="{(options.out / name / "told").absolute()}"', "-DUSE_CUDA", f"-DSPIN_US={options.spin}",
        f"-DAHEAD={options.ahead}", f"-I{options.cuda}/include", f"-L{options.cuda}/lib64/stubs", "-Wl,--no-as-needed",
    ]  # fmt: skip
    compiled([NATIVE / "minimal_backend.c"], model / "libtriton_minimal.so", *SHARED, "-O2", *flags, "-lcuda")
    return model.parent


def run(options: argparse.Namespace, name: str, kinds: list[str]) -> RunStore:
    """One `squall run`. Raises RuntimeError where there is none."""
    arrivals = {"kind": "gamma", "cv": 2.0, "rate": f"{options.rate:g}/s"}
    scenario = {
        "name": "overlap", "seed": 1,
        "model": {"name": "minimal", "repository": str(repository(options, name)), "max_batch_size": 8},
        "clients": {"workers_per_node": 2, "timeout": "5s", "rows": {"kind": "constant", "value": 1}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "2s", "arrivals": arrivals},
            {"name": "bursts", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "3s"},
        ],
        "profile": {"nsys": "off", "batches": "required", "kernels": "required", "kernel_kinds": kinds,
                    "duty": options.duty},
    }  # fmt: skip
    folder = options.out / name
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario))
    command = [
        sys.executable,
        "-m",
        "squall.cluster.cli",
        "run",
        str(folder / "scenario.yaml"),
        "--out",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    (folder / "screen").write_text(done.stdout + done.stderr)
    runs = sorted(folder.glob("*/manifest.json"))
    if not runs:
        raise RuntimeError(f"no run of {name}: {done.stderr[-800:]}")
    return RunStore.open(runs[-1].parent)


def examine(store: RunStore, told: Path) -> dict[str, Any]:
    """What is tied, against what the backend says."""
    lines = [line.split() for line in told.read_text().splitlines()]
    if len(lines) >= LARGEST:
        raise RuntimeError(f"{len(lines)} batches: sizes repeat from {LARGEST} on, take fewer seconds")
    requests = {int(number) + 1: sorted(int(one) for one in ids if one.isdigit()) for number, *ids in lines}
    batches = {
        (row["instance"], row["batch_id"]): sorted(row["request_ids"])
        for row in store.read("batches").to_pylist()
    }
    found: Counter[str] = Counter()
    n_of: Counter[int] = Counter()
    for table, size in (("kernels", "dynamic_shared_bytes"), ("memcpys", "bytes")):
        for row in store.read(table).to_pylist():
            found[f"{table} recorded"] += 1
            if row["batch_id"] is None:
                continue
            found[f"{table} tied"] += 1
            found["wrong"] += batches[row["instance"], row["batch_id"]] != requests.get(row[size])
            n_of[row[size]] += 1
    manifest = store.manifest
    ties = manifest.kernels.ties if manifest.kernels is not None else {}
    return {
        "verdict": manifest.status, "notes": list(manifest.notes), **found, "wrong": found["wrong"],
        "ambiguous": {name: one.n_ambiguous for name, one in ties.items()},
        "operations tied of a batch": Counter(n_of.values()).most_common(4),
        "status": [one.status for one in manifest.kernels.processes] if manifest.kernels is not None else [],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda-13.0"))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=1_000)
    parser.add_argument("--duty", default="whole")
    parser.add_argument("--ahead", type=int, default=2)
    parser.add_argument("--spin", type=int, default=700)
    parser.add_argument("--instances", type=int, default=1)
    options = parser.parse_args()
    found = {}
    for name, kinds in KINDS.items():
        folder = name.replace(" ", "-")
        found[name] = examine(run(options, folder, kinds), options.out / folder / "told")
    print(json.dumps(found, indent=2, default=str))
    sys.exit(any(one["wrong"] for one in found.values()))


if __name__ == "__main__":
    main()
