"""Quantiles of latencies from raw rows, with failures counted and a 95 % interval.

Definition (nearest rank): the q-quantile of n rows is the smallest value that at least q n of the rows do not
exceed, X(k) with k = ceil(q n). A failed row counts as infinitely slow. No interpolation, no histogram.

Interval of one run. The count of rows at or below the quantile of all runs like this one is q n on average; how far
it strays says which order statistics enclose the quantile (Woodruff 1952, J. Amer. Statist. Assoc. 47). For
independent rows the count is binomial. Rows of a queue follow one another, so the count is drawn by a block
bootstrap of 1{X <= x}, x being the quantile of these rows:

    tau      rows until the series forgets: the largest of 1{X <= x} and of the levels between it and the median
    block    ten times that, or that of any level further out, or longer
    spread   of the drawn counts, but not less than that of a binomial count of n / tau rows
    widened  by Student's point over the normal one; degrees: those of the variance of the blocks, and at most
             n min(q, 1 - q) / tau, about the number of separate spells beyond the quantile

The tail alone does not tell whether a run is long enough: one with few slow spells looks like one that forgets
quickly, and would be given a narrow interval just where it is wrong. So the median judges (`LEAST_TIMES`, and
`LEAST_SPELLS`): its autocorrelation time is short of the tail's by a factor of 2 to 3 in a queue, but it is known
from the whole run. docs/statistics.md has the coverage.

Interval of several runs: `pooled_quantile`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.statistics.block_bootstrap import Draws, draw, n_blocks_of
from squall.analysis.statistics.order_statistics import TAIL, Ranks, interval_ranks
from squall.analysis.statistics.order_statistics import nearest_rank as nearest_rank
from squall.analysis.statistics.order_statistics import smallest_n as smallest_n
from squall.analysis.statistics.stretches import INFINITE_NS as INFINITE_NS
from squall.analysis.statistics.stretches import Rows
from squall.analysis.statistics.student import student_quantile
from squall.scenarios.errors import AnalysisError
from squall.scenarios.records import Frozen

LEAST_TIMES = 100
"""Autocorrelation times of 1{X <= median} that a run must hold: ten blocks of ten."""
LEAST_SPELLS = 10
"""Of these times, how many must fall beyond the quantile: 200 in all for p95, 1,000 for p99."""
LEAST_BLOCKS = 5
"""Blocks of ten of the longest autocorrelation time that a run must hold."""
LEAST_RUNS = 3
"""Runs for an interval over runs."""
_NORMAL = 1.959964
"""The 97.5 % point of the normal distribution."""
_ROUNDING_COUNT = 1e-6
"""Rows: more than rounding makes of a count that no draw moves (n eps: 2e-8 of 1e8), less than what one moves by."""


class Quantile(Frozen):
    """The `q`-quantile of `n` rows, of which `n_failed` count as infinite, with its 95 % interval.

    `value_ns` is None if infinite or refused; `reason` then says why. `low_ns` and `high_ns` are None where there is
    no interval (`interval_reason` says why), where the rows carry no such limit, or where it is infinite.
    `tau_count`: rows until the series forgets, at least 1; `n_eff` = n / tau_count rows tell as much if independent.
    `n_blocks`: blocks that were drawn, or runs. `method`: `block bootstrap`, `runs`, empty without an interval.
    """

    q: float
    n: int
    n_failed: int
    n_eff: float
    value_ns: int | None
    low_ns: int | None
    high_ns: int | None
    is_infinite: bool = False
    is_refused: bool = False
    reason: str = ""
    tau_count: float = 1.0
    n_blocks: int = 0
    method: str = ""
    interval_reason: str = ""


def quantiles(
    values_ns: Int64s,
    qs: Sequence[float],
    is_failed: Bools | None = None,
    stretches: Sequence[int] | None = None,
) -> list[Quantile]:
    """A `Quantile` for each of `qs`, each in (0, 1). `values_ns` is (n,) in order of the schedule.

    `is_failed` is (n,): those rows count as infinite, whatever their value. `stretches`: how many rows each of
    several planned parts has, one after the other (phases): what differs between them is no chance. A quantile that
    n rows cannot carry (`smallest_n`) is refused, with the reason, not computed. A run too short for an interval
    keeps the value, which is exact for its rows, and says in `interval_reason` what an interval takes.
    """
    rows = Rows(values_ns, is_failed, stretches)
    return [_quantile(rows, q) for q in qs]


def quantile_values(values_ns: Int64s, qs: Sequence[float], is_failed: Bools | None = None) -> list[Quantile]:
    """As `quantiles`, without intervals: of runs whose spread tells how far the figure strays."""
    rows = Rows(values_ns, is_failed, None)
    return [_value(rows, q) for q in qs]


def pooled_quantile(runs: Sequence[tuple[Int64s, Bools | None]], q: float) -> Quantile:
    """The `q`-quantile of all rows of `runs`, (values_ns, is_failed) each, with an interval from run to run.

    Each run's share of rows at or below the pooled quantile is one figure, free of what goes on within the run; the
    mean of these shares is within Student's interval of q (R - 1 degrees, runs independent and alike), and the order
    statistics of the pooled rows at the ends of it enclose the quantile. Runs of other lengths count by their rows.
    Few runs may happen to agree: the interval is not narrower than a normal one of n / tau rows, tau within runs.
    The mean of the runs' own quantiles is no estimate of the quantile: each is biased, and more runs make the
    interval narrower around the bias (docs/statistics.md). Fewer than 3 runs have no interval.
    """
    lengths = [len(values) for values, _ in runs]
    values_ns = np.concatenate([values for values, _ in runs]) if runs else np.empty(0, dtype=np.int64)
    failed = [
        np.zeros(len(values), np.bool_) if is_failed is None else is_failed for values, is_failed in runs
    ]
    rows = Rows(values_ns, np.concatenate(failed) if runs else None, lengths)
    found = _value(rows, q)
    if found.is_refused:
        return found
    if len(runs) < LEAST_RUNS or not all(lengths):
        return replace(found, interval_reason=_few_runs(lengths))
    is_below = rows.whole.is_below(q)
    sizes = np.array(lengths, dtype=np.int64)
    counts = np.add.reduceat(is_below.astype(np.int64), sizes.cumsum() - sizes)
    # ratio estimator: residuals count - p length (Cochran, Sampling Techniques, 1977, section 6.4)
    residuals = counts - is_below.mean() * sizes
    spread = math.sqrt(len(runs) * float(residuals @ residuals) / (len(runs) - 1))
    within, _ = rows.times(rows.deviations(q), q)
    independent = math.sqrt(rows.n * q * (1.0 - q))
    half = max(
        student_quantile(1.0 - TAIL, len(runs) - 1) * spread, _NORMAL * independent * math.sqrt(within)
    )
    low, high = (rows.at_rank(rank) for rank in _ranks_around(q, rows.n, -half, half))
    tau = max(within, (spread / independent) ** 2)
    return replace(
        found, low_ns=low, high_ns=high, tau_count=tau, n_eff=rows.n / tau, n_blocks=len(runs), method="runs"
    )


def _quantile(rows: Rows, q: float) -> Quantile:
    found = _value(rows, q)
    if found.is_refused:
        return found
    series = rows.deviations(q)
    tau, longest = rows.times(series, q)
    n_blocks = n_blocks_of(rows.n, longest)
    if reason := _too_short(rows, q, n_blocks):
        return replace(found, tau_count=tau, n_eff=rows.n / tau, interval_reason=reason)
    drawn = draw(series, n_blocks)
    tau = max(tau, float(drawn.counts.var()) / (rows.n * q * (1.0 - q)))
    low, high = (rows.at_rank(rank) for rank in _bootstrap_ranks(drawn, rows.n, q, tau))
    return replace(
        found,
        low_ns=low,
        high_ns=high,
        tau_count=tau,
        n_eff=rows.n / tau,
        n_blocks=n_blocks,
        method="block bootstrap",
    )


def _value(rows: Rows, q: float) -> Quantile:
    """The quantile without an interval."""
    if not 0.0 < q < 1.0:
        raise AnalysisError(f"a quantile lies between 0 and 1, not at {q}")
    n = rows.n
    n_failed = n - int(np.searchsorted(rows.whole.sorted_ns, INFINITE_NS))
    if n < smallest_n(q):
        reason = f"{n} rows cannot carry p{100 * q:g}: it takes {smallest_n(q)}"
        return Quantile(q, n, n_failed, float(n), None, None, None, is_refused=True, reason=reason)
    value_ns = rows.at_rank(nearest_rank(q, n))
    if value_ns is None:
        reason = f"{n_failed} of {n} rows failed, and a failure is infinitely slow"
        return Quantile(q, n, n_failed, float(n), None, None, None, is_infinite=True, reason=reason)
    return Quantile(q, n, n_failed, float(n), value_ns, None, None)


def _too_short(rows: Rows, q: float, n_blocks: int) -> str:
    """Why the run is too short for an interval; empty if it is not. A stretch wholly on one side of the quantile has
    no part in how far its count strays, and does not count."""
    times = spells = 0.0
    first = 0
    is_below = rows.whole.is_below(q)
    for length, median_time in zip(rows.lengths, rows.median_times, strict=True):
        n_below = np.count_nonzero(is_below[first : first + length])
        first += length
        if 0 < n_below < length:
            times += length / median_time
            spells += (n_below if q < 0.5 else length - n_below) / median_time
    why = "repeat it or make it longer"
    if not times:
        return f"no part of the run has rows on both sides of p{100 * q:g}"
    if times < LEAST_TIMES:
        return f"the run holds {times:.0f} autocorrelation times, an interval takes {LEAST_TIMES}: {why}"
    if round(spells) < LEAST_SPELLS:
        return (
            f"of the run's {times:.0f} autocorrelation times {spells:.0f} are beyond p{100 * q:g}, an interval takes "
            f"{LEAST_SPELLS}: {why}"
        )
    if n_blocks < LEAST_BLOCKS:
        return f"the run holds {n_blocks} blocks of ten autocorrelation times, an interval takes {LEAST_BLOCKS}: {why}"
    return ""


def _bootstrap_ranks(drawn: Draws, n: int, q: float, tau: float) -> Ranks:
    """Ranks of the interval's ends from how far the drawn counts stray; see the module."""
    found = float(drawn.counts.std())
    if found < _ROUNDING_COUNT:  # what varies is in the rows that fill no bin, or comes at equal steps
        return interval_ranks(q, n, n / tau)
    degrees = max(1.0, min(drawn.degrees, n * min(q, 1.0 - q) / tau))
    widened = student_quantile(1.0 - TAIL, degrees) / _NORMAL
    widened *= max(1.0, math.sqrt(n * q * (1.0 - q) * tau) / found)
    low, high = np.quantile(drawn.counts, [TAIL, 1.0 - TAIL]).tolist()
    return _ranks_around(q, n, widened * low, widened * high)


def _ranks_around(q: float, n: int, below: float, above: float) -> Ranks:
    """The ranks that enclose counts from q n + `below` to q n + `above`, `below` being negative."""
    low = math.floor(q * n + below)
    high = math.ceil(q * n + above) + 1
    return low if low >= 1 else None, high if high <= n else None


def _few_runs(lengths: list[int]) -> str:
    if len(lengths) < LEAST_RUNS:
        return f"an interval over runs takes {LEAST_RUNS}, there are {len(lengths)}: repeat the run"
    return f"{lengths.count(0)} of {len(lengths)} runs have no rows"
