"""Writes a trace as Parquet, CSV or JSON lines, whole or not at all: to a file beside the target that takes its name.

Columns: `timestamp_ns`, exact and with its unit in the name, the sizes, and `session` for a trace with sessions. CSV
and JSON lines are compressed if the name ends in `.gz` or `.zst`; Parquet compresses by itself.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from squall.scenarios.errors import ScenarioError
from squall.scenarios.traces.part import EMPTY_SIZE, PART_ROWS, TracePart, session_text
from squall.scenarios.traces.text import COMPRESSIONS

WrittenFormat = Literal["parquet", "csv", "jsonl"]

_FORMATS: dict[str, WrittenFormat] = {
    "parquet": "parquet", "pq": "parquet", "csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl",
}  # fmt: skip


def format_for(path: Path, stated: str | None = None) -> WrittenFormat:
    """The format to write `path` in: the `stated` one, else by the ending of the name (before `.gz` or `.zst`).

    Raises ScenarioError for any other format or ending, and for Parquet that is to be compressed.
    """
    inner = Path(path.stem) if path.suffix in COMPRESSIONS else path
    format = _FORMATS.get(stated or inner.suffix.removeprefix("."))
    if format is None:
        what = f"{stated!r} is" if stated else f"{path}: the ending says"
        known = ", ".join(get_args(WrittenFormat))
        raise ScenarioError(f"{what} no format that traces are written in; name one of {known}")
    if format == "parquet" and path.suffix in COMPRESSIONS:
        raise ScenarioError(f"{path}: parquet is compressed by itself; leave {path.suffix} out of the name")
    return format


def write_trace(path: Path, format: WrittenFormat, parts: Iterable[TracePart]) -> int:
    """Rows written to `path`, which is replaced.

    Raises ScenarioError if there are no rows, they are out of order or begin before 1970, two columns have one name, or
    the file cannot be written; then `path` is as it was.
    """
    import pyarrow as pa

    rows = (piece for part in parts for piece in part.pieces(PART_ROWS))
    first = next(rows, None)
    if first is None:
        raise _unwritten(path, "the trace has no arrivals")
    last_ns = int(first.stamp_ns[0])
    if last_ns < 0:
        raise _unwritten(path, "the trace begins before 1970, and a time below 0 is read as a fault")
    schema = pa.schema([
        ("timestamp_ns", pa.int64()),
        *((name, pa.int64()) for name in first.sizes),
        *([] if first.session is None else [("session", pa.string())]),
    ])  # fmt: skip
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise _unwritten(path, f"a size column is named {twice!r}, as the table's own; rename it")
    n_rows = 0
    with whole_or_not(path) as new, new.open("xb") as file:
        with _writing(file, format, path.suffix, schema) as write:
            for part in chain([first], rows):
                if (np.diff(part.stamp_ns, prepend=last_ns) < 0).any():
                    raise _unwritten(path, "the rows are not in the order of time; sort them first")
                last_ns = int(part.stamp_ns[-1])
                write(_batch(part, schema))
                n_rows += len(part)
        file.flush()
        os.fsync(file.fileno())
    return n_rows


def _unwritten(path: Path, what: str) -> ScenarioError:
    return ScenarioError(f"{path}: not written: {what}")


def _batch(part: TracePart, schema: Any) -> Any:
    """The rows of `part` as an Arrow batch: an empty size is null, no session the empty text."""
    import pyarrow as pa

    columns = [pa.array(part.stamp_ns)]
    columns += [pa.array(values, mask=values == EMPTY_SIZE) for values in part.sizes.values()]
    if part.session is not None:
        known, places = np.unique(part.session, return_inverse=True)
        texts = pa.array([session_text(number) for number in known.tolist()], pa.string())
        columns.append(texts.take(pa.array(places)))
    return pa.record_batch(columns, schema=schema)


@contextmanager
def _writing(
    file: IO[bytes], format: WrittenFormat, suffix: str, schema: Any
) -> Iterator[Callable[[Any], object]]:
    """What writes a batch into `file`, which stays open."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    if format == "parquet":
        with parquet.ParquetWriter(file, schema, compression="zstd") as table:
            yield table.write_batch
        return
    below = os.fdopen(os.dup(file.fileno()), "wb")
    with pa.output_stream(below, compression=COMPRESSIONS.get(suffix)) as text:
        if format == "jsonl":
            yield lambda batch: text.write(
                "".join(f"{json.dumps(row)}\n" for row in batch.to_pylist()).encode()
            )
            return
        head = io.StringIO()
        csv.writer(head, lineterminator="\n").writerow(schema.names)
        text.write(head.getvalue().encode())
        options = arrow_csv.WriteOptions(include_header=False, quoting_style="none")
        with arrow_csv.CSVWriter(text, schema, write_options=options) as table:
            yield table.write_batch


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
