"""What the screen says of senders that got less than was asked for."""

from __future__ import annotations

from typing import Any

from cluster.client_workers import told_of_scheduling


def worker(policy: str, niceness: int, why: str) -> dict[str, Any]:
    return {"worker": 0, "scheduling": {"policy": policy, "niceness": niceness, "why_less": why}}


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
