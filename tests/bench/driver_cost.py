"""What a run costs beside its requests: the driver's CPU by the number of workers, a worker's with and without Ray.

    python -m tests.bench.driver_cost OUT [--workers N ...] [--seconds S] [--rate HZ] [--pairs N]

`driver`: `squall run` with that many workers on this host, 20 requests/s each, against a null Triton: CPU of the
driver's process over the measured phase, in shares of a core (its threads, not Ray's processes), and its resident
memory. `per request`: one worker at `--rate`, started by `squall run` through Ray and as a plain process, in turn: CPU
time of the worker over its requests, as a ratio. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from squall.analysis.storage.store import RunStore
from squall.cluster.commands.local_workers import Job, NullTriton, poisson_plan, run_workers
from squall.scenarios.units import NS_PER_S

_RATE_HZ = 20
"""Of each worker in `driver`: little, for it is the driver that is looked at."""


def squall_run(
    folder: Path, server: NullTriton, n_workers: int, rate_hz: float, seconds: float
) -> tuple[RunStore, list[tuple[int, float, int]]]:
    """A run against `server`, and of its driver (UTC ns, CPU seconds, resident bytes) every quarter of a second."""
    folder.mkdir(parents=True)
    mapping = {
        "name": "driver-cost", "seed": 1,
        "model": {"name": "linear_head", "settings": {"width": 64, "classes": 2}},
        "server": {"url": f"http://127.0.0.1:{server.port('http')}"},
        "clients": {"workers_per_node": n_workers, "cores": "off", "connections": 4},
        "phases": [
            {"name": "load", "kind": "measure", "duration": f"{seconds:g}s",
             "arrivals": {"kind": "poisson", "rate": f"{rate_hz:g}/s"}},
            {"name": "drain", "kind": "drain", "duration": "2s"},
        ],
        "profile": {"nsys": "off", "nvml": "off", "kernels": "off", "batches": "off"},
    }  # fmt: skip
    (folder / "scenario.yaml").write_text(yaml.safe_dump(mapping))
    words = ["-m", "squall.cluster.entry", "run", str(folder / "scenario.yaml"), "--out", str(folder / "out")]
    samples = []
    with (folder / "screen").open("w") as screen:
        process = psutil.Popen([sys.executable, *words], stdout=screen, stderr=screen)
        while process.poll() is None:
            try:
                times = process.cpu_times()
                samples.append((time.time_ns(), times.user + times.system, process.memory_info().rss))
            except psutil.Error:
                break
            time.sleep(0.25)
        process.wait()
    runs = sorted((folder / "out").glob("*/manifest.json"))
    if not runs:
        raise RuntimeError(f"no run: {(folder / 'screen').read_text()[-800:]}")
    return RunStore.open(runs[-1].parent), samples


def driver_cost(options: argparse.Namespace, n_workers: int) -> dict[str, Any]:
    """Over the measured phase."""
    with NullTriton() as server:
        folder = options.out / f"workers-{n_workers}"
        store, samples = squall_run(folder, server, n_workers, _RATE_HZ * n_workers, options.seconds)
    phase = store.manifest.phases[0]
    inside = [one for one in samples if phase.start_ns <= one[0] <= phase.end_ns]
    (first_ns, first_s, _), (last_ns, last_s, _) = inside[0], inside[-1]
    ready_ms = [
        one.ready_before_ns / 1e6 for one in store.manifest.workers if one.ready_before_ns is not None
    ]
    return {
        "verdict": store.manifest.status,
        "cores": round((last_s - first_s) / ((last_ns - first_ns) / NS_PER_S), 4),
        "rss_mib": round(max(one[2] for one in inside) / 2**20, 1),
        "manifest_bytes": (store.run_dir / "manifest.json").stat().st_size,
        "ready_before_ms": [round(min(ready_ms), 1), round(max(ready_ms), 1)],
    }


def through_ray_us(options: argparse.Namespace, number: int) -> float:
    """CPU time per request of a worker of `squall run`."""
    with NullTriton() as server:
        store, _ = squall_run(options.out / f"ray-{number}", server, 1, options.rate, options.seconds)
    spent = store.read("worker_samples", ["cpu_ns"]).column("cpu_ns").to_numpy().sum()
    return float(spent) / 1e3 / store.manifest.plan.n_arrivals


def alone_us(options: argparse.Namespace) -> float:
    """The same of a worker in a plain process."""
    with NullTriton() as server:
        plan = poisson_plan(options.rate, round(options.seconds * NS_PER_S), 2 * NS_PER_S, 1)
        worked = run_workers([Job(server, "http", plan)], options.out)
    (cost,) = worked.costs
    return (cost.user_ns + cost.system_ns) / 1e3 / len(plan)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=3_000)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    driver, pairs = {}, []
    for n in options.workers:
        driver[n] = driver_cost(options, n)
        print(n, driver[n], file=sys.stderr, flush=True)
    for number in range(options.pairs):
        pairs.append((through_ray_us(options, number), alone_us(options)))
        print(pairs[-1], file=sys.stderr, flush=True)
    ratios = [ray / alone for ray, alone in pairs]
    print(json.dumps({
        "driver": driver,
        "per request": {
            "us": [[round(one, 2) for one in pair] for pair in pairs],
            "median_ratio": round(float(np.median(ratios)), 3) if ratios else None,
            "ratios": [round(one, 3) for one in ratios],
        },
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
