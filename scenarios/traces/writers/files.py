"""How the rows of a trace come into a file that is open: as text, compressed or not, or in columns."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable
from typing import IO, Any, Literal, cast

from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.traces.parts.texts import session_texts
from squall.scenarios.traces.writers.encoders import Encoding, column_names

COMPRESSIONS = (".gz", ".zst")

Write = Callable[[IO[bytes], str, TracePart, Iterable[TracePart]], None]
"""Writes all parts, of which the first is given beforehand, into a file whose name ends as stated. It stays open."""


def as_text(encoding: Encoding) -> Write:
    """Compressed where the name's ending says so."""

    def write(file: IO[bytes], suffix: str, first: TracePart, parts: Iterable[TracePart]) -> None:
        encoder = encoding(first)
        with _compressed(file, suffix) as text:
            text.write(encoder.head())
            for part in parts:
                text.write(encoder.rows(part))
            text.write(encoder.tail())

    return write


def as_columns(container: Literal["parquet", "arrow"]) -> Write:
    """Compressed, or not, by the container's own means."""

    def write(file: IO[bytes], _: str, first: TracePart, parts: Iterable[TracePart]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = column_names(first)
        types = [
            pa.string() if name == "session" and first.session is not None else pa.int64() for name in names
        ]
        schema = pa.schema(list(zip(names, types, strict=True)))
        writer: Any
        if container == "parquet":
            writer = pq.ParquetWriter(file, schema, compression="zstd")
        else:
            writer = pa.ipc.new_file(file, schema)
        with writer:
            for part in parts:
                columns = [pa.array(part.stamp_ns)]
                columns += [pa.array(values, mask=values == -1) for values in part.sizes.values()]
                columns += [] if part.session is None else [session_texts(part.session)]
                writer.write_batch(pa.record_batch(columns, schema=schema))

    return write


def _compressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """`file` itself, or what compresses into it; closing it leaves `file` open."""
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0))
    if suffix == ".zst":
        import pyarrow as pa

        return cast(IO[bytes], pa.CompressedOutputStream(os.fdopen(os.dup(file.fileno()), "wb"), "zstd"))
    return os.fdopen(os.dup(file.fileno()), "wb")
