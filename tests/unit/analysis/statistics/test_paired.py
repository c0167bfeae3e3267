"""The paired interval covers the true ratio as often as it says, under drift too, where other ways do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from squall.analysis.statistics.paired import paired_ratio
from squall.scenarios.errors import AnalysisError

TRUE = math.log(1.03)
NOISE = 0.05
REPEATS = 4_000
SLACK = 4 * math.sqrt(0.95 * 0.05 / REPEATS)
"""Four standard errors of a coverage of 95 % seen in 4,000 repeats: 4 * sqrt(0.95 * 0.05 / 4000) = 1.4 %."""


def coverage(n_pairs: int, drift: np.ndarray, is_turned: bool = True) -> float:
    """How often the interval holds the true ratio. `drift` (REPEATS or 1, 2 n) is added in the order of the runs, whose
    pairs are turned in turn (ABBA) or not (ABAB)."""
    rng = np.random.default_rng(7)
    values = (rng.normal(0.0, NOISE, (REPEATS, 2 * n_pairs)) + drift).reshape(REPEATS, n_pairs, 2)
    if is_turned:
        values[:, 1::2] = values[:, 1::2, ::-1]
    bare, profiled = np.exp(values[:, :, 0]), np.exp(values[:, :, 1] + TRUE)
    found = [paired_ratio(p, b) for p, b in zip(profiled, bare, strict=True)]
    return float(np.mean([one.low <= math.exp(TRUE) <= one.high for one in found]))


@pytest.mark.parametrize("n_pairs", [2, 3, 4, 10])
@pytest.mark.parametrize("per_run", [0.0, 0.02, 0.1])
def test_it_covers_the_true_ratio_in_95_percent_of_repeats_and_under_a_steady_drift_no_less(
    n_pairs: int, per_run: float
) -> None:
    found = coverage(n_pairs, per_run * np.arange(2 * n_pairs)[None, :])
    assert found >= 0.95 - SLACK
    if not per_run:
        assert found <= 0.95 + SLACK


def test_it_is_the_paired_t_interval_of_logarithms_and_the_inverse_where_the_sides_are_swapped() -> None:
    profiled, bare = [1.1, 1.2, 1.0], [1.0, 1.0, 1.1]
    there, back = paired_ratio(profiled, bare), paired_ratio(bare, profiled)
    expected = stats.ttest_rel(np.log(profiled), np.log(bare))
    low, high = np.exp(expected.confidence_interval(0.95))
    ratio = math.exp(np.mean(np.log(np.divide(profiled, bare))))
    assert (there.low, there.ratio, there.high) == pytest.approx((low, ratio, high))
    assert (back.low, back.ratio, back.high) == pytest.approx((1 / high, 1 / ratio, 1 / low))
    assert there.p_value == pytest.approx(expected.pvalue)
    assert (there.n_pairs, there.is_distinguishable) == (3, False)
    same = paired_ratio([2.0, 4.0], [1.0, 2.0])
    assert (same.low, same.ratio, same.high) == pytest.approx((2.0, 2.0, 2.0))
    assert same.is_distinguishable


@pytest.mark.parametrize(
    ("profiled", "bare", "why"),
    [
        ([], [], "takes 2 whole pairs at least, not 0"),
        ([1.0], [1.0], "takes 2 whole pairs at least, not 1"),
        ([1.0, 1.0], [1.0], "two figures each"),
        *(([1.0, bad], [1.0, 1.0], "positive, finite") for bad in (0.0, -1.0, math.inf, math.nan)),
    ],
)
def test_what_carries_no_interval_is_refused(profiled: list[float], bare: list[float], why: str) -> None:
    with pytest.raises(AnalysisError, match=why):
        paired_ratio(profiled, bare)
