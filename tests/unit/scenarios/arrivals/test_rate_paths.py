"""Fixed rate paths: the shape that the words say, exact areas, and instants that invert them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate

from squall.scenarios.arrivals.curve import FixedPath, piecewise, steps
from squall.scenarios.arrivals.process import Floats
from squall.scenarios.arrivals.varying import DiurnalShape, PulsesShape

S = 1_000_000_000

levels_st = st.lists(st.floats(0.01, 100) | st.just(0.0), min_size=1, max_size=20).map(tuple)


def pulses(factor: float, width: str, period: str) -> FixedPath:
    return PulsesShape(kind="pulses", factor=factor, width=width, period=period).fixed(6 * S)


def diurnal(peak: float, peak_at: str, period: str) -> FixedPath:
    return DiurnalShape(kind="diurnal", peak=peak, peak_at=peak_at, period=period).fixed(6 * S)


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
@settings(max_examples=80)
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
@settings(max_examples=60)
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


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        (steps((1.0, 3.0), 2 * S, 6 * S), lambda t: 1.0 if t % 4 < 2 else 3.0),
        (piecewise(((2 * S, 1.0), (4 * S, 3.0)), 6 * S), lambda t: min(max(t - 1, 1.0), 3.0)),
        (piecewise(((0, 1.0), (2 * S, 1.0), (2 * S, 0.0), (5 * S, 3.0)), 6 * S),
         lambda t: 1.0 if t < 2 else min(t - 2, 3.0)),
        (piecewise(((0, 0.5), (20 * S, 2.5)), 6 * S), lambda t: 0.5 + t / 10),
        (piecewise(((0, 2.0), (6 * S, 0.0)), 6 * S), lambda t: 2 - t / 3),
        (piecewise(((3 * S, 1.0),), 6 * S), lambda t: 1.0 + 0 * t),
        (pulses(4.0, "1s", "3s"), lambda t: 4.0 if t % 3 >= 2 else 1.0),
        (diurnal(1.6, "1s", "5s"), lambda t: 1 + 0.6 * math.cos(2 * math.pi * (t - 1) / 5)),
        (diurnal(2.0, "0s", "5s"), lambda t: 1 + math.cos(2 * math.pi * t / 5)),
    ],
)  # fmt: skip
def test_a_path_has_the_levels_of_its_shape_over_its_mean(
    path: FixedPath, raw: Callable[[float], float]
) -> None:
    horizon = path.horizon_ns / S
    mean = integrate.quad(raw, 0, horizon, limit=500, points=[i / 2 for i in range(1, 12)])[0] / horizon
    for t in (0.0, 0.7, 1.9, 2.1, 3.3, 4.4, 5.9):
        found = float(path.level(np.array([round(t * S)]))[0])
        assert found == pytest.approx(raw(t) / mean, abs=2e-4)  # a chord of the cosine is off by 6e-5
        area = (
            integrate.quad(raw, 0, t, limit=500, points=[i / 2 for i in range(1, 12) if i / 2 < t])[0]
            if t
            else 0.0
        )
        assert path.area_ns(round(t * S)) / S == pytest.approx(area / mean, abs=2e-4)


def test_a_longer_horizon_repeats_the_curve_and_a_shorter_one_cuts_it() -> None:
    t_ns = np.arange(6) * S
    assert steps((1.0, 3.0), S, 6 * S).level(t_ns) * 2 == pytest.approx([1.0, 3.0, 1.0, 3.0, 1.0, 3.0])
    assert steps((1.0, 3.0, 100.0), S, 2 * S).level(t_ns[:2]) * 2 == pytest.approx([1.0, 3.0])


def test_a_curve_shifted_by_one_bin_is_another() -> None:
    """What the table above would see: half a bin off is refused by it, too."""
    t_ns = np.arange(6) * S
    assert steps((3.0, 1.0), S, 6 * S).level(t_ns) != pytest.approx(steps((1.0, 3.0), S, 6 * S).level(t_ns))


def test_where_the_level_is_0_no_instant_lies() -> None:
    curve = steps((0.0, 1.0, 0.0, 0.0, 2.0, 0.0), S, 6 * S).curve(6 * S)
    instants: Floats = np.linspace(0, 6 * S, 10_001)[1:-1]
    curve.invert(instants)
    seconds = np.unique(np.floor(instants / S))
    assert set(seconds.tolist()) <= {1.0, 4.0}
    assert (np.floor(instants / S) == 4).mean() == pytest.approx(2 / 3, abs=1e-3)


def test_a_curve_that_is_0_over_the_whole_stretch_is_refused() -> None:
    for make in (
        lambda: steps((0.0, 0.0, 1.0), S, 2 * S),
        lambda: piecewise(((0, 0.0), (S, 0.0)), S),
    ):
        with pytest.raises(ValueError, match="the curve is 0 over the whole horizon"):
            make()
