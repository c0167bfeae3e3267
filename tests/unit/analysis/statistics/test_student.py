"""Student's quantiles against scipy's, closed forms and the normal distribution."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from scipy.special import stdtr, stdtrit

from squall.analysis.statistics.student import student_quantile, student_tail

DEGREES = (0.5, 1, 1.5, 2, 4.7, 10, 20.2, 59.9, 60, 60.1, 99.5, 1_000, 12_345.6)


@pytest.mark.parametrize("probability", [0.6, 0.75, 0.9, 0.95, 0.975, 0.99, 0.9999])
def test_it_is_scipys(probability: float) -> None:
    found = [student_quantile(probability, degrees) for degrees in DEGREES]
    assert found == pytest.approx(stdtrit(DEGREES, probability), rel=1e-12)


def test_it_is_that_of_the_closed_forms_of_one_and_two_degrees() -> None:
    for p in np.linspace(0.52, 0.999, 20):
        assert student_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-12)
        assert student_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-12)


@pytest.mark.parametrize("degrees", [1e7, 1e12])
def test_of_many_degrees_it_is_the_normal_one(degrees: float) -> None:
    z = NormalDist().inv_cdf(0.975)
    expected = z + (z**3 + z) / (4 * degrees)  # Abramowitz and Stegun 26.7.5
    assert student_quantile(0.975, degrees) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("probability", "degrees"), [(0.5, 3), (1.0, 3), (0.2, 3), (0.9, 0), (math.nan, 3)])
def test_what_has_none_is_refused(probability: float, degrees: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(probability, degrees)


def test_the_tail_of_students_distribution() -> None:
    for t, degrees in ((0.1, 1), (1.0, 3), (2.5, 4), (9.0, 7), (40.0, 2)):
        assert student_tail(t, degrees) == pytest.approx(float(stdtr(degrees, -t)), rel=1e-10)
    assert (student_tail(0.0, 3), student_tail(math.inf, 3)) == (0.5, 0.0)
    with pytest.raises(ValueError, match="no tail of -1"):
        student_tail(-1.0, 3)
