"""What the names of columns say: an instant at the begin or at the end of a request, a duration, a unit, a session."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from squall.scenarios.traces.options import TraceUnit

Side = Literal["begin", "end", "unknown"]

# `timestamp_ns` is what squall writes itself. Of two begins that differ the earlier is the arrival.
_BEGIN_NAMES = (
    "scheduled arrival arrival_time arrival_timestamp arrived_at received_at request_creation_time request_timestamp"
    " request_start request_start_time request_time requested_at submitted_at submit_time accept_date sent sent_at"
    " start_utc start_local start_time start_timestamp start_ts started_at time_start start begin_time begin"
    " event_start timestamp_ns"
)
_END_NAMES = (
    "msec time_iso8601 time_local end_timestamp end_time end_ts end ended_at finish_time finished_at completion_time"
    " completed_at done response_timestamp response_time event_end"
)
_WEAK_NAMES = (
    "epoch offset"  # of instants only where there is no other: a shipper's offset is a place in a file
)
_NEUTRAL_NAMES = f"timestamp @timestamp time ts stamp unix_time datetime date_time event_time {_WEAK_NAMES}"
_DURATION_NAMES = (
    "request_time duration request_duration total_time time_total time_taken response_time latency elapsed"
    " elapsed_time took rt dur runtime run_time service_time execution_time exec_time processing_time process_time"
    " turnaround_time response_latency total_duration total_latency event_duration httprequest_latency"
    " http_request_latency"
)


_SIDES: dict[Side, str] = {"begin": _BEGIN_NAMES, "end": _END_NAMES, "unknown": _NEUTRAL_NAMES}
_DURATION_WORDS = "duration elapsed latency took taken ttfb runtime rtt"
_PART_WORDS = (  # of a duration that is a part of a request's
    "upstream connect connection header queue queued first byte ttfb ssl tls dns backend origin target wait waiting"
    " handshake overhead idle read write proxy urt uct uht rtt"
)
_STAMP_ENDS = "time timestamp ts date datetime at stamp utc local iso8601 epoch instant start begin end"
_BEGIN_WORDS = (
    "start started begin began arrival arrived received request requested accept accepted submit submitted"
    " sent"
)
_END_WORDS = "end ended finish finished complete completed completion done response close closed stop stopped"
_OTHER_WORDS = (  # of instants that are not a request's own: `receiveTimestamp` is when a log store had the line
    "birth modified update updated expire expires expiry valid build receive ingest ingested ingestion index indexed"
    " upload deadline last next session user boot deploy deployed container pod process token certificate"
)
_SESSION_NAMES = (
    "session session_id sessionid conversation_id chat_id client_id client user_id user host c_ip"
)
_UNIT_WORDS: dict[TraceUnit, str] = {
    "ns": "ns nanos nanosecond nanoseconds",
    "us": "us usec micros microsecond microseconds",
    "ms": "ms millis millisecond milliseconds",
    "s": "s sec secs second seconds",
}


def plain_name(name: str) -> str:
    """`name` in small letters with `_` between its words: `startUTC`, `start-utc` and `Start UTC` are `start_utc`."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^a-z0-9@]+", "_", split.lower()).strip("_")


def stamp_side(name: str) -> tuple[Side, bool] | None:
    """Which end of a request an instant of this name is, and whether it is one of the listed names; None for none.

    A name that is not listed is an instant's only where its values are dates or count from 1970.
    """
    plain, flat = plain_name(name), plain_name(name.lower())
    bare = _without_unit(plain)
    for side, names in _SIDES.items():
        if {plain, flat, bare} & set(names.split()) or flat in names.replace("_", "").split():
            return side, True
    words = bare.split("_")
    is_stamp = words[-1].lstrip("@") in _STAMP_ENDS.split() or _have(words, "time timestamp")
    if not is_stamp or _have(words, _OTHER_WORDS):
        return None
    return "begin" if _have(words, _BEGIN_WORDS) else "end" if _have(words, _END_WORDS) else "unknown", False


def is_weak(name: str) -> bool:
    """Whether the name is an instant's only where there is no other."""
    return _without_unit(plain_name(name)) in _WEAK_NAMES.split()


def stamp_column(names: Sequence[str]) -> str | None:
    """The first name that is listed as an instant's, with or without a unit's ending."""
    return next((name for name in names if (stamp_side(name) or ("", False))[1]), None)


def duration_of(name: str) -> Literal["total", "part"] | None:
    """Whether numbers under this name are durations of requests, or of a part of them; None for neither."""
    plain = _without_unit(plain_name(name))
    words = plain.split("_")
    if plain.replace("_", "") in _DURATION_NAMES.replace("_", "").split():
        return "total"
    is_part = _have(words, _PART_WORDS)
    is_time = plain.endswith("_time") and (is_part or _have(words, "total processing"))
    if not (is_time or _have(words, _DURATION_WORDS) or plain in ("urt", "uct", "uht")):
        return None
    return "part" if is_part else "total"


def session_column(names: Sequence[str]) -> str | None:
    """The name that is a session's, the earliest of those that are known."""
    by_plain = {name.strip().lower().replace(" ", "_"): name for name in reversed(names)}
    return next((by_plain[known] for known in _SESSION_NAMES.split() if known in by_plain), None)


def unit_of_name(name: str) -> TraceUnit | None:
    """The unit that a name states by its ending (`sent_ns`, `durationMs`), or by its word (`unix_time` is in s)."""
    plain = plain_name(name)
    if plain in ("unix_time", "msec"):  # nginx's $msec is in s, to the ms
        return "s"
    if plain == "event_duration":  # the Elastic Common Schema
        return "ns"
    head, _, last = plain.rpartition("_")
    return next((unit for unit, words in _UNIT_WORDS.items() if head and last in words.split()), None)


def _without_unit(plain: str) -> str:
    head, _, last = plain.rpartition("_")
    return head if head and _have([last], " ".join(_UNIT_WORDS.values())) else plain


def _have(words: Sequence[str], known: str) -> bool:
    return not set(known.split()).isdisjoint(words)
