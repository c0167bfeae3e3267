"""What every rate path does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.contract.processes import HORIZON_NS, PATHS

N_DRAWS = 25
N_CELLS = 4_000
PARTS = (HORIZON_NS * 3 // 8, HORIZON_NS // 2, HORIZON_NS)


@pytest.mark.parametrize("horizon_ns", [1, HORIZON_NS // 3, HORIZON_NS])
@pytest.mark.parametrize("name", PATHS)
def test_a_draw_covers_the_horizon_and_its_area_never_falls(name: str, horizon_ns: int) -> None:
    curve = PATHS[name].draw(np.random.default_rng(1), horizon_ns)
    assert curve.edges_ns.shape == curve.cum.shape
    assert curve.edges_ns[0] == curve.cum[0] == 0
    assert curve.edges_ns[-1] >= horizon_ns
    assert (np.diff(curve.edges_ns) > 0).all()
    assert (np.diff(curve.cum) >= 0).all()
    again = PATHS[name].draw(np.random.default_rng(1), horizon_ns)
    assert np.array_equal(curve.cum, again.cum)
    assert np.array_equal(curve.edges_ns, again.edges_ns)


@pytest.mark.parametrize("name", PATHS)
def test_the_area_is_the_integral_of_the_level_and_of_mean_1(name: str) -> None:
    path, cell_ns = PATHS[name], HORIZON_NS // N_CELLS
    levels = path.level(np.arange(N_CELLS, dtype=np.int64) * cell_ns + cell_ns // 2)
    assert levels.shape == (N_CELLS,)
    assert (levels >= 0).all()
    assert path.area_ns(0) == 0
    assert path.area_ns(HORIZON_NS) == HORIZON_NS
    for part_ns in PARTS:
        area_ns = float(levels[: part_ns // cell_ns].sum()) * cell_ns
        # a cell with a jump in it is off by no more than its highest level
        assert path.area_ns(part_ns) == pytest.approx(area_ns, abs=30 * float(levels.max()) * cell_ns)


@pytest.mark.parametrize("name", PATHS)
def test_draws_have_the_area_that_is_expected(name: str) -> None:
    rng = np.random.default_rng(3)
    curves = [PATHS[name].draw(rng, HORIZON_NS) for _ in range(N_DRAWS)]
    for part_ns in PARTS:
        areas = np.array([np.interp(part_ns, curve.edges_ns, curve.cum) for curve in curves])
        error_ns = 5 * float(areas.std()) / math.sqrt(N_DRAWS)
        # of a sloping curve the chord between edges is not the curve: within a piece of it
        within_ns = float(np.diff(curves[0].cum).max()) if curves[0].begins is not None else 0.0
        assert areas.mean() == pytest.approx(PATHS[name].area_ns(part_ns), abs=error_ns + within_ns + 10)
