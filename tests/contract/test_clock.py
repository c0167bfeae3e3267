"""What every clock does: the real one and those that tests hand in."""

from __future__ import annotations

import pytest

from squall.actors.clock import Clock, SystemClock
from tests.fakes import DriftingClock, FakeClock
from tests.unit.actors.sampling.gpu.test_gpu import TickingClock
from tests.unit.actors.sampling.test_sampler import SteppingClock
from tests.unit.actors.test_host_threads import StillClock

CLOCKS: list[Clock] = [
    SystemClock(),
    FakeClock(5),
    DriftingClock(-7, 500, 0),
    DriftingClock(7, -500, 0),
    StillClock(),
    SteppingClock(),
    TickingClock(),
]


@pytest.mark.parametrize("clock", CLOCKS, ids=lambda clock: type(clock).__name__)
def test_a_clock_gives_whole_nanoseconds_and_never_goes_back(clock: Clock) -> None:
    reads = [clock.monotonic_ns() for _ in range(1_000)]
    assert all(type(read) is int for read in reads)
    assert reads == sorted(reads)
