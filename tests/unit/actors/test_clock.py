from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from squall.actors.clock import Alarm

MS = 1_000_000


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    alarm = Alarm()
    yield alarm
    alarm.close()


def is_due(alarm: Alarm, timeout_s: float = 0) -> bool:
    return bool(select.select([alarm.fd], [], [], timeout_s)[0])


def test_an_alarm_goes_off_and_not_before_its_instant(alarm: Alarm) -> None:
    for step_ns in (MS, 3 * MS, 777_777):
        at_ns = time.monotonic_ns() + step_ns
        alarm.arm(at_ns)
        assert is_due(alarm, 10)
        assert time.monotonic_ns() >= at_ns
        alarm.clear()
        assert not is_due(alarm)


@pytest.mark.parametrize("at_ns", [-5, 0, 1])
def test_an_instant_that_is_past_goes_off_at_once(alarm: Alarm, at_ns: int) -> None:
    alarm.arm(at_ns)
    assert is_due(alarm)


def test_arming_again_replaces_the_instant(alarm: Alarm) -> None:
    alarm.arm(time.monotonic_ns() + 3600 * 1000 * MS)
    alarm.arm(1)
    assert is_due(alarm)
    alarm.arm(time.monotonic_ns() + 3600 * 1000 * MS)
    assert not is_due(alarm)


def test_clearing_an_alarm_that_has_not_gone_off_does_nothing(alarm: Alarm) -> None:
    alarm.clear()
    alarm.arm(1)
    assert is_due(alarm)
