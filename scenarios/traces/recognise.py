"""The format of a trace file from its first bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from scenarios.traces.blocks import read_head
from scenarios.traces.delimited import sniff_delimiter, split_line
from scenarios.traces.faults import RowFault, shown
from scenarios.traces.instants import Clock
from scenarios.traces.names import stamp_column
from scenarios.traces.options import TraceFormat

AZURE = {"timestamp", "contexttokens", "generatedtokens"}
BURSTGPT = {"timestamp", "request tokens", "response tokens"}
SERVEGEN = {"rate", "shape", "scale"}
COUNT_NAMES = ("count", "counts", "requests", "arrivals", "n_requests", "invocations")

_SERVEGEN_ROW = re.compile(r"\d+(\.\d*)?,[^,]*,[^,]*,([A-Z][a-z]+)?,[^,]*,[^,]*", re.ASCII)
_LOG_ROW = re.compile(
    rb'\S+ \S+ .*?\[\d\d/[A-Z][a-z]{2}/\d{4}:[^\]]+\] ".*" \d{3} (\d+|-)(?P<combined> ".*" ".*")?'
)
_IPC_STREAM = b"\xff\xff\xff\xff"


def recognised_format(path: Path) -> TraceFormat:
    """The format that the first bytes of `path` show. Raises RowFault for an empty file and for none."""
    with path.open("rb") as file:
        magic = file.read(6)
    if magic[:4] == b"PAR1":
        return "parquet"
    if magic == b"ARROW1" or magic[:4] == _IPC_STREAM:
        return "arrow"
    head = read_head(path)
    row, line = first_line(head)
    if b"\0" in head:
        raise RowFault(1, "a NUL byte: this is no text, Parquet or Arrow file; name the format")
    if line.lstrip().startswith((b"{", b"[")):
        return _json_format(line, head)
    log = _LOG_ROW.match(line)
    if log is not None:
        return "combined-log" if log["combined"] else "common-log"
    return _text_format(line, row)


def first_line(head: bytes) -> tuple[int, bytes]:
    """Row and content of the first line that is not blank. Raises RowFault where there is none."""
    for row, line in enumerate(head.split(b"\n"), 1):
        if line.strip():
            return row, line.rstrip(b"\r")
    raise RowFault(None, "the file is empty; it needs at least one row")


def _json_format(line: bytes, head: bytes) -> TraceFormat:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if isinstance(entry, dict) and "data" not in entry:
        if {"chat_id", "parent_chat_id"} <= entry.keys():
            return "bailian"
        return "mooncake" if {"timestamp", "input_length", "output_length"} <= entry.keys() else "jsonl"
    return "fixed-schedule" if re.match(rb'\s*\{\s*"data"', head) else "jsonl"


def _text_format(line: bytes, row: int) -> TraceFormat:
    try:
        cells = split_line(line, sniff_delimiter(line.decode("utf-8", "replace")))
    except ValueError as error:
        raise RowFault(row, f"{error}; name the format") from error
    names = {cell.strip().lower() for cell in cells}
    if names >= AZURE:
        return "azure-llm"
    if names >= BURSTGPT:
        return "burstgpt"
    if names >= SERVEGEN or _SERVEGEN_ROW.fullmatch(line.decode("utf-8", "replace").strip()):
        return "servegen"
    if len(cells) == 1:
        return "csv" if stamp_column(cells) else _lines(cells[0], row)
    if len(cells) == 2 and cells[1].strip().lower() in COUNT_NAMES:
        return "counts"
    if any(_is_stamp(cell) for cell in cells):
        what = f"{shown(line.decode('utf-8', 'replace'))} is a row of values, a table needs a header first"
        raise RowFault(row, f"{what}; add one, or name the format")
    return "csv"


def _lines(text: str, row: int) -> TraceFormat:
    if not _is_stamp(text) and not re.match(r"\s*[-+]?[\d.]", text):
        raise RowFault(
            row, f"{shown(text)} is neither a time nor a header with a timestamp column; name the format"
        )
    return "lines"


def _is_stamp(text: str) -> bool:
    try:
        Clock("ns").read_one(text)
    except ValueError:
        return False
    return True
