"""What the screen says of senders that got less than was asked for."""

from __future__ import annotations

from squall.analysis.storage.deployed import WorkerFacts
from squall.cluster.driver.client_workers import told_of_scheduling
from squall.scenarios.records import SenderScheduling


def worker(policy: str, niceness: int, why: str) -> WorkerFacts:
    got = SenderScheduling(policy=policy, realtime_priority=0, niceness=niceness, why_less=why)
    return WorkerFacts(worker=0, node="node-0", scheduling=got)


def test_what_was_asked_for_and_got_is_not_worth_a_line() -> None:
    assert told_of_scheduling([worker("fifo", 0, ""), worker("other", 0, "")]) == []


def test_each_reason_is_told_once_with_its_workers() -> None:
    refused = "no CAP_SYS_NICE, and RLIMIT_RTPRIO is 0"
    lines = told_of_scheduling(
        [
            worker("other", 0, refused),
            worker("fifo", 0, "core 9: Invalid argument"),
            worker("other", 0, refused),
        ]
    )
    assert lines == [
        f"2 workers send at niceness 0, not in real time: {refused}",
        "1 worker sends at real-time priority: core 9: Invalid argument",
    ]
