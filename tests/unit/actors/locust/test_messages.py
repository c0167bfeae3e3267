"""What a stranger tells the Locust master: only what can be counted and written is given to Locust."""

from __future__ import annotations

from typing import Any

import pytest

from squall.actors.locust.messages import is_sound

ENTRY: dict[str, Any] = {
    "name": "/", "method": "GET", "last_request_timestamp": None, "start_time": 1.5, "num_requests": 2,
    "num_none_requests": 0, "num_failures": 1, "total_response_time": 3.5, "max_response_time": 2.0,
    "min_response_time": None, "total_content_length": 7, "response_times": {1: 1, 2: 1},
    "num_reqs_per_sec": {9: 2}, "num_fail_per_sec": {},
}  # fmt: skip
ERROR: dict[str, Any] = {"method": "GET", "name": "/", "error": "x", "occurrences": 1, "first_seen": 1.5}


def report(entry: dict[str, Any] | None = None, error: dict[str, Any] | None = None, **other: Any) -> Any:
    said = {"stats": [ENTRY | (entry or {})], "stats_total": ENTRY, "errors": {"a": ERROR | (error or {})}}
    return {**said, "user_classes_count": {"Caller": 5}, **other}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("stats", report()),
        ("spawning_complete", {"user_classes_count": {"Caller": 5}, "user_count": 5}),
        ("heartbeat", {"state": "running", "current_cpu_usage": 12.5, "current_memory_usage": 1 << 30}),
        ("exception", {"msg": "x", "traceback": "y"}),
        ("client_ready", "2.47.0"),
    ],
)
def test_what_workers_say_is_heard(kind: str, data: object) -> None:
    assert is_sound(kind, data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("stats", report({"num_failures": 1.5})),
        ("stats", report({"num_requests": 10**13})),
        ("stats", report({"method": 5})),
        ("stats", report({"total_response_time": float("nan")})),
        ("stats", report({"response_times": {"x": 1}})),
        ("stats", report(error={"occurrences": "x"})),
        ("stats", report(errors={5: ERROR})),
        ("stats", report(stats_total=ENTRY | {"num_failures": -1})),
        ("stats", report(user_classes_count={"Caller": "x"})),
        ("stats", None),
        ("stats", [1]),
        ("spawning_complete", {"user_classes_count": 5}),
        ("heartbeat", {"state": "running", "current_cpu_usage": "x"}),
        ("heartbeat", {}),
        ("exception", {"msg": 5, "traceback": "y"}),
    ],
)
def test_what_cannot_be_counted_is_not(kind: str, data: object) -> None:
    assert not is_sound(kind, data)
