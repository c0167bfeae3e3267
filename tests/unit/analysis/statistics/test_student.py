"""Student's quantiles and tails against scipy's law; means with their intervals against its t-test."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from squall.analysis.statistics.student import Mean, mean_of, student_quantile, student_tail


@pytest.mark.parametrize("degrees", [1, 2, 7.5, 1e7])
def test_quantiles_and_tails_are_those_of_the_law(degrees: float) -> None:
    for p in (0.52, 0.975, 0.999):
        t = student_quantile(p, degrees)
        assert t == pytest.approx(stats.t.ppf(p, degrees), rel=1e-9)
        assert student_tail(t, degrees) == pytest.approx(1 - p, rel=1e-9)
    assert (student_tail(0.0, degrees), student_tail(math.inf, degrees)) == (0.5, 0.0)


@pytest.mark.parametrize(("probability", "degrees"), [(0.5, 3), (1.0, 3), (0.2, 3), (0.9, 0), (math.nan, 3)])
def test_what_has_none_is_refused(probability: float, degrees: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(probability, degrees)
    with pytest.raises(ValueError, match="no tail of -1"):
        student_tail(-1.0, 3)


def test_a_mean_has_the_interval_and_the_p_value_of_the_t_test() -> None:
    values = [1.0, 2.0, 3.0, 3.5]
    found, expected = mean_of(values), stats.ttest_1samp(values, 0.0)
    low, high = expected.confidence_interval(0.95)
    assert (found.n, found.mean - found.half(0.05), found.mean + found.half(0.05)) == pytest.approx(
        (4, low, high)
    )
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize(("mean", "p_value"), [(0.0, 1.0), (1e-17, 1.0), (0.1, 0.0)])
def test_values_that_repeat_to_the_last_digit_have_a_certain_p_value(mean: float, p_value: float) -> None:
    assert Mean(4, mean, 1e-17).p_value == p_value
