"""The text of a trace in each textual format: a head, the rows of each part, a tail."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from squall.scenarios.traces.parts.names import BYTES_NAMES, INPUT_NAMES, OUTPUT_NAMES
from squall.scenarios.traces.parts.part import EMPTY_SIZE, TracePart
from squall.scenarios.traces.parts.texts import (
    azure_dates,
    decimal_texts,
    joined,
    log_dates,
    separated,
    session_texts,
    whole_texts,
)

STAMP_NAME = "timestamp_ns"
SESSION_NAME = "session"

_MS, _US, _S = 10**6, 10**3, 10**9
_MOST_EMPTY_BINS = 10**7


class CannotHold(Exception):
    """The format cannot hold the trace: why, and what to do."""


class Encoder(Protocol):
    """Bytes of a trace, its parts given in the order of time."""

    def head(self) -> bytes: ...
    def rows(self, part: TracePart) -> bytes: ...
    def tail(self) -> bytes: ...


@dataclass(frozen=True)
class Rows:
    """A text whose rows are independent of each other."""

    encode: Callable[[TracePart], Sequence[Any]]
    first: bytes = b""

    def head(self) -> bytes:
        return self.first

    def rows(self, part: TracePart) -> bytes:
        return joined(self.encode(part))

    def tail(self) -> bytes:
        return b""


@dataclass
class Intervals:
    """Gaps in whole us between stamps cut to us, so that they add up; the first is 0."""

    last_us: int | None = None

    def head(self) -> bytes:
        return b""

    def rows(self, part: TracePart) -> bytes:
        stamp_us = part.stamp_ns // _US
        before = int(stamp_us[0]) if self.last_us is None else self.last_us
        self.last_us = int(stamp_us[-1])
        return joined([whole_texts(np.diff(stamp_us, prepend=before)), "\n"])

    def tail(self) -> bytes:
        return b""


@dataclass
class Schedule:
    """perf_analyzer's fixed schedule: whole ms after the first arrival; the payloads are left empty."""

    first_ms: int | None = None

    def head(self) -> bytes:
        return b'{"data": [\n'

    def rows(self, part: TracePart) -> bytes:
        stamp_ms = part.stamp_ns // _MS
        between = b"" if self.first_ms is None else b",\n"
        self.first_ms = int(stamp_ms[0]) if self.first_ms is None else self.first_ms
        texts = whole_texts(stamp_ms - self.first_ms)
        entries = joined(['{"payload": [{}], "timestamp": [', texts, "]},\n"])
        return between + entries.removesuffix(b",\n")

    def tail(self) -> bytes:
        return b"\n]}\n"


@dataclass
class Counts:
    """`second,count` of each whole second from the first arrival's to the last one's."""

    bin_s: int | None = None
    count: int = 0

    def head(self) -> bytes:
        return b"second,count\n"

    def rows(self, part: TracePart) -> bytes:
        seconds = part.stamp_ns // _S
        start = int(seconds[0]) if self.bin_s is None else self.bin_s
        if int(seconds[-1]) - start > _MOST_EMPTY_BINS + len(part):
            raise CannotHold(f"over {_MOST_EMPTY_BINS} seconds without arrivals; cut the trace first")
        counts = np.bincount(seconds - start)
        counts[0] += self.count
        self.bin_s, self.count = start + counts.size - 1, int(counts[-1])
        if counts.size == 1:
            return b""
        bins = np.arange(start, start + counts.size - 1)
        return joined([whole_texts(bins, "-1"), ",", whole_texts(counts[:-1]), "\n"])

    def tail(self) -> bytes:
        return f"{self.bin_s},{self.count}\n".encode()


@dataclass
class Bailian:
    """JSON lines with `chat_id` a running number and `parent_chat_id` the one before in the session, else -1."""

    n_rows: int = 0
    last: dict[int, tuple[int, int]] = field(default_factory=dict)  # session -> chat id and turn

    def head(self) -> bytes:
        return b""

    def rows(self, part: TracePart) -> bytes:
        chats, parents, turns = (np.empty(len(part), dtype=np.int64) for _ in range(3))
        sessions = np.full(len(part), -1) if part.session is None else part.session
        for index, session in enumerate(sessions.tolist()):
            chat = self.n_rows + index
            parent, turn = self.last.get(session, (-1, 0)) if session >= 0 else (-1, 0)
            chats[index], parents[index], turns[index] = chat, parent, turn + 1
            if session >= 0:
                self.last[session] = (chat, turn + 1)
        self.n_rows += len(part)
        pieces = ['{"chat_id": ', whole_texts(chats), ', "parent_chat_id": ', whole_texts(parents, "-1")]
        pieces += [', "timestamp": ', decimal_texts(part.stamp_ns, 9), *_token_fields(part)]
        return joined([*pieces, ', "turn": ', whole_texts(turns), "}\n"])

    def tail(self) -> bytes:
        return b""


Encoding = Callable[[TracePart], Encoder]
"""The encoder of a format for a trace whose first part is given."""


def intervals(_: TracePart) -> Encoder:
    return Intervals()


def fixed_schedule(_: TracePart) -> Encoder:
    return Schedule()


def counts(_: TracePart) -> Encoder:
    return Counts()


def bailian(_: TracePart) -> Encoder:
    return Bailian()


def common_log(_: TracePart) -> Encoder:
    return Rows(_log_rows(""))


def combined_log(_: TracePart) -> Encoder:
    return Rows(_log_rows(' "-" "-"'))


def lines(_: TracePart) -> Encoder:
    return Rows(lambda part: [decimal_texts(part.stamp_ns, 9), "\n"])


def mooncake(_: TracePart) -> Encoder:
    return Rows(_mooncake_rows)


def jsonl(_: TracePart) -> Encoder:
    return Rows(_json_rows)


def _name(part: TracePart, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in part.sizes), None)


def _column(part: TracePart, names: Sequence[str]) -> Any:
    name = _name(part, names)
    return np.full(len(part), EMPTY_SIZE) if name is None else part.sizes[name]


def azure_table(first: TracePart) -> Encoder:
    images = "NumImages" in first.sizes

    def rows(part: TracePart) -> Sequence[Any]:
        columns = [azure_dates(part.stamp_ns)]
        columns += [whole_texts(part.sizes["NumImages"])] if images else []
        columns += [whole_texts(_column(part, INPUT_NAMES)), whole_texts(_column(part, OUTPUT_NAMES))]
        return separated(columns, ",")

    return Rows(rows, b"TIMESTAMP,%sContextTokens,GeneratedTokens\n" % (b"NumImages," if images else b""))


def burstgpt_table(first: TracePart) -> Encoder:
    """Columns as published, with those of sessions where the trace has sessions; the model is left empty."""
    with_session = first.session is not None
    names = ["Timestamp", *(["Session ID", "Elapsed time"] if with_session else []), "Model"]
    names += ["Request tokens", "Response tokens", "Total tokens", "Log Type"]

    def rows(part: TracePart) -> Sequence[Any]:
        asked, answered = _column(part, INPUT_NAMES), _column(part, OUTPUT_NAMES)
        total = np.where((asked < 0) | (answered < 0), EMPTY_SIZE, asked + answered)
        columns = [decimal_texts(part.stamp_ns, 9)]
        columns += [session_texts(part.session), ""] if part.session is not None else []
        return separated(
            [*columns, "", whole_texts(asked), whole_texts(answered), whole_texts(total), ""], ","
        )

    return Rows(rows, ",".join(names).encode() + b"\n")


def csv_table(first: TracePart) -> Encoder:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(column_names(first))

    def rows(part: TracePart) -> Sequence[Any]:
        columns = [whole_texts(part.stamp_ns, "-1"), *(whole_texts(values) for values in part.sizes.values())]
        return separated([*columns, *([] if part.session is None else [session_texts(part.session)])], ",")

    return Rows(rows, text.getvalue().encode())


def column_names(part: TracePart) -> list[str]:
    """Names of a table with all of a trace. Raises CannotHold where a size has the name of another column."""
    names = [STAMP_NAME, *part.sizes, *([] if part.session is None else [SESSION_NAME])]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise CannotHold(f"a size column is named {twice[0]!r}, as the table's own; rename it")
    return names


def _mooncake_rows(part: TracePart) -> Sequence[Any]:
    return ['{"timestamp": ', decimal_texts(part.stamp_ns, 6), *_token_fields(part), ', "hash_ids": []}\n']


def _token_fields(part: TracePart) -> Iterator[Any]:
    for field_name, names in (("input_length", INPUT_NAMES), ("output_length", OUTPUT_NAMES)):
        if _name(part, names) is not None:
            yield f', "{field_name}": '
            yield whole_texts(_column(part, names), "null")


def _json_rows(part: TracePart) -> Sequence[Any]:
    column_names(part)
    pieces: list[Any] = [f'{{"{STAMP_NAME}": ', whole_texts(part.stamp_ns, "-1")]
    for name, values in part.sizes.items():
        pieces += [f", {json.dumps(name)}: ", whole_texts(values, "null")]
    if part.session is not None:
        pieces += [f', "{SESSION_NAME}": "', session_texts(part.session), '"']
    return [*pieces, "}\n"]


def _log_rows(ending: str) -> Callable[[TracePart], Sequence[Any]]:
    def rows(part: TracePart) -> Sequence[Any]:
        import pyarrow.compute as pc

        hosts: Any = "-"
        if part.session is not None:
            texts = session_texts(part.session)
            hosts = pc.if_else(pc.equal(texts, ""), "-", texts)
        n_bytes = whole_texts(_column(part, BYTES_NAMES), "-")
        return [hosts, " - - [", log_dates(part.stamp_ns), '] "GET / HTTP/1.0" 200 ', n_bytes, ending + "\n"]

    return rows
