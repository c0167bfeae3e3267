"""A transformer on a fresh server under a warm-up that is too short, then on another under the one that squall advises.

    python -m tests.bench.cold_gpu OUT [--rate HZ] [--seconds S] [--device gpu|cpu]

The model is plain PyTorch in Triton's Python backend (tests/bench/foreign_gpu.py), which squall starts for each run
anew. The first run warms up for 0.2 s at 10/s; the second as the first one's summary advises, at least for `LEAST_S`
at its rate. Prints a table: p95 with its interval, late requests, the line on cold, the first finding of each; the
screens lie in OUT. `--device cpu` tries the bench where no GPU is, on a model that sleeps at batch sizes it has not
seen (`tests/integration/foreign_models.py`). Takes about two minutes; exit code 1 where the first run is not called
cold first, or the second is.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from squall.analysis.wording import duration_text, rate_text
from tests.bench import foreign_gpu
from tests.integration.foreign_models import write_timed

LEAST_S = 5
MOST_S = 20
"""Bounds of the second warm-up: the host is lent by the minute."""
_RUN_S = 100.0
LIMIT = "p(95)<20ms"


def repository(options: argparse.Namespace) -> tuple[Path, str]:
    """Of the model, and its name."""
    if options.device == "gpu":
        folder = foreign_gpu.repository(options)
        config = folder / "theirs" / "config.pbtxt"
        config.write_text(config.read_text().replace("count: 4", f"count: {options.instances}"))
        return folder, "theirs"
    folder = options.out / "repository"
    shutil.rmtree(folder, ignore_errors=True)
    write_timed(folder, "timed", "sizes", 0.3)
    return folder, "timed"


def scenario(options: argparse.Namespace, warm_up_s: float, warm_up_hz: float) -> dict[str, Any]:
    """A warm-up, then bursts around the rate."""
    folder, name = repository(options)
    rows = options.rows if options.device == "gpu" else 1
    arrivals = {"kind": "gamma", "cv": 2.0, "rate": f"{options.rate:g}/s"}
    warm_up = {"kind": "poisson", "rate": f"{warm_up_hz:.0f}/s"}
    return {
        "name": "cold", "seed": 1, "model": {"name": name, "repository": str(folder)},
        "clients": {"workers_per_node": 2, "timeout": "10s", "rows": {"kind": "constant", "value": rows}},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": f"{warm_up_s:g}s", "arrivals": warm_up},
            {"name": "load", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "3s"},
        ],
        "profile": {"nsys": "off", "kernels": "off"},
        "promises": {"response": [LIMIT]},
    }  # fmt: skip


def run(options: argparse.Namespace, name: str, warm_up_s: float, warm_up_hz: float) -> dict[str, Any]:
    """The summary of one `squall run` on a server of its own. Raises RuntimeError where there is none."""
    path = options.out / f"{name}.yaml"
    path.write_text(yaml.safe_dump(scenario(options, warm_up_s, warm_up_hz)))
    folder = options.out / name
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "squall.cluster.cli", "run", str(path), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_S, check=False)
    (options.out / f"{name}.screen").write_text(done.stdout + done.stderr)
    found = sorted(folder.glob("*/summary.json"))
    if not found:
        raise RuntimeError(f"{name} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return {**json.loads(found[-1].read_text()), "exit_code": done.returncode, "screen": done.stdout}


def row(summary: dict[str, Any], warm_up: str) -> dict[str, str]:
    """A row of the table."""
    spread = summary["measure"]["latency"]["response"]["quantiles"]
    p95 = next(one for one in spread if one["q"] == 0.95)
    low, high = (duration_text(p95[key]) for key in ("low_ns", "high_ns"))
    promise = summary["promises"][0]
    finding = summary["findings"][0] if summary["findings"] else {"rule": "none", "confidence": "-"}
    return {
        "warm-up": warm_up,
        "verdict": summary["verdict"]["status"],
        "p95": duration_text(p95["value_ns"]),
        "95 % interval": f"{low} … {high}",
        "late": f"{promise['n_late']:,} of {promise['n']:,}, {promise['verdict']}",
        "kind": summary["cold"]["load"]["kind"],
        "first finding": f"{finding['rule']} ({finding['confidence']})",
    }


def line_on_cold(summary: dict[str, Any]) -> str:
    """The line of the screen, with what follows it to the next empty line."""
    lines = summary["screen"].splitlines()
    begins = [
        place for place, one in enumerate(lines) if one.startswith(("cold: ", "leftovers: ", "drift: "))
    ]
    if not begins:
        return "none"
    told = []
    for one in lines[begins[0] :]:
        if not one.strip():
            break
        told.append(one.strip())
    return " ".join(told)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--rate", type=float, default=None, help="1,500/s; on the CPU 150/s")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rows", type=int, default=1, help="the fewer, the more batch sizes there are")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    options = parser.parse_args()
    options.rate = options.rate or (1_500.0 if options.device == "gpu" else 150.0)
    options.model, options.out = "torch", options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    short = run(options, "short", 0.2, 10.0)
    print(f"too short: {line_on_cold(short)}", flush=True)
    advice = short["cold"]["load"]["advice"] or {"duration_ns": 0, "rate_hz": None}
    seconds = min(MOST_S, max(LEAST_S, advice["duration_ns"] / 1e9))
    rate_hz = advice["rate_hz"] or options.rate
    long = run(options, "long", seconds, rate_hz)
    print(f"as advised: {line_on_cold(long)}\n")
    rows = [row(short, "0.2 s at 10/s"), row(long, f"{seconds:g} s at {rate_text(rate_hz)}")]
    for key in rows[0]:
        print(f"{key:14}" + "".join(f"{one[key]:>36}" for one in rows))
    print("\nlast lines: " + " | ".join(one["screen"].rstrip().splitlines()[-1] for one in (short, long)))
    kept = {name: {"cold": one["cold"], "findings": one["findings"][:2], "promises": one["promises"], "row": own}
            for (name, one), own in zip({"short": short, "long": long}.items(), rows, strict=True)}  # fmt: skip
    (options.out / "cold_gpu.json").write_text(json.dumps(kept, indent=1))
    is_told = short["findings"] and short["findings"][0]["rule"] == "cold"
    sys.exit(0 if is_told and not long["cold"]["load"]["is_stated"] else 1)


if __name__ == "__main__":
    main()
