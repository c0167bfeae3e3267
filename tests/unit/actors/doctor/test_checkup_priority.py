"""What the doctor says of a node's priorities and of Ray's watchdogs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from squall.actors.doctor.priority import (
    ray_health_checks,
    ray_memory_monitor,
    ray_niceness,
    sending,
    watchdogs,
)
from squall.cluster.remote.session import LOCAL_SETTINGS
from squall.scenarios.records import RayPriority, SenderScheduling
from tests.checkup_hosts import FakeProbes


def test_a_sender_without_real_time_is_told_with_the_mend() -> None:
    assert sending(SenderScheduling(policy="fifo", realtime_priority=1, niceness=0)).status == "ok"
    found = sending(
        SenderScheduling(
            policy="other",
            realtime_priority=0,
            niceness=-5,
            why_less="no CAP_SYS_NICE, and RLIMIT_RTPRIO is 0",
        )
    )
    assert (found.status, "niceness -5" in found.what, "rtprio" in found.mend) == ("limited", True, True)


@pytest.mark.parametrize(
    ("given", "left", "status"),
    [(0, 0, "ok"), (-5, -5, "ok"), (15, 0, "ok"), (15, 15, "limited"), (15, 7, "limited")],
)
def test_niceness_that_ray_gives_matters_where_it_cannot_be_undone(
    given: int, left: int, status: str
) -> None:
    found = ray_niceness(
        RayPriority(niceness_given=given, niceness=left, oom_score_adj_given=1000, oom_score_adj=0)
    )
    assert found.status == status
    assert str(max(given, left) if status == "ok" else left) in found.what


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({}, "limited"),
        ({"RAY_memory_monitor_refresh_ms": "250"}, "limited"),
        ({"RAY_memory_usage_threshold": "0.99"}, "limited"),
        ({"RAY_memory_usage_threshold": "1"}, "ok"),
        ({"RAY_memory_monitor_refresh_ms": "0"}, "ok"),
        (LOCAL_SETTINGS, "ok"),
    ],
)
def test_a_memory_monitor_that_kills_is_told(variables: Mapping[str, str], status: str) -> None:
    assert ray_memory_monitor(FakeProbes(variables=variables)).status == status


@pytest.mark.parametrize(
    ("variables", "status", "what"),
    [
        ({}, "limited", "15 to 50 s"),
        ({"RAY_health_check_failure_threshold": "20"}, "ok", "60 to 200 s"),
        (LOCAL_SETTINGS, "ok", "60 to 1200 s"),
    ],
)
def test_impatient_health_checks_are_told(variables: Mapping[str, str], status: str, what: str) -> None:
    found = ray_health_checks(FakeProbes(variables=variables))
    assert (found.status, what in found.what) == (status, True)


def test_a_run_is_told_of_the_watchdogs_that_may_end_it() -> None:
    assert [what.partition(":")[0] for what in watchdogs(FakeProbes())] == ["memory monitor", "health checks"]
    assert watchdogs(FakeProbes(variables=LOCAL_SETTINGS)) == []
