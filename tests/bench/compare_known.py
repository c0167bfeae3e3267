"""`squall compare` in real time, where the truth is known: a server against itself, and one 3 or 10 % slower.

    python -m tests.bench.compare_known OUT [--cases null-1.00 null-1.03 …] [--comparisons N] [--pairs N] [--parallel N]

Cases: `null-F`, two null servers of constant service on one lane, B's longer by the factor F; `triton-F`, the embedded
Triton with linear_head on a CPU, B with F times as many layers of one size. Load 0.6 by default, Poisson; `--shape
gamma:3` has gamma gaps of cv 3. `--parallel N` runs N comparisons side by side, each on cores of its own: for hosts
with many cores only.

Prints one JSON object, which is in OUT/compare_known.json too: of each case the verdicts by count, of each comparison
verdict, changes with intervals, parts, seconds. Exit code 1 where a server compared with itself was called worse or
better more often than 5 % allow by chance (binomial, 1 in 1,000), or a slower one better.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import comb
from pathlib import Path
from typing import Any

import yaml

from tests.bench.capacity_known import queued, taken
from tests.null_process import NullProcess

CASES = ("null-1.00", "null-1.03", "null-1.10", "triton-1.00", "triton-1.03", "triton-1.10")
SERVICE_MS = 5.0
LAYERS, WIDTH = 100, 256
TRITON_MS = 3.0
"""About what a row takes by LAYERS of WIDTH on one core: `--triton-ms` for another host."""


def scenario_of(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Warm-up of 2 s, and what is measured."""
    service_ms = SERVICE_MS if kind == "null" else options.triton_ms
    law, _, cv = options.shape.partition(":")
    arrivals = {
        "kind": law,
        "rate": f"{1_000.0 * options.load / service_ms:.3f}/s",
        **({"cv": float(cv)} if cv else {}),
    }
    settings = {"width": 4, "layers": 1} if kind == "null" else {"width": WIDTH, "layers": LAYERS}
    return {
        "name": f"known-{kind}", "seed": 1,
        "model": {"name": "linear_head", "settings": settings, "max_batch_size": 32 if kind == "null" else 1},
        "clients": {"workers_per_node": 1, "timeout": "10s"},
        "phases": [
            {"name": "warmup", "kind": "warmup", "duration": "2s", "arrivals": arrivals},
            {"name": "load", "kind": "measure", "duration": f"{options.seconds:g}s", "arrivals": arrivals},
            {"name": "drain", "kind": "drain", "duration": "2s"},
        ],
        "profile": {"nsys": "off", "kernels": "off", "batches": "off" if kind == "null" else "auto"},
    }  # fmt: skip


def compare_once(
    case: str, number: int, cores: Sequence[int] | None, options: argparse.Namespace
) -> dict[str, Any]:
    """One `squall compare`, whose seeds are its own."""
    kind, factor = case.split("-")
    folder: Path = options.out / f"{case}-{number}"
    folder.mkdir(parents=True)
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario_of(kind, options)))
    command = [
        *_pinned(cores),
        sys.executable,
        "-m",
        "squall.cluster.cli",
        "compare",
        str(folder / "scenario.yaml"),
    ]
    command += ["--pairs", str(options.pairs), "--seed", str(1_000 * number), "--out", str(folder), "--json"]
    command += ["--looks", str(options.looks)]
    begun_s = time.monotonic()
    with ExitStack() as stack:
        if kind == "null":
            for side, service_ms in (("a", SERVICE_MS), ("b", SERVICE_MS * float(factor))):
                server = stack.enter_context(
                    NullProcess(f"--service=constant:{round(1_000 * service_ms)}us", "--servers=1")
                )
                if cores is not None:
                    os.sched_setaffinity(server.pid, cores)
                command += [f"--server-{side}", f"http://127.0.0.1:{server.ports['http']}"]
        else:
            command += ["--set-b", f"model.settings.layers={round(LAYERS * float(factor))}"]
            command += ["--set-a", f"model.settings.layers={LAYERS}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    (folder / "screen").write_text(done.stderr)
    found = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    return {
        "case": case, "number": number, "exit_code": done.returncode, "seconds": round(time.monotonic() - begun_s, 1),
        "verdict": found.get("verdict", "failed"), "n_pairs": found.get("n_pairs"),
        **{
            one["metric"]: {key: one[key] for key in ("change", "low", "high", "verdict", "n_more", "a", "b")}
            for one in found.get("changes", ()) if one["is_primary"]
        },
        "parts": {one["what"]: one["change"] for one in (found.get("every") or {}).get("parts", ())},
        "error": "" if found else done.stderr[-400:],
    }  # fmt: skip


def _pinned(cores: Sequence[int] | None) -> list[str]:
    return [] if cores is None else ["taskset", "-c", ",".join(map(str, cores))]


def core_groups(n: int) -> list[list[int] | None]:
    """Cores of each of so many comparisons at once; None, all, for one alone."""
    cores = sorted(os.sched_getaffinity(0))
    if n == 1:
        return [None]
    each = len(cores) // n
    if each < 2:
        raise SystemExit(f"--parallel {n}: {len(cores)} cores give less than 2 to each")
    return [cores[place * each : (place + 1) * each] for place in range(n)]


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All comparisons, `--parallel` at a time; what there is so far is written after each."""
    groups = queued(core_groups(options.parallel))
    done = list[dict[str, Any]]()

    def one(job: tuple[str, int]) -> None:
        with taken(groups) as cores:
            done.append(compare_once(*job, cores, options))
        told = done[-1]
        print(
            f"{told['case']} {told['number']}: {told['verdict']}, {told['seconds']} s",
            file=sys.stderr,
            flush=True,
        )
        (options.out / "compare_known.json").write_text(json.dumps(summary(done, options), indent=1))

    jobs = [(case, number) for number in range(options.comparisons) for case in options.cases]
    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(one, jobs))
    return done


def summary(done: Sequence[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Verdicts by case, and every comparison."""
    cases = {
        case: dict(Counter(one["verdict"] for one in done if one["case"] == case)) for case in options.cases
    }
    asked = {
        name: getattr(options, name) for name in ("pairs", "seconds", "load", "shape", "looks", "comparisons")
    }
    return {**asked, "cores": len(os.sched_getaffinity(0)), "cases": cases, "comparisons_done": list(done)}


def chance_of_as_many(n_found: int, n: int, share: float) -> float:
    """Binomial: that of `n` so many or more are found, each with the chance `share`."""
    return sum(comb(n, k) * share**k * (1.0 - share) ** (n - k) for k in range(n_found, n + 1))


def faults(done: Sequence[dict[str, Any]]) -> list[str]:
    """What no correct comparison finds so often."""
    found = []
    for case in dict.fromkeys(one["case"] for one in done):
        verdicts = Counter(one["verdict"] for one in done if one["case"] == case)
        n, n_other = sum(verdicts.values()), verdicts["worse"] + verdicts["better"]
        if case.endswith("1.00"):
            if chance_of_as_many(n_other, n, 0.05) < 0.001:
                found.append(f"{case}: {n_other} of {n} called different")
        elif verdicts["better"]:
            found.append(f"{case}: {verdicts['better']} of {n} called better")
        if verdicts["failed"]:
            found.append(f"{case}: {verdicts['failed']} of {n} failed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="null-FACTOR or triton-FACTOR")
    parser.add_argument("--comparisons", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--looks", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--shape", default="poisson", help="poisson or gamma:CV")
    parser.add_argument("--triton-ms", type=float, default=TRITON_MS)
    parser.add_argument("--parallel", type=int, default=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    done = run_all(options)
    print(json.dumps(summary(done, options), indent=1))
    wrong = faults(done)
    for one in wrong:
        print(one, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
