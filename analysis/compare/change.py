"""One figure of both sides, pair by pair: its change with an interval, and what that shows.

With a_i and b_i the figures of pair i, D_i = ln(b_i / a_i); of a share D_i = b_i - a_i. What both runs of a pair share,
the schedule above all, cancels in D_i. Over n pairs, with s their standard deviation,

    interval     mean(D) ± t(1 - level / 2, n - 1) s / sqrt(n)                (Student; see `statistics.paired`)
    different    the p-value of mean(D) = 0, corrected for the number of primary figures (Holm), is at most the level
    same         mean(D) ± t(1 - level, n - 1) s / sqrt(n) lies within ±ln(1 + margin): two one-sided tests (Schuirmann
                 1987, J. Pharmacokin. Biopharm. 15(6)); of a share within ±`SHARE_MARGIN`
    undecided    neither, with the number of further pairs after which one of them would hold, were mean and s to stay

A quantile that falls on failures is infinite. Such a pair stays: the test is then Wilcoxon's on the ranks of D, in
which infinite is the largest, and the interval is of the Walsh averages (D_i + D_j) / 2 (Hodges and Lehmann 1963, Ann.
Math. Statist. 34(2)). Where both figures are infinite D is 0, and `same` is out of reach.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.statistics.student import Mean, mean_of
from squall.scenarios.records import Frozen

DIFFERENT, SAME, UNDECIDED = "different", "same", "undecided"
SHARE_MARGIN = 0.001
"""Of a share of requests: one in a thousand."""
LEAST_RANKED = 6
"""Of fewer pairs no ranks reach 5 %: 2 / 2^5 = 6.25 %."""
_MOST_PAIRS = 100_000
_MANY_RANKS = 50


class Shown(Frozen):
    """What n differences show. `centre`, `low`, `high`: mean and interval, in logarithms or of shares; infinite where
    figures are. `wilcoxon_p`: the second opinion, None below
    `LEAST_RANKED` pairs. `is_within`: the margin, by two one-sided tests."""

    n: int
    centre: float
    low: float
    high: float
    p_value: float
    wilcoxon_p: float | None
    is_within: bool
    spread: float
    by_ranks: bool = False

    @property
    def ratios(self) -> tuple[float | None, float | None, float | None]:
        """Centre and interval of logarithms as ratios; None of what is infinite."""
        centre, low, high = (
            math.exp(end) if math.isfinite(end) else None for end in (self.centre, self.low, self.high)
        )
        return centre, low, high


def differences(a: Sequence[float], b: Sequence[float], is_share: bool = False) -> Floats:
    """(n,) D_i of positive figures, which may be infinite, or of shares."""
    if is_share:
        return np.asarray(b, np.float64) - np.asarray(a, np.float64)
    return np.array([_log_ratio(one, other) for one, other in zip(a, b, strict=True)])


def _log_ratio(a: float, b: float) -> float:
    if math.isinf(a) or math.isinf(b):
        return 0.0 if a == b else math.inf if math.isinf(b) else -math.inf
    return math.log(b / a)


def shown_by(d: Floats, margin: float, level: float, has_infinite: bool = False) -> Shown:
    """What two or more differences show; `margin` in their own unit. `has_infinite`: a figure behind them is."""
    if has_infinite or not np.isfinite(d).all():
        return _by_ranks(d, level)
    found = mean_of(d.tolist())
    centre, half = found.mean, found.half(level)
    is_within = abs(centre) + found.half(2.0 * level) < margin
    return Shown(
        found.n, centre, centre - half, centre + half, found.p_value, wilcoxon_p(d), is_within, found.spread
    )


def wilcoxon_p(d: Floats) -> float | None:
    """Two-sided p-value of Wilcoxon's signed ranks, infinite differences being the largest; None of too few pairs.

    Zeros share their ranks between both signs, so that pairs without a difference tell of none.
    """
    if len(d) < LEAST_RANKED:
        return None
    from scipy import stats

    ranks = np.sign(d) * stats.rankdata(np.abs(d))
    if not ranks.any():
        return 1.0
    return float(stats.wilcoxon(ranks, zero_method="zsplit").pvalue)


def _by_ranks(d: Floats, level: float) -> Shown:
    p = wilcoxon_p(d)
    centre, low, high = walsh_interval(d, level)
    return Shown(len(d), centre, low, high, 1.0 if p is None else p, p, False, math.inf, by_ranks=True)


def walsh_interval(d: Floats, level: float) -> tuple[float, float, float]:
    """Median of the Walsh averages of `d` and its interval; without ends where so few pairs have none."""
    rows, columns = np.triu_indices(len(d))
    with np.errstate(invalid="ignore"):
        averages = (d[rows] + d[columns]) / 2.0
    averages = np.sort(np.where(np.isnan(averages), 0.0, averages))  # +inf and -inf: of no direction
    n_below = _rank_quantile(len(d), level / 2.0)
    middle = float(averages[len(averages) // 2])
    if n_below is None:
        return middle, -math.inf, math.inf
    return middle, float(averages[n_below]), float(averages[len(averages) - 1 - n_below])


def _rank_quantile(n: int, tail: float) -> int | None:
    """The largest k with P(W <= k) <= tail, so that the k-th smallest and largest Walsh averages, from 0, are the
    ends, W being the sum of the positive ranks of n; None where even P(W = 0) is more."""
    if n > _MANY_RANKS:
        from statistics import NormalDist

        middle, variance = n * (n + 1) / 4.0, n * (n + 1) * (2 * n + 1) / 24.0
        return max(0, math.floor(middle + NormalDist().inv_cdf(tail) * math.sqrt(variance)))
    ways = [1]
    for rank in range(1, n + 1):
        longer = [*ways, *[0] * rank]
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    below, allowed, found = 0, tail * 2**n, None
    for total, count in enumerate(ways):
        below += count
        if below > allowed:
            break
        found = total
    return found


def n_more_pairs(shown: Shown, margin: float, level: float, n_primary: int) -> int | None:
    """How many further pairs would decide, were mean and spread to stay as they are: the fewer of those that show a
    difference, at the level that Holm leaves one of `n_primary`, and those that show that it is within the margin."""
    if not math.isfinite(shown.spread):
        return None

    def decides(n: int) -> bool:
        then = Mean(n, abs(shown.centre), shown.spread)
        return then.half(level / n_primary) < then.mean or then.mean + then.half(2.0 * level) < margin

    more = range(1, _MOST_PAIRS - shown.n)
    place = bisect_left(more, True, key=lambda n: decides(shown.n + n))
    return more[place] if place < len(more) else None
