"""Writes a trace in any format, whole or not at all: to a file beside the target, which then takes its name.

Text is compressed where the name ends in `.gz` or `.zst`. Plain tables hold stamps as `timestamp_ns`, exact and
with their unit in the name.
"""

from __future__ import annotations

import difflib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, get_args

import numpy as np

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.formats import FORMATS, TraceFormat, format_of_suffix, record_of
from squall.scenarios.traces.parts.part import PART_ROWS, TracePart
from squall.scenarios.traces.writers.encoders import CannotHold
from squall.scenarios.traces.writers.files import COMPRESSIONS

_RESOLUTION_TEXT = {100: "100 ns", 1_000: "1 us", 1_000_000: "1 ms", 1_000_000_000: "1 s"}


def format_for(path: Path, stated: str | None = None) -> TraceFormat:
    """The format to write `path` in: the `stated` one, else by the ending of the name (before `.gz` or `.zst`).

    Raises ScenarioError for a format that is none, an ending that says none, and a table that is to be compressed.
    """
    formats: tuple[TraceFormat, ...] = get_args(TraceFormat)
    inner = Path(path.stem) if path.suffix in COMPRESSIONS else path
    found = (
        next((name for name in formats if name == stated), None) if stated else format_of_suffix(inner.suffix)
    )
    writable = [name for name in formats if record_of(name).write is not None]
    if found is not None and found not in writable:
        raise ScenarioError(
            f"{found} is a server's own log and is not written; name one of {', '.join(writable)}"
        )
    if found is None and stated:
        near = difflib.get_close_matches(stated, formats, n=1)
        guess = f", did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"{stated!r} is no trace format{guess} allowed are {', '.join(writable)}")
    if found is None:
        raise ScenarioError(f"{path}: the ending says no format; name one of {', '.join(writable)}")
    if record_of(found).compresses_itself and path.suffix in COMPRESSIONS:
        raise ScenarioError(f"{path}: {found} is compressed by itself; leave {path.suffix} out of the name")
    return found


def write_trace(path: Path, format: TraceFormat, parts: Iterable[TracePart]) -> int:
    """Rows written to `path`, which is replaced. What the format cannot hold is left out (`lost_in`).

    Raises ScenarioError where there are no rows, they are out of order, the format cannot hold them at all, or
    the file cannot be written; then `path` is as it was.
    """
    rows = _in_order(path, (piece for part in parts for piece in part.pieces(PART_ROWS)))
    first = next(rows, None)
    if first is None:
        raise ScenarioError(f"{path}: not written: the trace has no arrivals")
    record = record_of(format)
    if int(first.stamp_ns[0]) < 0 and record.begins == "1970":
        others = [one.name for one in FORMATS if one.begins != "1970"]
        raise ScenarioError(
            f"{path}: not written: the trace begins before 1970, and a time below 0 is read as a fault; use"
            f" {', '.join(others)}"
        )
    n_rows = 0

    def counted() -> Iterator[TracePart]:
        nonlocal n_rows
        for part in chain([first], rows):
            n_rows += len(part)
            yield part

    if record.write is None:
        raise ScenarioError(f"{path}: not written: {format} is a server's own log")
    with _replacing(path) as file:
        record.write(file, path.suffix, first, counted())
    return n_rows


def lost_in(format: TraceFormat, part: TracePart) -> tuple[str, ...]:
    """What of the rows of `part` a file of `format` does not give back, one phrase each; nothing for plain tables."""
    record = record_of(format)
    kept = record.kept_sizes(part)
    lost = [f"every instant: only {record.instead_of_instants} is kept"] if record.instead_of_instants else []
    lost += [f"the size column {name!r}" for name in part.sizes if name not in kept]
    if part.session is not None and not record.keeps_sessions:
        lost.append("the sessions")
    if (part.stamp_ns % record.resolution_ns).any():
        lost.append(f"the digits of an instant below {_RESOLUTION_TEXT[record.resolution_ns]}")
    if record.begins == "first arrival" and len(part) and int(part.stamp_ns[0]) != 0:
        lost.append("the instant of the first arrival: the file begins at 0")
    return tuple(lost)


def _in_order(path: Path, parts: Iterable[TracePart]) -> Iterator[TracePart]:
    last_ns: int | None = None
    for part in parts:
        before = part.stamp_ns[0] if last_ns is None else last_ns
        if (np.concatenate([[before], part.stamp_ns[:-1]]) > part.stamp_ns).any():
            raise ScenarioError(
                f"{path}: not written: the rows are not in the order of time; sort them first"
            )
        last_ns = int(part.stamp_ns[-1])
        yield part


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the name `path` when the block ends, and is gone where it fails."""
    try:
        with whole_or_not(path) as part, part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except CannotHold as error:
        raise ScenarioError(f"{path}: not written: {error}") from error


@contextmanager
def whole_or_not(path: Path) -> Iterator[Path]:
    """A name beside `path`, of the same ending, for a file that becomes `path` when the block ends.

    Where the block fails it is gone and `path` is what it was. Through a link what it points at is replaced. Raises
    ScenarioError for a folder, a device and a pipe, and for every OSError.
    """
    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not target.is_file():  # Path.exists raises for a name that is too long
        raise ScenarioError(f"{path}: cannot be written: it is a folder, a device or a pipe; name a file")
    part = target.with_name(f".{secrets.token_hex(8)}.part.{target.name}")  # which no link can await
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise ScenarioError(f"{path}: cannot be written: {reason}") from error
    finally:
        with suppress(OSError):
            part.unlink()
