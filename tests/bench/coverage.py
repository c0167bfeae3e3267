"""How often 95 % intervals of quantiles hold the true one, on queues whose quantiles are known.

    python -m tests.bench.coverage [--repeats 400] [--rows 10000,100000] [--case TEXT] [--over-runs] [--truth]

prints a table in Markdown. For each queue, quantile and number of rows: the share of runs that were given an interval,
how often it held the true quantile (an end that is not given holds any value), the share with both ends and how often
those held it; beside it plain order statistics, Student's t over 20 batches of the run, and Student's t over 5 runs.
--case: only those whose name has TEXT in it. --over-runs: p95 over 3, 5, 10 and 20 runs of 2,000 rows instead.
--truth simulates the quantiles of the bursty queues instead, from 200 million rows, with standard errors. Seeds are
fixed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squall.analysis.statistics.latency import Quantile, pooled_quantile, quantiles
from squall.analysis.statistics.order_statistics import interval_ranks, nearest_rank
from squall.analysis.statistics.student import student_quantile
from tests.queue_runs import CASES, PAUSES, Int64s, PauseCase, QueueCase

QS = (0.5, 0.95, 0.99)
N_POOLED = 5
_N_BATCHES = 20
_TRUTH_ROWS = 20_000_000
_TRUTH_PARTS = 10

Ends = tuple[float | None, float | None] | None
"""Both ends of an interval, None for one that is not given; None for no interval."""


@dataclass(frozen=True)
class Coverage:
    """Shares of runs: given an interval, covered of these; with both ends, covered of these."""

    given: float
    covered: float
    both: float
    both_covered: float

    @classmethod
    def of(cls, intervals: Sequence[Ends], truth_ns: float) -> Coverage:
        """`covered` is nan of none."""
        given = [one for one in intervals if one is not None]
        both = [one for one in given if None not in one]

        def share(some: list[tuple[float | None, float | None]]) -> float:
            hits = [(low or 0) <= truth_ns <= (math.inf if high is None else high) for low, high in some]
            return sum(hits) / len(hits) if hits else math.nan

        return cls(len(given) / len(intervals), share(given), len(both) / len(intervals), share(both))


def ours(values_ns: Int64s, q: float) -> Ends:
    """The interval of one run."""
    return _ends(quantiles(values_ns, [q])[0])


def plain(values_ns: Int64s, q: float) -> Ends:
    """Order statistics as of independent rows."""
    ordered = np.sort(values_ns)
    low, high = (rank and int(ordered[rank - 1]) for rank in interval_ranks(q, len(ordered), len(ordered)))
    return low, high


def batched(values_ns: Int64s, q: float) -> Ends:
    """Student's t over the quantiles of 20 batches."""
    batches = values_ns[: len(values_ns) // _N_BATCHES * _N_BATCHES].reshape(_N_BATCHES, -1)
    return _student([float(np.sort(one)[nearest_rank(q, len(one)) - 1]) for one in batches])


def averaged(runs_ns: Int64s, q: float) -> Ends:
    """Student's t over the quantiles of runs."""
    return _student([float(np.sort(one)[nearest_rank(q, len(one)) - 1]) for one in runs_ns])


def pooled(runs_ns: Int64s, q: float) -> Ends:
    """The interval over runs."""
    return _ends(pooled_quantile([(one, None) for one in runs_ns], q))


def _ends(found: Quantile) -> Ends:
    return (found.low_ns, found.high_ns) if found.method else None


def _student(found: Sequence[float]) -> Ends:
    half = student_quantile(0.975, len(found) - 1) * float(np.std(found, ddof=1)) / math.sqrt(len(found))
    middle = float(np.mean(found))
    return middle - half, middle + half


def table(n_repeats: int, n: int, name: str = "", qs: Sequence[float] = QS) -> list[dict[str, object]]:
    """A row of figures for each case with `name` in its name, and each quantile."""
    rows: list[dict[str, object]] = []
    for number, case in _wanted(name):
        runs_ns = case.runs_ns(np.random.default_rng([1, number]), n_repeats, n)
        groups = runs_ns[: n_repeats // N_POOLED * N_POOLED].reshape(-1, N_POOLED, n)
        found = [quantiles(one, qs) for one in runs_ns]
        for position, q in enumerate(qs):
            truth_ns = case.quantile_ns(q)
            rows.append({
                "queue": case.name, "n": n, "q": q,
                "ours": Coverage.of([_ends(one[position]) for one in found], truth_ns),
                "plain": Coverage.of([plain(one, q) for one in runs_ns], truth_ns),
                "batched": Coverage.of([batched(one, q) for one in runs_ns], truth_ns),
                "pooled": Coverage.of([pooled(some, q) for some in groups], truth_ns),
                "averaged": Coverage.of([averaged(some, q) for some in groups], truth_ns),
                "n_eff": float(np.median([one[position].n_eff for one in found])),
            })  # fmt: skip
    return rows


def _wanted(name: str) -> list[tuple[int, QueueCase | PauseCase]]:
    cases: tuple[QueueCase | PauseCase, ...] = (*CASES, PAUSES)
    return [(number, case) for number, case in enumerate(cases) if name in case.name]


def _print_over_runs(name: str, n_runs: int = 1_200, n: int = 2_000, q: float = 0.95) -> None:
    """Coverage of groups of runs, by how many make a group."""
    print("| queue | runs | covers | both ends | covers | mean of the quantiles |")
    print("|---|" + "---:|" * 5)
    for number, case in _wanted(name):
        runs_ns = case.runs_ns(np.random.default_rng([2, number]), n_runs, n)
        for size in (3, 5, 10, 20):
            groups = runs_ns.reshape(-1, size, n)
            own = Coverage.of([pooled(some, q) for some in groups], case.quantile_ns(q))
            means = Coverage.of([averaged(some, q) for some in groups], case.quantile_ns(q))
            shares = (own.covered, own.both, own.both_covered, means.covered)
            print(f"| {case.name} | {size} | {' | '.join(map(_percent, shares))} |", flush=True)


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.0f}"


def _print(rows: Sequence[dict[str, object]]) -> None:
    print(
        "| queue | n | quantile | n_eff | given | covers | both ends | covers | plain | 20 batches | "
        f"{N_POOLED} runs | both ends | covers | mean of {N_POOLED} quantiles |"
    )
    print("|---|" + "---:|" * 13)
    for row in rows:
        own, over_runs = row["ours"], row["pooled"]
        assert isinstance(own, Coverage)
        assert isinstance(over_runs, Coverage)
        cells = [
            row["queue"], f"{row['n']:,}", f"p{100 * float(str(row['q'])):g}", f"{row['n_eff']:.0f}",
            *(_percent(one) for one in (own.given, own.covered, own.both, own.both_covered)),
            *(_percent(row[name].covered) for name in ("plain", "batched")),  # type: ignore[attr-defined]
            *(_percent(one) for one in (over_runs.covered, over_runs.both, over_runs.both_covered)),
            _percent(row["averaged"].covered),  # type: ignore[attr-defined]
        ]  # fmt: skip
        print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)


def truth(case: QueueCase, qs: Sequence[float] = QS) -> list[tuple[float, float]]:
    """(quantile, standard error) in ns for each of `qs`, from ten parts of 20 million rows."""
    parts = []
    for part in range(_TRUTH_PARTS):
        ordered = np.sort(case.responses_ns(np.random.default_rng([99, part]), _TRUTH_ROWS))
        parts.append([float(ordered[nearest_rank(q, len(ordered)) - 1]) for q in qs])
    found = np.array(parts)
    errors = found.std(axis=0, ddof=1) / math.sqrt(_TRUTH_PARTS)
    return list(zip(found.mean(axis=0).tolist(), errors.tolist(), strict=True))


def main() -> None:
    """Prints the table, or the true quantiles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--rows", default="10000,100000")
    parser.add_argument("--case", default="")
    parser.add_argument("--over-runs", action="store_true")
    parser.add_argument("--truth", action="store_true")
    wanted = parser.parse_args()
    if wanted.truth:
        for case in CASES:
            if case.known_ns is not None:
                for q, (value_ns, error_ns) in zip(QS, truth(case), strict=True):
                    print(
                        f"{case.name} p{100 * q:g}: {value_ns:.0f} ns, standard error {error_ns:.0f}",
                        flush=True,
                    )
        return
    if wanted.over_runs:
        _print_over_runs(wanted.case)
        return
    for n in wanted.rows.split(","):
        _print(table(wanted.repeats, int(n), wanted.case))


if __name__ == "__main__":
    main()
