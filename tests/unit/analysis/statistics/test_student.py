"""Student's quantiles and tails against closed forms and the normal distribution; means with their intervals."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from squall.analysis.statistics.student import Mean, mean_of, student_quantile, student_tail


def test_it_is_that_of_the_closed_forms_of_one_and_two_degrees() -> None:
    for p in np.linspace(0.52, 0.999, 20):
        t_1, t_2 = math.tan(math.pi * (p - 0.5)), (2 * p - 1) / math.sqrt(2 * p * (1 - p))
        assert [student_quantile(p, n) for n in (1, 2)] == pytest.approx([t_1, t_2], rel=1e-11)
        assert [student_tail(t_1, 1), student_tail(t_2, 2)] == pytest.approx([1 - p, 1 - p], rel=1e-9)


def test_of_many_degrees_it_is_the_normal_one() -> None:
    z, degrees = NormalDist().inv_cdf(0.975), 1e7
    expected = z + (z**3 + z) / (4 * degrees)  # Abramowitz and Stegun 26.7.5
    assert student_quantile(0.975, degrees) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(("probability", "degrees"), [(0.5, 3), (1.0, 3), (0.2, 3), (0.9, 0), (math.nan, 3)])
def test_what_has_none_is_refused(probability: float, degrees: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(probability, degrees)


def test_the_tail_begins_at_a_half_and_ends_at_none() -> None:
    assert (student_tail(0.0, 3), student_tail(math.inf, 3)) == (0.5, 0.0)
    with pytest.raises(ValueError, match="no tail of -1"):
        student_tail(-1.0, 3)


def test_a_mean_has_the_interval_and_the_p_value_of_the_t_test() -> None:
    found = mean_of([1.0, 2.0, 3.0])
    assert (found.n, found.mean, found.spread) == (3, 2.0, 1.0)
    assert found.half(0.05) == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    # t = 2 sqrt(3) with 2 degrees: p = 1 - t / sqrt(2 + t^2)
    assert found.p_value == pytest.approx(1 - math.sqrt(12 / 14), rel=1e-9)


@pytest.mark.parametrize(("mean", "p_value"), [(0.0, 1.0), (1e-17, 1.0), (0.1, 0.0)])
def test_values_that_repeat_to_the_last_digit_have_a_certain_p_value(mean: float, p_value: float) -> None:
    assert Mean(4, mean, 1e-17).p_value == p_value
