"""What the names of columns say: an instant at the begin or at the end of a request, a duration, a unit, a session."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from squall.scenarios.traces.parts.options import TraceUnit

Side = Literal["begin", "end", "unknown"]

BEGIN_NAMES = (
    "scheduled", "arrival", "arrival_time", "arrival_timestamp", "arrived_at", "received_at", "request_creation_time",
    "request_timestamp", "request_start", "request_start_time", "request_time", "requested_at", "submitted_at",
    "submit_time", "accept_date", "sent", "sent_at", "start_utc", "start_local", "start_time", "start_timestamp",
    "start_ts", "started_at", "time_start", "start", "begin_time", "begin", "event_start",
    "timestamp_ns",
)  # fmt: skip
"""Names of begins; `timestamp_ns` is what squall writes itself. Of two that differ the earlier is the arrival."""
END_NAMES = (
    "msec", "time_iso8601", "time_local", "end_timestamp", "end_time", "end_ts", "end", "ended_at", "finish_time",
    "finished_at", "completion_time", "completed_at", "done", "response_timestamp", "response_time", "event_end",
)  # fmt: skip
NEUTRAL_NAMES = (
    "timestamp", "@timestamp", "time", "ts", "stamp", "unix_time", "datetime", "date_time", "event_time",
)  # fmt: skip
WEAK_NAMES = ("epoch", "offset")
"""Of instants only where there is no other: a shipper's offset is a place in a file."""

DURATION_NAMES = (
    "request_time", "duration", "request_duration", "total_time", "time_total", "time_taken", "response_time",
    "latency",
    "elapsed", "elapsed_time", "took", "rt", "dur", "runtime", "run_time", "service_time", "execution_time",
    "exec_time",
    "processing_time", "process_time", "turnaround_time", "response_latency", "total_duration", "total_latency",
    "event_duration", "httprequest_latency", "http_request_latency",
)  # fmt: skip
_DURATION_WORDS = {"duration", "elapsed", "latency", "took", "taken", "ttfb", "runtime", "rtt"}
_PART_WORDS = {
    "upstream", "connect", "connection", "header", "queue", "queued", "first", "byte", "ttfb", "ssl", "tls",
    "dns", "backend", "origin",
    "target", "wait", "waiting", "handshake", "overhead", "idle", "read", "write", "proxy", "urt", "uct", "uht", "rtt",
}  # fmt: skip
"""Words of a duration that is a part of a request's."""
_PART_NAMES = ("urt", "uct", "uht")

_STAMP_ENDS = {
    "time", "timestamp", "ts", "date", "datetime", "at", "stamp", "utc", "local", "iso8601", "epoch", "instant",
    "start", "begin", "end",
}  # fmt: skip
_BEGIN_WORDS = {
    "start", "started", "begin", "began", "arrival", "arrived", "received", "request", "requested", "accept",
    "accepted", "submit", "submitted", "sent",
}  # fmt: skip
_END_WORDS = {
    "end", "ended", "finish", "finished", "complete", "completed", "completion", "done", "response", "close", "closed",
    "stop", "stopped",
}  # fmt: skip
_OTHER_WORDS = {
    "birth", "modified", "update", "updated", "expire", "expires", "expiry", "valid", "build", "receive", "ingest",
    "ingested", "ingestion", "index", "indexed", "upload", "deadline", "last", "next", "session", "user", "boot",
    "deploy", "deployed", "container", "pod", "process", "token", "certificate",
}  # fmt: skip
"""Words of instants that are not a request's own: `receiveTimestamp` is when a log store had the line."""

SESSION_NAMES = (
    "session", "session_id", "sessionid", "conversation_id", "chat_id", "client_id", "client", "user_id", "user",
    "host",
)  # fmt: skip
_UNIT_WORDS: dict[str, TraceUnit] = {
    "ns": "ns", "nanos": "ns", "nanosecond": "ns", "nanoseconds": "ns", "us": "us", "usec": "us", "micros": "us",
    "microsecond": "us", "microseconds": "us", "ms": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms",
    "s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s",
}  # fmt: skip


def plain_name(name: str) -> str:
    """`name` in small letters with `_` between its words: `startUTC`, `start-utc` and `Start UTC` are `start_utc`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^a-z0-9@]+", "_", split.lower()).strip("_")


def stamp_side(name: str) -> tuple[Side, bool] | None:
    """Which end of a request an instant of this name is, and whether it is one of the listed names; None for none.

    A name that is not listed is an instant's only where its values are dates or count from 1970.
    """
    plain, flat = plain_name(name), plain_name(name.lower())
    for names, side in ((BEGIN_NAMES, "begin"), (END_NAMES, "end"), (NEUTRAL_NAMES + WEAK_NAMES, "unknown")):
        if {plain, flat, _without_unit(plain)} & set(names) or flat in {
            one.replace("_", "") for one in names
        }:
            return side, True  # type: ignore[return-value]
    words = _without_unit(plain).split("_")
    if words[-1].lstrip("@") not in _STAMP_ENDS and not {"time", "timestamp"} & set(words):
        return None
    if _OTHER_WORDS & set(words):
        return None
    if _BEGIN_WORDS & set(words):
        return "begin", False
    return ("end" if _END_WORDS & set(words) else "unknown"), False


def is_weak(name: str) -> bool:
    """Whether the name is an instant's only where there is no other."""
    return _without_unit(plain_name(name)) in WEAK_NAMES


def stamp_column(names: Sequence[str]) -> str | None:
    """The first name that is listed as an instant's, with or without a unit's ending."""
    return next((name for name in names if (stamp_side(name) or ("", False))[1]), None)


def duration_of(name: str) -> Literal["total", "part"] | None:
    """Whether numbers under this name are durations of requests, or of a part of them; None for neither."""
    plain = _without_unit(plain_name(name))
    words = set(plain.split("_"))
    if plain in DURATION_NAMES or plain.replace("_", "") in {one.replace("_", "") for one in DURATION_NAMES}:
        return "total"
    is_time = bool(words & _DURATION_WORDS) or plain in _PART_NAMES
    is_time = is_time or (plain.endswith("_time") and bool(words & (_PART_WORDS | {"total", "processing"})))
    if not is_time:
        return None
    return "part" if words & _PART_WORDS else "total"


def session_column(names: Sequence[str]) -> str | None:
    """The name that is a session's, the earliest of `SESSION_NAMES`."""
    by_plain = {_lower(name): name for name in reversed(names)}
    return next((by_plain[wanted] for wanted in SESSION_NAMES if wanted in by_plain), None)


def unit_of_name(name: str) -> TraceUnit | None:
    """The unit that a name states by its ending (`sent_ns`, `durationMs`), or by its word (`unix_time` is in s)."""
    plain = plain_name(name)
    if plain in ("unix_time", "msec"):  # nginx's $msec is in s, to the ms
        return "s"
    head, _, last = plain.rpartition("_")
    return _UNIT_WORDS.get(last) if head else None


def _lower(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _without_unit(plain: str) -> str:
    head, _, last = plain.rpartition("_")
    return head if head and last in _UNIT_WORDS else plain
