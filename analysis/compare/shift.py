"""The whole distribution: by how much each quantile of B is beyond that of A, with one band for all of them.

Of each pair ln(Q_p of B / Q_p of A) for p from 1 to 99 %; their mean over pairs is the curve. The band is simultaneous:
pairs, never requests, are drawn with replacement, and c is what the largest deviation of a drawn curve from the curve,
each quantile in its own standard errors, is below in 95 % of draws. Few pairs know their standard errors badly: the
band is as wide as Student's distribution of n - 1 degrees has it at the probability that the normal one has beyond c.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.compare.pairing import Pair
from squall.analysis.compare.run_row import SHIFT_PERCENTS
from squall.analysis.statistics.student import student_quantile
from squall.scenarios.records import Frozen

_N_DRAWS, _SEED = 1_000, 20_261_125
_LEAST_BEYOND = 1e-9
_NEAR = 5
"""Quantiles on either side whose variances are taken together: of few pairs one alone may be far too small."""
LEAST_PAIRS = 4
"""Fewer have no band: too few different draws."""


class Shift(Frozen):
    """(99,) each, changes as ratios - 1; None where a run's requests do not carry the quantile, or it is infinite.
    `low`, `high`: the band, None without `LEAST_PAIRS`."""

    percents: tuple[int, ...]
    change: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


def shift(pairs: Sequence[Pair], level: float) -> Shift:
    """Of no pairs nothing."""
    logs = np.array(
        [
            [_log(one, other) for one, other in zip(pair.a.quantiles_ns, pair.b.quantiles_ns, strict=True)]
            for pair in pairs
        ],
        np.float64,
    ).reshape(len(pairs), len(SHIFT_PERCENTS))
    is_told = ~np.isnan(logs).any(axis=0) & bool(len(pairs))
    found = np.full((3, len(SHIFT_PERCENTS)), np.nan)
    if is_told.any():
        own = logs[:, is_told]
        centre = own.mean(axis=0)
        half = _half_width(own, level) if len(pairs) >= LEAST_PAIRS else math.nan
        found[:, is_told] = np.expm1([centre, centre - half, centre + half])
    change, low, high = (tuple(None if math.isnan(end) else end for end in ends) for ends in found.tolist())
    return Shift(SHIFT_PERCENTS, change, low, high)


def _log(a: float | None, b: float | None) -> float:
    return math.log(b / a) if a is not None and b is not None and a > 0 and b > 0 else math.nan


def _half_width(logs: Floats, level: float) -> Floats:
    """(n_quantiles,): the band's half width at each."""
    n = len(logs)
    variances = np.array(
        [
            logs[:, max(0, at - _NEAR) : at + _NEAR + 1].var(axis=0, ddof=1).mean()
            for at in range(logs.shape[1])
        ]
    )
    errors: Floats = np.maximum(np.sqrt(np.maximum(variances, logs.var(axis=0, ddof=1)) / n), 1e-12)
    rows = np.random.default_rng(_SEED).integers(0, n, (_N_DRAWS, n))
    drawn = logs[rows].mean(axis=1) - logs.mean(axis=0)
    largest = float(np.quantile(np.abs(drawn / errors).max(axis=1), 1.0 - level)) * math.sqrt(n / (n - 1))
    if largest == 0.0:
        return errors
    beyond = max(_LEAST_BEYOND, math.erfc(largest / math.sqrt(2.0)))
    found: Floats = student_quantile(1.0 - beyond / 2.0, n - 1) * errors
    return found
