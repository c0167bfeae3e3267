"""Writes a trace in any format, whole or not at all: to a file beside the target, which then takes its name.

Text is compressed where the name ends in `.gz` or `.zst`. Plain tables hold stamps as `timestamp_ns`, exact and
with their unit in the name.
"""

from __future__ import annotations

import difflib
import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast, get_args

import numpy as np

from scenarios.errors import ScenarioError
from scenarios.traces.client_windows import ClientWindows
from scenarios.traces.encoders import CannotHold, Encoder, column_names, encoder_of, kept_sizes
from scenarios.traces.options import TraceFormat
from scenarios.traces.part import PART_ROWS, TracePart
from scenarios.traces.texts import session_texts

RESOLUTION_NS: dict[TraceFormat, int] = {
    "azure-llm": 100,
    "intervals": 1_000,
    "fixed-schedule": 1_000_000,
    "common-log": 1_000_000_000,
    "combined-log": 1_000_000_000,
    "counts": 1_000_000_000,
}
"""The finest step of a format that cannot hold every ns: what is below is cut."""

_RESOLUTION_TEXT = {100: "100 ns", 1_000: "1 us", 1_000_000: "1 ms", 1_000_000_000: "1 s"}
_COMPRESSIONS = (".gz", ".zst")
_WITH_DATES: tuple[TraceFormat, ...] = ("azure-llm", "common-log", "combined-log")
_FROM_FIRST: tuple[TraceFormat, ...] = ("intervals", "fixed-schedule")
_WITHOUT_SESSIONS: tuple[TraceFormat, ...] = (
    "azure-llm",
    "mooncake",
    "intervals",
    "fixed-schedule",
    "counts",
    "lines",
)

_OF_SUFFIX: dict[str, TraceFormat] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "lines",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}


def format_for(path: Path, stated: str | None = None) -> TraceFormat:
    """The format to write `path` in: the `stated` one, else by the ending of the name (before `.gz` or `.zst`).

    Raises ScenarioError for a format that is none, an ending that says none, and a table that is to be compressed.
    """
    formats: tuple[TraceFormat, ...] = get_args(TraceFormat)
    inner = Path(path.stem) if path.suffix in _COMPRESSIONS else path
    found = (
        next((name for name in formats if name == stated), None) if stated else _OF_SUFFIX.get(inner.suffix)
    )
    if found is None and stated:
        near = difflib.get_close_matches(stated, formats, n=1)
        guess = f", did you mean {near[0]!r}?" if near else ""
        raise ScenarioError(f"{stated!r} is no trace format{guess} allowed are {', '.join(formats)}")
    if found is None:
        raise ScenarioError(f"{path}: the ending says no format; name one of {', '.join(formats)}")
    if found in ("parquet", "arrow") and path.suffix in _COMPRESSIONS:
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
    if int(first.stamp_ns[0]) < 0 and format not in (*_WITH_DATES, *_FROM_FIRST):
        raise ScenarioError(
            f"{path}: not written: the trace begins before 1970, and a time below 0 is read as a fault; use"
            f" {', '.join((*_WITH_DATES, *_FROM_FIRST))}"
        )
    n_rows = 0

    def counted() -> Iterator[TracePart]:
        nonlocal n_rows
        for part in chain([first], rows):
            n_rows += len(part)
            yield part

    with _replacing(path) as file:
        if format in ("parquet", "arrow"):
            _write_columns(file, format, first, counted())
        else:
            encoder = ClientWindows() if format == "servegen" else encoder_of(format, first)
            _write_text(file, path.suffix, encoder, counted())
    return n_rows


def lost_in(format: TraceFormat, part: TracePart) -> tuple[str, ...]:
    """What of the rows of `part` a file of `format` does not give back, one phrase each; nothing for plain tables."""
    if format == "servegen":
        sizes = tuple(f"the size column {name!r}" for name in part.sizes)
        return (
            "every instant: only the rate and the law of each client's gaps in windows of 600 s is kept",
            *sizes,
        )
    kept = kept_sizes(format, part)
    lost = [f"the size column {name!r}" for name in part.sizes if name not in kept]
    if part.session is not None and format in _WITHOUT_SESSIONS:
        lost.append("the sessions")
    step_ns = RESOLUTION_NS.get(format, 1)
    if (part.stamp_ns % step_ns).any():
        lost.append(f"the digits of an instant below {_RESOLUTION_TEXT[step_ns]}")
    if format in _FROM_FIRST and len(part) and int(part.stamp_ns[0]) != 0:
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


def _write_text(file: IO[bytes], suffix: str, encoder: Encoder, parts: Iterable[TracePart]) -> None:
    with _compressed(file, suffix) as text:
        text.write(encoder.head())
        for part in parts:
            text.write(encoder.rows(part))
        text.write(encoder.tail())


def _compressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """`file` itself, or what compresses into it; closing it leaves `file` open."""
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0))
    if suffix == ".zst":
        import pyarrow as pa

        return cast(IO[bytes], pa.CompressedOutputStream(os.fdopen(os.dup(file.fileno()), "wb"), "zstd"))
    return os.fdopen(os.dup(file.fileno()), "wb")


def _write_columns(
    file: IO[bytes], format: TraceFormat, first: TracePart, parts: Iterable[TracePart]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = column_names(first)
    types = [pa.string() if name == "session" and first.session is not None else pa.int64() for name in names]
    schema = pa.schema(list(zip(names, types, strict=True)))
    writer: Any
    if format == "parquet":
        writer = pq.ParquetWriter(file, schema, compression="zstd")
    else:
        writer = pa.ipc.new_file(file, schema)
    with writer:
        for part in parts:
            columns = [pa.array(part.stamp_ns)]
            columns += [pa.array(values, mask=values == -1) for values in part.sizes.values()]
            columns += [] if part.session is None else [session_texts(part.session)]
            writer.write_batch(pa.record_batch(columns, schema=schema))


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the name `path` when the block ends, and is gone where it fails."""
    try:
        with whole_or_not(path) as part, part.open("wb") as file:
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
    part = target.with_name(f".{os.getpid()}.part.{target.name}")
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise ScenarioError(f"{path}: cannot be written: {reason}") from error
    finally:
        with suppress(OSError):
            part.unlink()
