"""Fixed rate paths: the shape that the words say, exact areas, and instants that invert them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from squall.scenarios.arrays import Floats
from squall.scenarios.arrivals.curve import FixedPath, piecewise, steps
from tests.many_examples import examples

S = 1_000_000_000

levels_st = st.lists(st.floats(0.01, 100) | st.just(0.0), min_size=1, max_size=20).map(tuple)


@st.composite
def fixed_paths(draw: st.DrawFn) -> FixedPath:
    """Steps, slopes and repeats, of any scale."""
    levels = draw(levels_st)
    bin_ns = draw(st.integers(1, 100 * S))
    horizon_ns = draw(st.integers(1, 300 * S))
    assume(horizon_ns / bin_ns < 1e4)
    if draw(st.booleans()):
        assume(any(levels[: math.ceil(horizon_ns / bin_ns)]))
        return steps(levels, bin_ns, horizon_ns)
    points = tuple((index * bin_ns, level) for index, level in enumerate(levels))
    assume(any(levels[: 1 + math.ceil(horizon_ns / bin_ns)]) and (levels[0] > 0 or horizon_ns > bin_ns / 100))
    return piecewise(points, horizon_ns)


@given(fixed_paths(), st.lists(st.floats(0, 0.999999), min_size=1, max_size=50))
@examples(80)
def test_instants_invert_areas(path: FixedPath, shares: list[float]) -> None:
    """area(invert(a)) = a, to the rounding of a float: 1e-9 of the whole."""
    horizon_ns = path.horizon_ns
    curve = path.curve(horizon_ns)
    areas = np.sort(np.array(shares)) * path.area_ns(horizon_ns)
    instants = areas.copy()
    curve.invert(instants)
    assert (np.diff(instants) >= 0).all()
    assert (instants >= 0).all()
    assert (instants <= horizon_ns * (1 + 1e-9) + 1).all()
    # area_ns takes whole ns: between two of them the area moves by the level at most
    top = float(max(path.begins.max(), path.ends.max())) * path._scale
    found = [path.area_ns(math.floor(t)) for t in instants.tolist()]
    assert (np.abs(np.array(found) - areas) <= top * 1.01 + 1e-9 * horizon_ns).all()


def test_two_areas_next_to_each_other_keep_their_order_where_the_level_rises() -> None:
    """Found by Hypothesis: the roots of the two were rounded past each other."""
    path = piecewise(((0, 0.0), (184_380, 0.0), (368_760, 1.0)), 368_049)
    areas = np.array([0.9999989999999999, 0.999999]) * path.area_ns(368_049)
    assert areas[0] < areas[1]
    path.curve(368_049).invert(areas)
    assert areas[0] <= areas[1]


@given(fixed_paths())
@examples(60)
def test_the_area_is_the_horizon_and_the_integral_of_the_level(path: FixedPath) -> None:
    horizon_ns = path.horizon_ns
    assert path.area_ns(horizon_ns) == horizon_ns
    assert path.area_ns(0) == 0
    edges = np.unique(np.concatenate([path.curve(horizon_ns).edges_ns, [horizon_ns]]))
    edges = edges[edges <= horizon_ns].astype(np.int64)
    middles = (edges[1:] + edges[:-1]) / 2
    # the level is linear between the edges: the value in the middle is the mean
    integral = np.concatenate([[0.0], np.cumsum(path.level(middles) * np.diff(edges))])
    areas = [path.area_ns(int(edge)) for edge in edges]
    assert areas == pytest.approx(integral.tolist(), rel=1e-6, abs=1e-6 * horizon_ns)


def test_a_longer_horizon_repeats_the_curve_and_a_shorter_one_cuts_it() -> None:
    t_ns = np.arange(6) * S
    assert steps((1.0, 3.0), S, 6 * S).level(t_ns) * 2 == pytest.approx([1.0, 3.0, 1.0, 3.0, 1.0, 3.0])
    assert steps((1.0, 3.0, 100.0), S, 2 * S).level(t_ns[:2]) * 2 == pytest.approx([1.0, 3.0])


def test_where_the_level_is_0_no_instant_lies() -> None:
    curve = steps((0.0, 1.0, 0.0, 0.0, 2.0, 0.0), S, 6 * S).curve(6 * S)
    instants: Floats = np.linspace(0, 6 * S, 10_001)[1:-1]
    curve.invert(instants)
    seconds = np.unique(np.floor(instants / S))
    assert set(seconds.tolist()) <= {1.0, 4.0}
    assert (np.floor(instants / S) == 4).mean() == pytest.approx(2 / 3, abs=1e-3)


def test_a_curve_that_is_0_over_the_whole_stretch_is_refused() -> None:
    with pytest.raises(ValueError, match="the curve is 0 over the whole horizon"):
        steps((0.0, 0.0, 1.0), S, 2 * S)
    with pytest.raises(ValueError, match="the curve is 0 over the whole horizon"):
        piecewise(((0, 0.0), (S, 0.0)), S)
