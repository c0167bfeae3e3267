"""`squall check` in real time, where the truth is known: a server below its promise, exactly at it, and above.

    python -m tests.bench.check_known OUT [--loads 0.7 0.8 0.9] [--sets 5] [--parallel N] [--cv 1]

The null Triton with a constant service time D is a first-come-first-served queue whose p95 is 7.61 D under Poisson
arrivals at a load of 0.8, 63 D under gamma gaps of cv 3: that is the promise. Each set is one `squall check --seeds 8`
with seeds of its own against a null server of its own that has a core to itself. A timer and the client add to each
response, so a real server is a little beyond the limit where theory has it at the limit.

Prints one JSON object, which is in OUT/check_known.json too: verdicts by load, and the late share of every run. Exit
code 1 where more sets at the limit were called kept than a share of 13 % allows by chance (binomial, 1 in 1,000), one
above it was, or one below it was called broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from squall.scenarios.units import NS_PER_S, parse_duration
from tests.bench.capacity_known import LIMITS, LOAD, alone_on, core_sets, null_scenario, queued, squall, taken
from tests.bench.compare_known import chance_of_as_many
from tests.null_process import NullProcess

KEPT_AT_LIMIT = 0.13
"""Share of sets that may call a server exactly at its limit kept (tests/unit/analysis/statistics)."""


def checked_once(
    load: float, number: int, cores: Sequence[int], options: argparse.Namespace
) -> dict[str, Any]:
    """One set: its verdict and the late share of each of its runs."""
    service_ns = parse_duration(options.service)
    begun = time.monotonic()
    rate_hz = load * NS_PER_S / service_ns
    scenario = null_scenario(rate_hz, options.cv, options.requests, round(LIMITS[options.cv] * service_ns))
    words = ["check", "--seeds", str(options.seeds), "--seed", str(1 + 1_000 * number)]
    with NullProcess(f"--service=constant:{service_ns}ns", "--servers=1") as null:
        alone_on(null.pid, cores[0])
        words += ["--server", f"http://127.0.0.1:{null.ports['http']}"]
        answer = squall(options.out / f"load{load:g}-{number}", scenario, words, cores[1:])
    told = {
        "load": load,
        "verdict": answer["verdict"],
        "late_ratios": [one["figures"]["late_ratio"] for one in answer["promises"][0]["runs"]],
        "minutes": round((time.monotonic() - begun) / 60.0, 2),
    }
    sys.stderr.write(f"{json.dumps(told)}\n")
    return told


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All sets, `--parallel` at a time, the loads in turn; what there is so far is written after each."""
    groups = queued(core_sets(options.parallel))
    done: list[dict[str, Any]] = []

    def one(job: tuple[float, int]) -> None:
        with taken(groups) as cores:
            done.append(checked_once(*job, cores, options))
        (options.out / "check_known.json").write_text(json.dumps(summary(done, options), indent=1))

    jobs = [
        (load, number + options.sets * place)
        for number in range(options.sets)
        for place, load in enumerate(options.loads)
    ]
    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(one, jobs))
    return done


def summary(done: Sequence[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Verdicts by load, and every set."""
    verdicts = {
        f"{load:g}": dict(Counter(one["verdict"] for one in done if one["load"] == load))
        for load in options.loads
    }
    asked = {name: getattr(options, name) for name in ("cv", "service", "requests", "seeds", "sets")}
    return {**asked, "verdicts": verdicts, "sets_done": list(done)}


def faults(verdicts: dict[float, dict[str, int]]) -> list[str]:
    """What no correct check finds so often, by load.

    >>> faults({0.8: {"kept": 9, "undecided": 1}, 0.9: {"broken": 3}})
    ['load 0.8: 9 of 10 sets kept']
    """
    found = []
    for load, counts in verdicts.items():
        n, kept = sum(counts.values()), counts.get("kept", 0)
        if (load == LOAD and chance_of_as_many(kept, n, KEPT_AT_LIMIT) < 0.001) or (load > LOAD and kept):
            found.append(f"load {load:g}: {kept} of {n} sets kept")
        if load < LOAD and counts.get("broken", 0):
            found.append(f"load {load:g}: {counts['broken']} of {n} sets broken")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.7, LOAD, 0.9])
    parser.add_argument("--cv", type=float, default=1.0, choices=sorted(LIMITS))
    parser.add_argument("--sets", type=int, default=5, help="of each load")
    parser.add_argument("--seeds", type=int, default=8, help="of a set")
    parser.add_argument("--requests", type=int, default=6_000, help="of a run")
    parser.add_argument("--service", default="1600us", help="D of the null server")
    parser.add_argument("--parallel", type=int, default=1, help="sets at once, each on cores of its own")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    done = run_all(options)
    told = summary(done, options)
    print(json.dumps(told, indent=1))
    wrong = faults({float(load): counts for load, counts in told["verdicts"].items()})
    for one in wrong:
        print(one, file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
