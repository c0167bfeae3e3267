"""What every clock of an nsys report does with its instants."""

from __future__ import annotations

import numpy as np
import pytest

from squall.analysis.clocks.track import ClockTrack
from squall.analysis.nsys.tables import Clock
from tests.h200_runs import Shifted

KNOTS = np.array([0, 10**9, 3 * 10**9])
CLOCKS: dict[str, Clock] = {
    "constant": ClockTrack.constant(-5),
    "drifting": ClockTrack(KNOTS, np.array([5, 900, 400]), np.zeros(3, np.int64)),
    "shifted, of tests": Shifted(),
}
INSTANTS = np.arange(-(10**9), 5 * 10**9, 10**7)


@pytest.mark.parametrize("name", CLOCKS)
def test_instants_stay_whole_and_in_order_and_what_is_given_is_left_alone(name: str) -> None:
    given = INSTANTS.copy()
    found = CLOCKS[name].convert(given)
    assert found.dtype == np.int64
    assert found.shape == given.shape
    assert (np.diff(found) > 0).all()
    assert np.array_equal(given, INSTANTS)
    # each for itself, whatever stands beside it
    assert CLOCKS[name].convert(given[7:8]).tolist() == found[7:8].tolist()
    assert CLOCKS[name].convert(given[:0]).shape == (0,)
