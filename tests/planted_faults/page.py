"""`python -m tests.planted_faults.page` prints every check and the fault that failed it; `make docs` writes it down."""

from __future__ import annotations

from squall.analysis.verdict.checks import markdown
from tests.planted_faults.faults import ELSEWHERE, FAULTS, NAMED

_HEAD = """# Every check, and the fault that failed it

A check that cannot fail says nothing. For each check of a verdict, each count that must agree and each self-check this
page names a fault that was planted where a run records, counts or derives (no table was edited), and that the check
found. The tests plant each of them anew: `tests/integration/test_checks_can_fail.py`, and for clocks
`test_clock_checks_can_fail.py` beside it. Without a fault the same runs meet them, but for those that a busy machine
changes. docs/diagnosis.md has the self-checks; the checks of the verdict are these:

CHECKS

Runs: *open*, *closed* (loop), *python* (the engine without its lane) and *nsys* are real ones, with Ray and Triton;
*two nodes* has a second node in namespaces with a clock of its own; *made up* is the analysis of a made-up run without
kernels, *h200* a real export of nsys through ingest and analysis, *regime* the analysis of a planted run with kernels,
*locust* that of a made-up run of Locust's users, whose rows and samples are changed, *nvml* that of a made-up run whose
GPUs are sampled from a scripted NVML, *simulated* that of a host or a server of which each step is simulated.

| check | planted fault | where | run |
|---|---|---|---|
"""
_NAMED = """
`dispersion 10 s` takes a phase of 100 s, `dispersion 100 s` one of 1,000 s: their faults are planted only where
`SQUALL_LONGEST_FAULT_S` says so, 120 in `make test-all`, 1100 for both.

## What else a run names
Findings, reasons of a verdict, exit codes and lines that are no check, with a fault that was planted for each.

| named | planted fault | where | run |
|---|---|---|---|
"""
_FOOT = """
Planted as well is what must *not* be named: idle cores that wake in 64 to 280 µs and servers with more threads than
cores (`tests/unit/analysis/verdict/test_starvation_truths.py`); models that are slow in bursts, and queues that
arrivals make (`tests/golden/test_cold.py`); a neighbour without consequence, on another GPU, or gone before the load
(`tests/golden/test_gpu_neighbour.py`); cached steps of an ensemble, which are joined to no batch
(`tests/integration/test_foreign_batches.py`).
"""


def rows() -> list[tuple[str, str, str, str]]:
    """Check, fault, place and run, by check; a check may have several."""
    found = [
        (
            check,
            fault.told,
            f"`{fault.module}`",
            f"{fault.run}, {fault.seconds} s" if fault.is_live else fault.run,
        )
        for fault in FAULTS.values()
        for check in fault.checks
    ]
    found += [(check, told, f"`{test}`", run) for check, told, test, run in ELSEWHERE]
    return sorted(found, key=lambda row: row[0].lower())


def page() -> str:
    """The whole page."""
    checks = "".join(f"| `{check}` | {' | '.join(rest)} |\n" for check, *rest in rows())
    named = "".join(f"| {name} | {told} | `{test}` | {run} |\n" for name, told, test, run in NAMED)
    return f"{_HEAD.replace('CHECKS', markdown())}{checks}{_NAMED}{named}{_FOOT}"


if __name__ == "__main__":
    print(page(), end="")
