"""A table that grows in a local Arrow stream file, readable up to its last whole batch however its writer ended."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.analysis.storage.schema import arrow_schema

_COPIED_BYTES = 2**20
_LEAST_COMPRESSED_BYTES = 65_536
"""Below, zstd costs 1.9 ms a table and saves 6 % (2-core Debian 12, 2026-11-21)."""
_MOST_EXPANDED_BYTES = 2**30
"""Of a stream, which holds one table: the largest are 262,144 records of the kernel library, 80 MB."""
_MOST_CHARACTERS = 1024
_USHORT, _INT, _UINT, _LONG, _SPAN = map(struct.Struct, ("<H", "<i", "<I", "<q", "<qq"))


class SpillFile:
    """Appends tables of one schema to `path`. Not thread-safe.

    A file that somebody removed meanwhile is put back whole, with its folder, at the next write or at the end.

    After a write that failed (full disk) the file is cut back to its last whole batch and takes no more: `write`
    answers False, and `error` says why.
    """

    def __init__(self, path: Path, table: str) -> None:
        """Creates `path` with the schema of `table`. Raises OSError where that fails."""
        self.error = ""
        self._schema = arrow_schema(table)
        self._path = path
        self._file = path.open("x+b", buffering=0)
        self._n_bytes = 0

    def write(self, data: pa.Table) -> bool:
        """Appends `data` as a stream of its own behind the ones before; True if it is in the file."""
        if self.error:
            return False
        try:
            self._put_back()
            self._write_whole(self._encoded(data))
        except OSError as error:
            self.error = error.strerror or str(error)
            with contextlib.suppress(OSError):  # a reader stops at the piece of a batch all the same
                os.ftruncate(self._file.fileno(), self._n_bytes)
            return False
        return True

    def rehearse(self, data: pa.Table) -> None:
        """Encodes `data` for nothing: the first time, libraries are loaded, which takes up to half a second."""
        self._encoded(data)

    def _encoded(self, data: pa.Table) -> memoryview:
        encoded = io.BytesIO()
        compression = "zstd" if data.nbytes > _LEAST_COMPRESSED_BYTES else None
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        with pa.ipc.new_stream(encoded, self._schema, options=options) as stream:
            stream.write_table(data)
        return encoded.getbuffer()

    def _write_whole(self, data: memoryview) -> None:
        n_written = 0
        while n_written < len(data):
            n_written += self._file.write(data[n_written:])
        self._n_bytes += n_written

    def _put_back(self) -> None:
        """Where the file's name was removed: what it holds, which only lives while it is open, in a new one."""
        if os.fstat(self._file.fileno()).st_nlink:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        old, new = self._file, self._path.open("w+b", buffering=0)
        try:
            old.seek(0)
            shutil.copyfileobj(old, new, _COPIED_BYTES)
        except OSError:
            new.close()
            raise
        self._file = new
        old.close()

    def close(self) -> None:
        """Closes the file; what was written stays."""
        with contextlib.suppress(OSError):
            self._put_back()
        self._file.close()


def used_words(codes: NDArray[Any], known: Sequence[str]) -> pa.Array:
    """A text column, (n,) from `codes` into `known`, with only those of these that it uses: all details, in every
    table, would outweigh the rows, and readers list the words of a column."""
    is_used = np.zeros(int(codes.max(initial=0)) + 1, bool)  # codes are few: quicker than to sort them
    is_used[codes] = True
    used = np.flatnonzero(is_used)
    places = np.cumsum(is_used, dtype=np.int32) - np.int32(1)
    texts = pa.array([known[code] for code in used.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(places[codes]), texts)


def bounded(text: str) -> str:
    """A name that another program wrote, as a table takes it: 1024 characters, none of which is half a pair."""
    return text[:_MOST_CHARACTERS].encode(errors="replace").decode()


def read_spill(
    data: pa.BufferReader | pa.OSFile | pa.PythonFile, table: str = "", losses: list[str] | None = None
) -> Iterator[pa.Table]:
    """The tables in a spill file, oldest first, whoever wrote it: with the columns of `table`, if that is named, and
    only batches that are whole. Streams behind a damaged one are read as long as it is seen where that ends.

    What cannot be read is told in `losses`, also where the writer died in the middle of a batch.
    """
    size = data.size()
    while (start := data.tell()) < size:
        n_whole, is_framed = _whole_messages(data)
        end = data.tell() if is_framed else size
        data.seek(start)
        rows, is_sound = _rows_of(data.read_buffer(n_whole), arrow_schema(table) if table else None)
        data.seek(end)
        if losses is not None and not (is_framed and is_sound):
            n_kept = len(rows or ())
            losses.append(
                f"bytes {start} to {end} are damaged or cut off: {n_kept} rows of these could be read"
            )
        if rows:
            yield rows


def _whole_messages(data: pa.NativeFile) -> tuple[int, bool]:
    """Bytes of the stream's messages until one is damaged, or all would expand to more than a GiB; and whether its end
    was found, where `data` is then."""
    start, n_whole, n_expanded = data.tell(), 0, 0
    try:
        for message in pa.ipc.MessageReader.open_stream(data):
            n_expanded += _expanded_bytes(message)
            if n_expanded > _MOST_EXPANDED_BYTES:
                return n_whole, False
            n_whole = data.tell() - start
    except (pa.ArrowException, OSError, MemoryError, struct.error):
        return n_whole, False
    return n_whole, True


def _expanded_bytes(message: pa.Message) -> int:
    """Of its body: each buffer of a compressed one begins with its length once expanded, or with -1.

    Metadata is a flatbuffer that Arrow has verified (Message.fbs): header 2, of a DictionaryBatch data 1, of a
    RecordBatch buffers 2 and compression 3.
    """
    if message.type == "schema":
        return 0
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    batch = _field(metadata, _UINT.unpack_from(metadata)[0], 2)
    if message.type == "dictionary":
        batch = _field(metadata, batch, 1)
    if not _field(metadata, batch, 3):
        return len(body)
    first = _field(metadata, batch, 2)
    (n_buffers,) = _UINT.unpack_from(metadata, first)
    spans = _SPAN.iter_unpack(metadata[first + 4 : first + 4 + n_buffers * _SPAN.size])
    return sum(max(0, n_bytes, *_LONG.unpack_from(body, offset)) for offset, n_bytes in spans if n_bytes)


def _field(flatbuffer: memoryview, table: int, number: int) -> int:
    """Where the table or vector lies to which a field leads; 0 where the field is not there."""
    entries = table - _INT.unpack_from(flatbuffer, table)[0]
    entry, (n_bytes,) = 4 + 2 * number, _USHORT.unpack_from(flatbuffer, entries)
    place = _USHORT.unpack_from(flatbuffer, entries + entry)[0] if entry < n_bytes else 0
    return place and table + place + _UINT.unpack_from(flatbuffer, table + place)[0]


def _rows_of(content: pa.Buffer, schema: pa.Schema | None) -> tuple[pa.Table | None, bool]:
    """The rows of a stream up to its first batch that is none, None where it has another schema; whether that is all
    of it. Nothing looks at values before they are validated: Arrow would follow an offset to anywhere."""
    batches: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(content) as stream:
            if schema is not None and stream.schema != schema:
                return None, False
            for batch in stream:
                _validate(batch)
                batches.append(batch)
            return pa.Table.from_batches(batches, stream.schema), True
    except (pa.ArrowException, OSError, MemoryError):  # OSError: what zstd cannot expand
        return (pa.Table.from_batches(batches) if batches else None), False


def _validate(batch: pa.RecordBatch) -> None:
    """Raises ArrowInvalid where its buffers do not hold its rows, or nulls are where none may be."""
    batch.validate(full=True)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        words = column.dictionary if isinstance(column, pa.DictionaryArray) else None
        if (column.null_count and not field.nullable) or (words is not None and words.null_count):
            raise pa.ArrowInvalid(f"{field.name} has nulls")
