"""The table of trace formats: how each is recognised, and its columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from squall.scenarios.records import Frozen
from squall.scenarios.traces import logs
from squall.scenarios.traces.faults import RowFault, no_column, shown
from squall.scenarios.traces.instants import is_stamp, stamp_kind
from squall.scenarios.traces.names import session_column, stamp_column, stamp_side
from squall.scenarios.traces.options import NS_PER_UNIT, TraceOptions, TraceUnit
from squall.scenarios.traces.rows import Fields, Source
from squall.scenarios.traces.servegen import servegen
from squall.scenarios.traces.stamps import (
    SAMPLE_ROWS,
    Stamps,
    instants_of,
    named,
    read_stamps,
    resolution_ns,
)
from squall.scenarios.traces.tables import (
    MakeTable,
    Table,
    columnar,
    delimited,
    json_lines,
    lines_of,
    parse_entry,
    schedule,
    sniff_delimiter,
    split_line,
)
from squall.scenarios.traces.text import Block, first_bytes, read_head, whole_lines

_COUNTS = ("count", "counts", "requests", "arrivals", "n_requests", "invocations")
_BIN_UNITS: dict[str, TraceUnit] = {"second": "s", "seconds": "s", "sec": "s", "millisecond": "ms"}
_SERVEGEN_ROW = re.compile(r"\d+(\.\d*)?,[^,]*,[^,]*,([A-Z][a-z]+)?,[^,]*,[^,]*", re.ASCII)
_TIMESTAMP = Stamps("timestamp", "begin")
_IN_S = replace(_TIMESTAMP, unit="s")
_TOKENS = ("input_length", "output_length")
_AZURE = ("ContextTokens", "GeneratedTokens", "NumImages")
_BURSTGPT = ("Request tokens", "Response tokens", "Total tokens")


class Opening:
    """How a file begins, each property read when it is first asked for. `column`: the stamps' column, if it is named.

    The properties of text raise RowFault for an empty file and for one that is no text; the bytes never do.
    """

    def __init__(self, path: Path, column: str | None = None) -> None:
        self.path = path
        self.column = column

    @cached_property
    def magic(self) -> bytes:
        return first_bytes(self.path)

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the text, uncompressed."""
        head = read_head(self.path)
        if b"\0" in head:
            raise RowFault(1, "a NUL byte: this is no text, Parquet or Arrow file; name the format")
        return head

    @cached_property
    def lines(self) -> Block:
        return whole_lines(self.head)

    @property
    def line(self) -> bytes:
        """The first line that is not blank."""
        return self.lines.lines[0]

    @property
    def text(self) -> str:
        """That line, what is not UTF-8 replaced."""
        return self.line.decode("utf-8", "replace")

    @cached_property
    def is_json(self) -> bool:
        """Whether lines are JSON; `[` begins a line of Envoy's log too."""
        line = self.line.lstrip()
        return line.startswith(b"{") or (line.startswith(b"[") and not self.is_line_of(logs.ENVOY))

    @cached_property
    def keys(self) -> set[str]:
        """The keys of that line, if it is an object of JSON lines."""
        with suppress(ValueError):
            return {*parse_entry(self.line)} if self.is_json else set()
        return set()

    @cached_property
    def cells(self) -> list[str]:
        """That line as a row of a delimited text. Raises RowFault if it cannot be one."""
        try:
            return split_line(self.line, sniff_delimiter(self.line))
        except ValueError as error:
            raise RowFault(int(self.lines.rows[0]), f"{error}; name the format") from error

    def has(self, *names: str) -> bool:
        """Whether all are cells of that line, in letters of any case."""
        return {cell.strip().lower() for cell in self.cells} >= {name.lower() for name in names}

    @property
    def has_values(self) -> bool:
        """Whether any of the cells is a number or a date, which no header has."""
        return any(map(is_stamp, self.cells))

    @property
    def is_header(self) -> bool:
        """Whether that line is a header with a column of stamps."""
        is_wide = len(self.cells) > 1 and any(map(stamp_side, self.cells))
        is_named = self.column is not None and self.has(self.column)
        return (is_wide or is_named or stamp_column(self.cells) is not None) and not self.has_values

    @property
    def is_value(self) -> bool:
        """Whether that line is one cell, and a time or what is meant for one."""
        text = self.cells[0]
        return len(self.cells) == 1 and (is_stamp(text) or re.match(r"\s*[-+]?[\d.]", text) is not None)

    def is_line_of(self, log: str) -> bool:
        """Whether that line has the pattern of a log."""
        return logs.has_line(log, self.line)


def _counts(path: Path, options: TraceOptions) -> Table:
    """Counts of arrivals per bin: each stands at the start of its bin, within whose width it may be spread again."""
    table = delimited(path)
    if all(map(is_stamp, table.names)):
        table = delimited(path, bare_header=(options.column or "second", "count"))
    count = next((name for name in table.names if name.strip().lower() in _COUNTS), None)
    if count is None:
        raise no_column(table.names, "count")
    others = [name for name in table.names if name != count] or ["second"]
    stamp = named(table.names, options.column or others[0], table.row)
    stamps = Stamps(stamp, unit=_BIN_UNITS.get(stamp.strip().lower(), "s"), is_only=True)
    return replace(table, sizes=(count,), ids=(), stamps=stamps)


class Format(Frozen):
    """A format of trace files, and what it says of its columns.

    `recognise`: whether what a file begins with shows it. `table` raises RowFault if the file is
    not of this format. `stamps` and `sizes` None: those that names and values show; `n_required` of the sizes must be
    there. `unit` of numbers where neither the user nor a name nor `stamps` says it. `parent`: the column with the
    request before in the same conversation, which is then the session. `are_gaps`, `are_counts`: see `Source`.
    """

    recognise: Callable[[Opening], object]
    table: MakeTable
    stamps: Stamps | None = None
    sizes: tuple[str, ...] | None = None
    n_required: int = 0
    unit: TraceUnit = "s"
    parent: str | None = None
    are_gaps: bool = False
    are_counts: bool = False

    def source(self, path: Path, name: str, options: TraceOptions, session: str | None = None) -> Source:
        """The arrivals of `path`; `session`: the column of sessions, if it is named.

        Raises RowFault for a column that is missing, or open to doubt.
        """
        table = self.table(path, options)
        names, row = table.names, table.row
        reading = read_stamps(table.sample, options, table.stamps or self.stamps, row)
        stamp, unit = reading.stamp, reading.unit or self.unit
        if reading.unit is None and stamp in table.unitless:
            what = f"the column {stamp!r} is {table.unitless[stamp]} without a unit"
            raise RowFault(None, f"{what}; state the unit: ns, us, ms or s")
        ids = [name for name in table.ids if name != stamp]
        parent = self.parent if self.parent in names and session is None else None
        session = session or session_column(ids)
        if session not in (None, *ids):
            raise RowFault(row, f"no column {session!r} of ids; it has {', '.join(ids) or 'none'}")
        sizes = table.sizes
        if self.sizes is not None:
            lowered = [name.lower() for name in names]
            sizes = tuple(
                named(names, name, row)
                for place, name in enumerate(self.sizes)
                if place < self.n_required or name.lower() in lowered
            )
        sizes = tuple(name for name in sizes if name not in (stamp, session, *reading.durations))
        fields = Fields(stamp, sizes, session, reading.durations, parent)
        twice = sorted(name for name in fields.names if names.count(name) > 1)
        if twice:
            raise RowFault(row, f"the column {twice[0]!r} is there twice; rename one")
        values = table.sample[stamp][:SAMPLE_ROWS]
        kind = stamp_kind(next((text for text in values if text and is_stamp(text)), ""))
        instants = instants_of(values, unit)
        reading.has_seconds = bool(instants.count()) and resolution_ns(instants) == NS_PER_UNIT["s"]
        return Source(
            path,
            name,
            table.read,
            fields,
            reading,
            unit,
            "number" if self.are_gaps else kind,
            reading.unit is None,
            self.are_gaps,
            self.are_counts,
            options.repair,
        )


def _log(pattern: str, table: MakeTable) -> Format:
    return Format(lambda opening: opening.is_line_of(pattern), table)


FORMATS = {
    "parquet": Format(lambda opening: opening.magic[:4] == b"PAR1", columnar),
    "arrow": Format(lambda opening: opening.magic.startswith((b"ARROW1", b"\xff\xff\xff\xff")), columnar),
    "bailian": Format(
        lambda opening: opening.keys >= {"chat_id", "parent_chat_id"},
        json_lines,
        _TIMESTAMP,
        _TOKENS,
        parent="parent_chat_id",
    ),
    "mooncake": Format(
        lambda opening: opening.keys >= {"timestamp", *_TOKENS}, json_lines, _TIMESTAMP, _TOKENS, unit="ms"
    ),
    "fixed-schedule": Format(
        lambda opening: re.match(rb'\s*\{\s*"data"', opening.head), schedule, _TIMESTAMP, unit="ms"
    ),
    "jsonl": Format(lambda opening: opening.is_json, json_lines, unit="ms"),
    "combined-log": _log(logs.COMBINED, logs.web_log),
    "common-log": _log(logs.COMMON, logs.web_log),
    "alb-log": _log(logs.ALB, logs.alb_log),
    "elb-log": _log(
        logs.ELB,
        logs.plain_log(
            logs.ELB, "a classic load balancer's log: time elb client:port backend:port three times …", "s"
        ),
    ),
    "envoy-log": _log(
        logs.ENVOY,
        logs.plain_log(
            logs.ENVOY,
            'Envoy\'s default access log: [time] "request" code flags received sent duration',
            "ms",
        ),
    ),
    "haproxy-log": _log(
        logs.HAPROXY,
        logs.plain_log(
            logs.HAPROXY, "HAProxy's log: client:port [accept date] frontend backend/server timers …", "ms"
        ),
    ),
    "w3c-log": Format(
        lambda opening: opening.line.startswith(b"#") and b"#Fields:" in opening.head, logs.w3c_log
    ),
    "azure-llm": Format(
        lambda opening: opening.has("timestamp", *_AZURE[:2]), delimited, _IN_S, _AZURE, n_required=2
    ),
    "burstgpt": Format(
        lambda opening: opening.has("timestamp", *_BURSTGPT[:2]), delimited, _IN_S, _BURSTGPT, n_required=2
    ),
    "servegen": Format(
        lambda opening: (
            opening.has("rate", "shape", "scale") or _SERVEGEN_ROW.fullmatch(opening.text.strip())
        ),
        servegen,
    ),
    "counts": Format(
        lambda opening: len(opening.cells) == 2 and opening.cells[1].strip().lower() in _COUNTS,
        _counts,
        are_counts=True,
    ),
    "lines": Format(lambda opening: opening.is_value, lines_of, Stamps("time", is_only=True)),
    "csv": Format(lambda opening: opening.is_header, delimited),
    "intervals": Format(  # the lines look like stamps: it must be named
        lambda _: False, lines_of, Stamps("time", unit="us", is_only=True), are_gaps=True
    ),
}
"""Every format, in the order in which a file is tried: what is told from fewer bytes or says more comes first."""


def recognised(path: Path, column: str | None = None) -> str:
    """The name of the first format that the first bytes of `path` show; `column`: that of the stamps, if it is named.

    Raises RowFault, with what was tried, for a file that is empty or of none.
    """
    opening = Opening(path, column)
    for name, format in FORMATS.items():
        if format.recognise(opening):
            return name
    cells = opening.cells
    if opening.has_values:
        what = f"{shown(opening.text)} is a row of values, a table needs a header first; add one, or name the format"
    elif len(cells) == 1:
        what = f"{shown(cells[0])} is neither a time nor a header with a timestamp column; name the format"
    else:
        what = str(no_column(cells, column or "timestamp", None))
    raise RowFault(int(opening.lines.rows[0]), f"{what} (tried were {', '.join(FORMATS)})")
