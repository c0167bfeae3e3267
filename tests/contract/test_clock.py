"""What every clock does: the real one and the fake that tests hand in."""

from __future__ import annotations

import pytest

from squall.actors.clock import Clock, SystemClock
from tests.fakes import FakeClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock(5)], ids=["system", "fake"])
def test_a_clock_gives_whole_nanoseconds_and_never_goes_back(clock: Clock) -> None:
    reads = [clock.monotonic_ns() for _ in range(1_000)]
    assert all(type(read) is int for read in reads)
    assert reads == sorted(reads)
