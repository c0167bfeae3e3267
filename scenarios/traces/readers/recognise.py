"""What the first bytes of a trace show: one question a format; `squall.scenarios.traces.reading` asks them in order."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from squall.scenarios.traces.parts.faults import RowFault, no_column, shown
from squall.scenarios.traces.parts.names import stamp_column, stamp_side
from squall.scenarios.traces.readers import logs
from squall.scenarios.traces.readers.blocks import read_head
from squall.scenarios.traces.readers.delimited import sniff_delimiter, split_line
from squall.scenarios.traces.readers.instants import Clock

COUNT_NAMES = ("count", "counts", "requests", "arrivals", "n_requests", "invocations")

_AZURE = {"timestamp", "contexttokens", "generatedtokens"}
_BURSTGPT = {"timestamp", "request tokens", "response tokens"}
_SERVEGEN = {"rate", "shape", "scale"}
_SERVEGEN_ROW = re.compile(r"\d+(\.\d*)?,[^,]*,[^,]*,([A-Z][a-z]+)?,[^,]*,[^,]*", re.ASCII)
_IPC_STREAM = b"\xff\xff\xff\xff"


class Opening:
    """How a file begins, each property read when it is first asked for. `column`: the stamps' column, where named.

    The properties of text raise RowFault for an empty file and for one that is no text; the bytes never do.
    """

    def __init__(self, path: Path, column: str | None = None) -> None:
        self.path = path
        self.column = column

    @cached_property
    def magic(self) -> bytes:
        """The file's own first 6 bytes."""
        with self.path.open("rb") as file:
            return file.read(6)

    @cached_property
    def head(self) -> bytes:
        """The first bytes of the text, uncompressed."""
        head = read_head(self.path)
        first_line(head)
        if b"\0" in head:
            raise RowFault(1, "a NUL byte: this is no text, Parquet or Arrow file; name the format")
        return head

    @cached_property
    def row(self) -> int:
        """Where the first line stands that is not blank."""
        return first_line(self.head)[0]

    @cached_property
    def line(self) -> bytes:
        """That line."""
        return first_line(self.head)[1]

    @cached_property
    def text(self) -> str:
        """That line, what is not UTF-8 replaced."""
        return self.line.decode("utf-8", "replace")

    @cached_property
    def entry(self) -> dict[str, Any]:
        """That line as an object of JSON lines; empty if it is none."""
        try:
            entry = json.loads(self.line) if is_jsonl(self) else None
        except (ValueError, RecursionError):
            return {}
        return entry if isinstance(entry, dict) and "data" not in entry else {}

    @cached_property
    def cells(self) -> list[str]:
        """That line as a row of a delimited text. Raises RowFault where it cannot be one."""
        try:
            return split_line(self.line, sniff_delimiter(self.text))
        except ValueError as error:
            raise RowFault(self.row, f"{error}; name the format") from error

    @property
    def names(self) -> set[str]:
        """The cells as names of columns, in small letters."""
        return {cell.strip().lower() for cell in self.cells}

    @property
    def has_values(self) -> bool:
        """Whether any cell is a number or a date, which no header has."""
        return any(_is_stamp(cell) for cell in self.cells)


def first_line(head: bytes) -> tuple[int, bytes]:
    """Row and content of the first line that is not blank. Raises RowFault where there is none."""
    for row, line in enumerate(head.split(b"\n"), 1):
        if line.strip():
            return row, line.rstrip(b"\r")
    raise RowFault(None, "the file is empty; it needs at least one row")


def unrecognised(opening: Opening, tried: Sequence[str]) -> RowFault:
    """Why a file is of no format that was `tried`, and what to do."""
    cells, column = opening.cells, opening.column or "timestamp"
    if opening.has_values:
        what = f"{shown(opening.text)} is a row of values, a table needs a header first; add one, or name the format"
    elif len(cells) == 1:
        what = f"{shown(cells[0])} is neither a time nor a header with a timestamp column; name the format"
    else:
        what = str(no_column(cells, column)).removeprefix("row 1: ")
    return RowFault(opening.row, f"{what} (it is none of {', '.join(tried)})")


def is_parquet(opening: Opening) -> bool:
    return opening.magic[:4] == b"PAR1"


def is_arrow(opening: Opening) -> bool:
    return opening.magic == b"ARROW1" or opening.magic[:4] == _IPC_STREAM


def is_jsonl(opening: Opening) -> bool:
    """After all that is JSON too and says more; `[` begins a line of Envoy's log too."""
    line = opening.line.lstrip()
    return line.startswith(b"{") or (line.startswith(b"[") and not is_envoy_log(opening))


def is_bailian(opening: Opening) -> bool:
    return opening.entry.keys() >= {"chat_id", "parent_chat_id"}


def is_mooncake(opening: Opening) -> bool:
    return opening.entry.keys() >= {"timestamp", "input_length", "output_length"}


def is_fixed_schedule(opening: Opening) -> bool:
    return re.match(rb'\s*\{\s*"data"', opening.head) is not None


def is_combined_log(opening: Opening) -> bool:
    return logs.is_combined(opening.line)


def is_common_log(opening: Opening) -> bool:
    """After the combined log, whose lines begin like these."""
    return logs.is_common(opening.line)


def is_alb_log(opening: Opening) -> bool:
    return logs.is_alb(opening.line)


def is_elb_log(opening: Opening) -> bool:
    return logs.is_elb(opening.line)


def is_envoy_log(opening: Opening) -> bool:
    return logs.is_envoy(opening.line)


def is_haproxy_log(opening: Opening) -> bool:
    return logs.is_haproxy(opening.line)


def is_w3c_log(opening: Opening) -> bool:
    return opening.line.startswith(b"#") and b"#Fields:" in opening.head


def is_azure(opening: Opening) -> bool:
    return opening.names >= _AZURE


def is_burstgpt(opening: Opening) -> bool:
    return opening.names >= _BURSTGPT


def is_servegen(opening: Opening) -> bool:
    return opening.names >= _SERVEGEN or _SERVEGEN_ROW.fullmatch(opening.text.strip()) is not None


def is_counts(opening: Opening) -> bool:
    return len(opening.cells) == 2 and opening.cells[1].strip().lower() in COUNT_NAMES


def is_lines(opening: Opening) -> bool:
    """One cell, and a time or what is meant for one."""
    text = opening.cells[0]
    return len(opening.cells) == 1 and (_is_stamp(text) or re.match(r"\s*[-+]?[\d.]", text) is not None)


def is_csv(opening: Opening) -> bool:
    """A header with a column of stamps, after the tables whose headers say more."""
    stated = opening.column is not None and opening.column.lower() in opening.names
    named = len(opening.cells) > 1 and any(stamp_side(cell) is not None for cell in opening.cells)
    return (stated or named or stamp_column(opening.cells) is not None) and not opening.has_values


def _is_stamp(text: str) -> bool:
    try:
        Clock("ns").read_one(text)
    except ValueError:
        return False
    return True
