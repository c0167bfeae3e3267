"""The paired interval covers the true ratio as often as it says, under drift too, where other ways do not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.analysis.statistics.paired import paired_ratio
from squall.analysis.statistics.student import student_quantile
from squall.scenarios.errors import AnalysisError

TRUE = math.log(1.03)
NOISE = 0.05
REPEATS = 4_000
SLACK = 4 * math.sqrt(0.95 * 0.05 / REPEATS)
"""Four standard errors of a coverage of 95 % seen in 4,000 repeats: 4 * sqrt(0.95 * 0.05 / 4000) = 1.4 %."""


def logs(n_pairs: int, drift: np.ndarray, order: str) -> tuple[np.ndarray, np.ndarray]:
    """(REPEATS, n_pairs) of ln profiled and ln bare. `drift` (REPEATS or 1, 2 n) is added in the order of the runs."""
    rng = np.random.default_rng(7)
    values = rng.normal(0.0, NOISE, (REPEATS, 2 * n_pairs)) + drift
    is_profiled = {
        "ABBA": [place != pair % 2 for pair in range(n_pairs) for place in (1, 0)],
        "ABAB": [bool(place) for _ in range(n_pairs) for place in (0, 1)],
    }[order]
    mask = np.array(is_profiled)
    return values[:, mask] + TRUE, values[:, ~mask]


def paired(profiled: np.ndarray, bare: np.ndarray) -> tuple[float, float]:
    """Coverage of the true ratio, and mean width in logarithms, of the interval under test."""
    found = [paired_ratio(np.exp(p), np.exp(b)) for p, b in zip(profiled, bare, strict=True)]
    covered = [one.low <= math.exp(TRUE) <= one.high for one in found]
    return float(np.mean(covered)), float(np.mean([math.log(one.high / one.low) for one in found]))


def unpaired(profiled: np.ndarray, bare: np.ndarray) -> tuple[float, float]:
    """The same for two groups with a common variance (Student's two-sample interval)."""
    n = profiled.shape[1]
    spread = np.sqrt((profiled.var(axis=1, ddof=1) + bare.var(axis=1, ddof=1)) / n)
    half = student_quantile(0.975, 2 * n - 2) * spread
    error = np.abs(profiled.mean(axis=1) - bare.mean(axis=1) - TRUE)
    return float((error <= half).mean()), float(2 * half.mean())


STILL = np.zeros((1, 1))


def linear(n_pairs: int, per_run: float) -> np.ndarray:
    return per_run * np.arange(2 * n_pairs)[None, :]


@pytest.mark.parametrize("n_pairs", [2, 3, 4, 10])
def test_without_drift_it_covers_the_true_ratio_in_95_percent_of_repeats(n_pairs: int) -> None:
    coverage, _ = paired(*logs(n_pairs, STILL, "ABBA"))
    assert abs(coverage - 0.95) <= SLACK


@pytest.mark.parametrize("n_pairs", [2, 3, 4, 10])
@pytest.mark.parametrize("per_run", [0.02, 0.1])
def test_under_a_steady_drift_it_covers_at_least_as_often(n_pairs: int, per_run: float) -> None:
    coverage, _ = paired(*logs(n_pairs, linear(n_pairs, per_run), "ABBA"))
    assert coverage >= 0.95 - SLACK


def test_a_fixed_order_takes_a_drift_for_an_overhead() -> None:
    # each D is too high by 0.05; the half width is 2.262 * 0.05 * sqrt(2) / sqrt(10) = 0.0506 on average
    coverage, _ = paired(*logs(10, linear(10, 0.05), "ABAB"))
    assert coverage < 0.7


def test_an_unpaired_formula_fails_under_drift() -> None:
    # the drift of 20 runs at 2 % each stands in both groups' spread, and not in the difference of their means
    drifting = logs(10, linear(10, 0.02), "ABBA")
    coverage, width = unpaired(*drifting)
    ours, our_width = paired(*drifting)
    assert coverage > 0.95 + SLACK
    assert abs(ours - 0.95) <= 2 * SLACK
    assert width > 1.8 * our_width


def test_a_machine_that_wanders_is_followed_by_pairs_and_not_by_groups() -> None:
    # steps of 20 % between pairs, common to the two runs of a pair
    steps = np.random.default_rng(3).normal(0.0, 0.2, (REPEATS, 10)).cumsum(axis=1)
    wandering = logs(10, np.repeat(steps, 2, axis=1), "ABBA")
    coverage, width = paired(*wandering)
    assert abs(coverage - 0.95) <= SLACK
    assert unpaired(*wandering)[0] > 0.95 + SLACK
    assert unpaired(*wandering)[1] > 4 * width


def test_it_is_the_formula_worked_by_hand() -> None:
    # D = ln 1.1, ln 1.2, ln 1.0: mean 0.092544, s 0.0911923; t(2) at 97.5 % is 4.3027, half width 0.226534
    one = paired_ratio([1.1, 1.2, 1.0], [1.0, 1.0, 1.0])
    assert one.ratio == pytest.approx(1.0969613, rel=1e-6)
    assert math.log(one.high / one.ratio) == pytest.approx(0.226534, abs=1e-6)
    assert math.log(one.ratio / one.low) == pytest.approx(0.226534, abs=1e-6)
    assert not one.is_distinguishable
    assert one.n_pairs == 3


def test_equal_ratios_have_an_interval_of_no_width() -> None:
    one = paired_ratio([2.0, 4.0], [1.0, 2.0])
    assert (one.low, one.ratio, one.high) == pytest.approx((2.0, 2.0, 2.0))
    assert one.is_distinguishable


def test_profiled_and_bare_swapped_give_the_inverse() -> None:
    there, back = paired_ratio([1.1, 1.3], [1.0, 0.9]), paired_ratio([1.0, 0.9], [1.1, 1.3])
    assert (back.low, back.ratio, back.high) == pytest.approx(
        (1 / there.high, 1 / there.ratio, 1 / there.low)
    )


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_pairs_carry_no_interval(n: int) -> None:
    with pytest.raises(AnalysisError, match=f"takes 2 whole pairs at least, not {n}"):
        paired_ratio([1.0] * n, [1.0] * n)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_figures_without_a_logarithm_are_refused(bad: float) -> None:
    with pytest.raises(AnalysisError, match="positive, finite"):
        paired_ratio([1.0, bad], [1.0, 1.0])


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(AnalysisError, match="two figures each"):
        paired_ratio([1.0, 1.0], [1.0])
