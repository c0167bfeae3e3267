"""What the clock watch is without a network: clock domains, the anchor, and a log of probes."""

from __future__ import annotations

import time

import pytest

from squall.actors.clock import clock_domain, utc_minus_monotonic_ns
from squall.cluster.driver.clock_links import ProbeLog
from squall.cluster.driver.clocksync import ClockWatch


def test_a_process_shares_its_own_clock() -> None:
    assert clock_domain() == clock_domain()


def test_the_anchor_makes_the_monotonic_clock_utc() -> None:
    before_ns = time.time_ns() - time.monotonic_ns()
    anchor_ns = utc_minus_monotonic_ns()
    after_ns = time.time_ns() - time.monotonic_ns()
    # 1 s is far above any pair of reads, and far below any other epoch
    assert min(before_ns, after_ns) - 10**9 <= anchor_ns <= max(before_ns, after_ns) + 10**9


def test_the_drivers_own_nodes_need_no_probe_and_have_no_error() -> None:
    watch = ClockWatch(5_000)
    watch.add_own("node-0")
    watch.settle()
    watch.start()
    watch.burst()
    watch.stop()
    watch.stop()
    track = watch.tracks()["node-0"]
    assert [track.target_ns(7), track.source_ns(5_007), track.largest_error_ns] == [5_007, 7, 0]
    assert (list(watch.probes("r")), watch.losses(), watch.cost()[0]) == ([], [], 0)


def test_a_log_keeps_every_stamp_and_knows_the_least_delay() -> None:
    log = ProbeLog()
    assert (len(log), log.stamps().shape, log.least_delay_ns) == (0, (4, 0), None)
    log.add(10, 1_000, 1_005, 40)
    log.add(50, 1_040, 1_050, 70)
    log.add(80, 1_080, 1_081, 120)
    assert log.stamps().tolist() == [
        [10, 50, 80],
        [1_000, 1_040, 1_080],
        [1_005, 1_050, 1_081],
        [40, 70, 120],
    ]
    assert (len(log), log.least_delay_ns) == (3, 10)


@pytest.mark.parametrize("n", [1, 1_000])
def test_stamps_are_a_copy_that_later_probes_leave_alone(n: int) -> None:
    log = ProbeLog()
    for number in range(n):
        log.add(number, number, number, number)
    before = log.stamps()
    log.add(-1, -1, -1, -1)
    assert before.shape == (4, n)
    assert log.stamps().shape == (4, n + 1)
