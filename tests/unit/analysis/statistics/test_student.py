"""Student's quantiles and tails against scipy's law; means with their intervals against its t-test."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from scipy import stats

from squall.analysis.statistics.queueing import Queue
from squall.analysis.statistics.student import Mean, mean_of, student_quantile, student_tail
from squall.analysis.statistics.tolerance import tolerance_factor


@pytest.mark.parametrize("degrees", [1, 2, 7.5, 1e7])
def test_quantiles_and_tails_are_those_of_the_law(degrees: float) -> None:
    for p in (0.52, 0.975, 0.999):
        t = student_quantile(p, degrees)
        assert t == pytest.approx(stats.t.ppf(p, degrees), rel=1e-9)
        assert student_tail(t, degrees) == pytest.approx(1 - p, rel=1e-9)
    assert (student_tail(0.0, degrees), student_tail(math.inf, degrees)) == (0.5, 0.0)


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


@pytest.mark.parametrize(
    "made",
    [
        lambda: student_quantile(0.5, 3), lambda: student_quantile(0.9, 0), lambda: student_tail(-1.0, 3),
        lambda: tolerance_factor(1), lambda: tolerance_factor(5, 0.4), lambda: tolerance_factor(5, 0.9, 1.0),
        lambda: Queue("exponential", 1, 1.0, 1), lambda: Queue("exponential", 0, 0.5, 1),
        lambda: Queue("constant", 2, 0.5, 1), lambda: Queue("constant", 1, 0.5, 1).response_quantile(1.0),
    ],
)  # fmt: skip
def test_what_has_no_such_figure_is_refused(made: Callable[[], object]) -> None:
    with pytest.raises(
        ValueError, match=r"no quantile|no tail|no tolerance factor|load|lane|between 0 and 1"
    ):
        made()
