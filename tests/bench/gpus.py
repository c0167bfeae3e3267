"""Several GPUs of one host under one schedule: a Triton each, one Triton over all, one GPU alone at the same load.

    python -m tests.bench.gpus OUT [--heads HEAD ...] [--seconds S] [--rate HZ] [--repeats N]

`--rate` is that of each GPU: with N GPUs N times as much is sent. Runs of a head: `alone` (one Triton, the first GPU),
`each` (`servers: {per: gpu}`), `all` (one Triton that sees all GPUs, an instance on each); batches, kernels of the
default duty and NVML are recorded. Prints one JSON object: of each run the verdict, p50 and p95 by server, what each
instance served, how many kernels of each GPU are tied to a batch, what the GPUs did; by head the scaling efficiency:
p95 alone over p95 of the others. Exit code 1 where a run is not VALID or a request failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import yaml

from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore

KINDS: dict[str, dict[str, Any]] = {
    "alone": {"servers": [{"gpus": [0]}]},
    "each": {"servers": {"per": "gpu"}},
    "all": {},
}
QUESTIONS = {
    "batches": "SELECT server, instance, instance_device, count(*), sum(n_requests) FROM batches"
    " WHERE phase = 'bursts'",
    "kernels": "SELECT server, gpu_uuid, count(*), count(batch_id) FROM kernels",
    "joined": "SELECT join_level, tie, count(*) FROM joined WHERE phase = 'bursts'",
    "gpu_samples": "SELECT gpu_uuid, avg(sm_util), avg(util), avg(sm_clock_hz) FROM gpu_samples"
    " WHERE phase = 'bursts'",
}
"""By table; rows are grouped by the columns that are no sums."""


def n_gpus() -> int:
    """As the driver lists them."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def scenario_of(kind: str, head: str, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """Two seconds of warm-up, then bursts of gamma gaps with a CV of 2."""
    rate = options.rate * (1 if kind == "alone" else n)
    arrivals = {"kind": "gamma", "cv": 2.0, "rate": f"{rate:g}/s"}
    return {
        "name": f"{kind}-{head.replace('_', '-')}", "seed": 11,
        "model": {"name": head, "framework": "torch", "precision": "fp16", "max_batch_size": 64},
        "clients": {"workers_per_node": 4, "timeout": "5s", "rows": {"kind": "constant", "value": 8}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "2s", "arrivals": arrivals},
            {"name": "bursts", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "3s"},
        ],
        "profile": {"nsys": "off", "nvml": "required", "kernels": "required"},
        **KINDS[kind],
    }  # fmt: skip


def run(kind: str, head: str, number: int, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """One `squall run`, and what it found. Raises RuntimeError where there is no run."""
    folder: Path = options.out / f"{kind}-{head}-{number}"
    folder.mkdir(parents=True)
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario_of(kind, head, n, options)))
    command = [*["-m", "squall.cluster.cli", "run"], str(folder / "scenario.yaml"), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False
    )
    (folder / "screen").write_text(done.stdout + done.stderr)
    runs = sorted(folder.glob("*/manifest.json"))
    if not runs:
        raise RuntimeError(f"no run of {kind} {head}: {done.stderr[-800:]}")
    return examined(RunStore.open(runs[-1].parent))


def examined(store: RunStore) -> dict[str, Any]:
    """The figures of a run's measured phase; its verdict and reasons alone where nothing was sent."""
    manifest = store.manifest
    if not store.has("requests"):
        return {"verdict": manifest.status, "reasons": list(manifest.reasons), "n": 0, "ok": 0}
    requests = store.read("requests", ["target", "phase", "outcome", "scheduled_ns", "done_ns"])
    measured = requests.filter(pc.equal(requests.column("phase").cast("string"), "bursts"))
    response_ms = pc.subtract(measured.column("done_ns"), measured.column("scheduled_ns")).to_numpy() / 1e6
    outcomes = measured.column("outcome").cast("string").to_pylist()
    targets = measured.column("target").cast("string").to_numpy(zero_copy_only=False)
    found = {table: asked(store, table, question) for table, question in QUESTIONS.items()}
    return {
        "verdict": manifest.status, "reasons": list(manifest.reasons), "notes": list(manifest.notes),
        "n": len(measured), "ok": outcomes.count("ok"),
        "ms": quantiles(response_ms),
        "by_server": {
            str(name): {"n": int((targets == name).sum()), **quantiles(response_ms[targets == name])}
            for name in np.unique(targets)
        },
        **found,
    }  # fmt: skip


def asked(store: RunStore, table: str, question: str) -> list[Any]:
    """The answer, empty where the run has no such table."""
    if not store.has(table):
        return []
    with connect(store, (table,)) as database:
        rows = database.execute(f"{question} GROUP BY ALL ORDER BY ALL").fetchall()
    return [list(row) for row in rows]


def p95_ms(runs: list[dict[str, Any]]) -> float:
    """The median over runs that sent something; not a number of none."""
    return float(np.median([one["ms"]["p95"] for one in runs if one["n"]] or [np.nan]))


def quantiles(values: Any) -> dict[str, float]:
    return {f"p{q}": round(float(np.nanpercentile(values, q)), 3) for q in (50, 95, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--heads", nargs="+", default=["linear_head", "seqlen_head"])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rate", type=float, default=1_500)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    n = n_gpus()
    found: dict[str, Any] = {"n_gpus": n}
    for head in options.heads:
        runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        for number in range(options.repeats):
            for kind in KINDS:
                runs[kind].append(run(kind, head, number, n, options))
        p95 = {kind: p95_ms(ran) for kind, ran in runs.items()}
        efficiency = {kind: round(p95["alone"] / one, 3) for kind, one in p95.items()}
        found[head] = {"runs": runs, "p95_alone_over_p95": efficiency}
    print(json.dumps(found, indent=1, default=str))
    every = [one for head in options.heads for runs in found[head]["runs"].values() for one in runs]
    sys.exit(any(one["verdict"] != "VALID" or one["ok"] != one["n"] for one in every))


if __name__ == "__main__":
    main()
