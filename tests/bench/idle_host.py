"""Verdicts of many short runs at 1 to 50/s against one real Triton: on an idle host none is INVALID.

    python -m tests.bench.idle_host [--runs 200] [--seconds 5] [--seed 1] [--busy] [--keep FOLDER]

One Triton with a small model is kept up; each run draws its rate (evenly in its logarithm) and its seed, and is what
`squall run SCENARIO --server URL` does, one after another in this process; run directories are removed as they are
read, unless `--keep` names a folder for them. With `--busy` loops that are not of the run take the host meanwhile.

Prints a line for each run, then one JSON object: runs by verdict, the first reasons of those that are not VALID, and
the range of what was measured: idle share of the node, share of the time without a free core, wait a wake-up, CPU
taken, share of the response times, seconds a run. Exit code 1 where a run is not VALID, with `--busy` where one is.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from squall.cluster.driver.run import RunResult, run_scenario
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measurer
from squall.cluster.progress import Screen
from squall.scenarios.config.loader import scenario_from_mapping
from tests.busy import busy_host
from tests.integration.serving import serving

RATES_HZ = (1.0, 50.0)


def scenario_of(url: str, model: dict[str, Any], rate_hz: float, seconds: float, seed: int) -> dict[str, Any]:
    """A short run at that rate."""
    poisson = {"kind": "poisson", "rate": f"{rate_hz:.3f}/s"}
    return {
        "name": "idle", "seed": seed, "model": model, "server": {"url": url},
        "clients": {"workers_per_node": 1, "timeout": "2s", "rows": {"kind": "constant", "value": 1}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "20/s"}},
            {"name": "measure", "kind": "measure", "duration": f"{seconds:g}s", "arrivals": poisson},
            {"name": "drain", "kind": "drain", "duration": "500ms"},
        ],
    }  # fmt: skip


def told(result: RunResult, rate_hz: float, seed: int, seconds: float) -> dict[str, Any]:
    """What a run says of itself, on stderr too."""
    summary = result.summary
    cpu = next((one for one in summary.cpu if one.taken is not None), None) if summary is not None else None
    row: dict[str, Any] = {
        "rate_hz": round(rate_hz, 2), "seed": seed, "seconds": round(seconds, 1), "status": result.status,
        "reason": summary.verdict.reasons[0] if summary is not None and summary.verdict.reasons else "",
    }  # fmt: skip
    if cpu is not None:
        row |= {
            "idle_ratio": cpu.cores["idle"] / cpu.n_cores, "full_ratio": cpu.full_ratio,
            "wake_us": cpu.server_wake_ns / 1e3 if cpu.server_wake_ns is not None else None,
            "taken_ratio": cpu.taken_ratio, "consequence_ratio": cpu.consequence_ratio,
        }  # fmt: skip
    sys.stderr.write(f"{json.dumps(row)}\n")
    return row


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs, one after another."""
    draw, rows = random.Random(options.seed), list[dict[str, Any]]()
    with ExitStack() as stack:
        kept = options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="squall-idle-"))
        folder = Path(kept)
        _, endpoint = stack.enter_context(serving(folder / "server"))
        if options.busy:
            stack.enter_context(busy_host(at_most_s=120.0 * options.runs))
        model = {"name": endpoint.models[0].spec.name, "max_batch_size": 8}
        measurer = Measurer(folder, None, Interrupts(), run_scenario, Screen())
        for _ in range(options.runs):
            low, high = map(math.log, RATES_HZ)
            rate_hz, seed = math.exp(draw.uniform(low, high)), draw.randrange(2**31)
            mapping = scenario_of(endpoint.url, model, rate_hz, options.seconds, seed)
            begun = time.monotonic()
            result = measurer.once(
                scenario_from_mapping(mapping, "idle"), f"{rate_hz:.1f}/s, seed {seed}"
            ).result
            rows.append(told(result, rate_hz, seed, time.monotonic() - begun))
            if not options.keep:
                shutil.rmtree(result.run_dir, ignore_errors=True)
    return rows


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Verdicts, reasons and ranges."""
    names = ("idle_ratio", "full_ratio", "wake_us", "taken_ratio", "consequence_ratio", "seconds")
    ranges = {}
    for name in names:
        known = sorted(row[name] for row in rows if row.get(name) is not None)
        if known:
            ranges[name] = {"least": known[0], "median": known[len(known) // 2], "most": known[-1]}
    reasons = Counter(row["reason"].partition(":")[0] for row in rows if row["status"] != "VALID")
    return {"verdicts": Counter(row["status"] for row in rows), "reasons": reasons, "ranges": ranges}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the measured phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="loops that are not of the run take the host")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs")
    options = parser.parse_args()
    found = figures(run_all(options))
    print(json.dumps(found, indent=2))
    return int(set(found["verdicts"]) != ({"INVALID"} if options.busy else {"VALID"}))


if __name__ == "__main__":
    sys.exit(main())
