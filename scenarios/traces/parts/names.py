"""Column names by which a timestamp, its unit, a session and the usual sizes are found."""

from __future__ import annotations

from collections.abc import Sequence

from squall.scenarios.traces.parts.options import TraceUnit

STAMP_NAMES = (
    "timestamp", "time", "ts", "stamp", "arrival", "arrival_time", "arrived_at", "unix_time", "epoch", "datetime",
    "date_time", "start_time", "request_time", "offset", "arrival_timestamp", "event_time", "scheduled", "sent",
)  # fmt: skip
SESSION_NAMES = (
    "session", "session_id", "sessionid", "conversation_id", "chat_id", "client_id", "client", "user_id", "user",
    "host",
)  # fmt: skip
INPUT_NAMES = ("input_length", "ContextTokens", "Request tokens", "input_tokens", "prompt_tokens")
OUTPUT_NAMES = ("output_length", "GeneratedTokens", "Response tokens", "output_tokens", "completion_tokens")
BYTES_NAMES = ("bytes", "n_bytes", "size_bytes", "body_bytes_sent")
_UNITS: tuple[TraceUnit, ...] = ("ns", "us", "ms", "s")


def stamp_column(names: Sequence[str]) -> str | None:
    """The name that is a timestamp's, with or without a unit's ending; the earliest of `STAMP_NAMES` wins."""
    plain = {name: _plain(name) for name in names}
    for wanted in STAMP_NAMES:
        for name in names:
            if plain[name] == wanted or _without_unit(plain[name]) == wanted:
                return name
    return None


def session_column(names: Sequence[str]) -> str | None:
    """The name that is a session's, the earliest of `SESSION_NAMES`."""
    by_plain = {_plain(name): name for name in reversed(names)}
    return next((by_plain[wanted] for wanted in SESSION_NAMES if wanted in by_plain), None)


def unit_of_name(name: str) -> TraceUnit | None:
    """The unit that a name states by its ending (`sent_ns`), or by its word (`unix_time` is in s)."""
    plain = _plain(name)
    if plain == "unix_time":
        return "s"
    return next((unit for unit in _UNITS if plain.endswith(f"_{unit}")), None)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _without_unit(plain: str) -> str:
    return next((plain.removesuffix(f"_{unit}") for unit in _UNITS if plain.endswith(f"_{unit}")), plain)
