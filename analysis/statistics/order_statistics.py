"""Which order statistic is a quantile, and which ones enclose it where rows are independent: integer arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Ranks = tuple[int | None, int | None]
"""Of the lower and the upper end of an interval, from 1; None for an end that the rows do not carry."""

TAIL = 0.025
"""Probability outside a two-sided 95 % interval on each side."""


def smallest_n(q: float) -> int:
    """Fewest independent rows with a two-sided 95 % interval for the q-quantile: 72 for p95, 368 for p99.

    The largest of n rows lies below the q-quantile with probability q^n, the smallest above it with (1 -
    q)^n: both must be 0.025 at most.
    """
    return math.ceil(math.log(TAIL) / math.log(max(q, 1.0 - q)))


def nearest_rank(q: float, n: int) -> int:
    """ceil(q n) with q taken as the decimal that was written, so that 0.95 of 20 rows is rank 19, not 20."""
    exact = _as_written(q)
    return max(1, -(-exact.numerator * n // exact.denominator))


@lru_cache
def _as_written(q: float) -> Fraction:
    """Kept: few are asked for, of every worker, window and draw again."""
    return Fraction(q).limit_denominator(10**9)


def binomial_quantile(probability: float, n: int, p: float) -> int:
    """Smallest k with P(Binomial(n, p) <= k) >= probability, for 0 < p < 1. scipy is imported when one is asked for."""
    from scipy.special import bdtr, bdtrik

    k: int = max(0, math.ceil(bdtrik(probability, n, p)))  # off by some of many millions in scipy 1.13
    while k and bdtr(k - 1, n, p) >= probability:
        k -= 1
    while bdtr(k, n, p) < probability:
        k += 1
    return k


def interval_ranks(q: float, n: int, n_eff: float) -> Ranks:
    """Ranks (1-based, of n) of the 95 % interval's ends; None for an end that n_eff rows do not carry."""
    whole = max(1, math.floor(n_eff))
    low = binomial_quantile(TAIL, whole, q)
    high = binomial_quantile(1.0 - TAIL, whole, q) + 1
    low_rank = low * n // whole if low >= 1 else None
    high_rank = min(n, -(-high * n // whole)) if high <= whole else None
    return low_rank, high_rank


def rank_value(values: npt.NDArray[Any], q: float) -> int | None:
    """Nearest-rank quantile of all there are (q = 1 is the largest): it describes, it estimates nothing."""
    if not len(values):
        return None
    rank = nearest_rank(q, len(values)) - 1
    return int(np.partition(values, rank)[rank])
