"""What a worker tells a Locust master: Locust takes it as it comes, and whoever reaches the port may tell anything."""

from __future__ import annotations

import math
from typing import Any

_MOST = 10**12
"""No figure of one report is larger."""


def is_sound(kind: object, data: Any) -> bool:
    """Whether a message of that kind can be counted and written like a worker's. Others than those that change
    statistics are Locust's to judge."""
    try:
        match kind:
            case "stats":
                total, entries, errors = data["stats_total"], data["stats"], data["errors"]
                return (
                    all(map(_is_entry, (total, *entries)))
                    and all(_is_text(key) and _is_error(one) for key, one in errors.items())
                    and _are_counts(data["user_classes_count"], _is_text)
                )
            case "spawning_complete":
                return _are_counts(data["user_classes_count"], _is_text)
            case "heartbeat":
                figures = data["current_cpu_usage"], data.get("current_memory_usage", 0)
                return _is_text(data["state"]) and all(map(_is_number, figures))
            case "exception":
                return _is_text(data["msg"]) and _is_text(data["traceback"])
    except (AttributeError, KeyError, TypeError):  # of another shape
        return False
    return True


def _is_entry(one: Any) -> bool:
    texts, counts = ("name", "method"), ("num_requests", "num_none_requests", "num_failures")
    numbers = ("start_time", "total_response_time", "max_response_time", "total_content_length")
    return (
        all(_is_text(one[key]) for key in texts)
        and all(_is_count(one[key]) for key in counts)
        and all(_is_number(one[key]) for key in numbers)
        and all(
            one[key] is None or _is_number(one[key])
            for key in ("last_request_timestamp", "min_response_time")
        )
        and all(
            _are_counts(one[key], _is_number)
            for key in ("response_times", "num_reqs_per_sec", "num_fail_per_sec")
        )
    )


def _is_error(one: Any) -> bool:
    seen = one.get("first_seen"), one.get("last_seen")
    return (
        all(_is_text(one[key]) for key in ("method", "name", "error"))
        and _is_count(one["occurrences"])
        and all(at is None or _is_number(at) for at in seen)
    )


def _are_counts(value: Any, is_key: Any) -> bool:
    return all(is_key(key) and _is_count(n) for key, n in value.items())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= _MOST
