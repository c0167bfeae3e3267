"""What every process of rate 1 does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.scenarios.arrivals.unit import UnitProcess
from tests.contract.processes import UNITS

N_RUNS = 60
LENGTH = 20.0


@given(st.sampled_from(list(UNITS.values())), st.integers(0, 2**32), st.floats(0, 300))
@settings(max_examples=30)
def test_points_are_sorted_and_inside_the_axis(process: UnitProcess, seed: int, length: float) -> None:
    points = process.points(np.random.default_rng(seed), length)
    assert points.dtype == np.float64
    assert (np.diff(points) >= 0).all()
    assert points.size == 0 or (points[0] >= 0 and points[-1] <= length)
    assert np.array_equal(points, process.points(np.random.default_rng(seed), length))


@pytest.mark.parametrize("name", UNITS)
def test_an_axis_without_length_has_no_point(name: str) -> None:
    assert UNITS[name].points(np.random.default_rng(1), 0.0).shape == (0,)


@pytest.mark.parametrize("name", UNITS)
def test_one_point_is_expected_for_each_unit_from_the_start_on(name: str) -> None:
    rng = np.random.default_rng(2)
    runs = [UNITS[name].points(rng, LENGTH) for _ in range(N_RUNS)]
    for begin, end in ((0.0, 2.0), (0.0, LENGTH)):
        counts = np.array([((run >= begin) & (run < end)).sum() for run in runs])
        # standard error of the mean count by the dispersion of the counts themselves
        assert counts.mean() == pytest.approx(end - begin, abs=5 * float(counts.std()) / math.sqrt(N_RUNS))
