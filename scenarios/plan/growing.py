"""Columns that grow: in memory up to a size, beyond it in temporary files without a name.

A file-backed column is an ordinary read-only array over a mapped file that goes with the last reference to it. Its
pages are the kernel's to drop; `pieces` drops them behind itself, so that a sweep over columns of any length holds a
few MB.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.errors import ScenarioError

MOST_ROWS_IN_MEMORY = 2**24
PIECE_ROWS = 2**20
"""Rows at a time; a multiple of every page size, so that a piece of any column is whole pages."""
_LEAST_BLOCK_ROWS = 2**12
_BLOCK_BYTES = 2**25
"""glibc maps an allocation of this size on its own, so that its memory goes back when it is freed."""


class Column:
    """A column under construction."""

    def __init__(
        self, dtype: str, folder: Path | None = None, most_rows_in_memory: int | None = None
    ) -> None:
        """`folder`: where the file goes if there is one; None: the system's temporary folder."""
        self._dtype = np.dtype(dtype)
        self._folder = folder
        self._most_rows = MOST_ROWS_IN_MEMORY if most_rows_in_memory is None else most_rows_in_memory
        self._chunks: list[NDArray[Any]] = []
        self._block = np.empty(0, self._dtype)
        self._n_used = 0
        self._file: FileIO | None = None
        self._n_rows = 0

    def __len__(self) -> int:
        return self._n_rows

    def append(self, rows: NDArray[Any]) -> None:
        """Adds rows; an array of 32 MiB or more is the column's own from then on.

        Raises ScenarioError where a file cannot be written.
        """
        rows = np.asarray(rows, dtype=self._dtype)
        self._n_rows += rows.size
        if self._n_rows > self._most_rows:
            self._write(rows)
        elif rows.nbytes >= _BLOCK_BYTES:
            self._close_block()
            self._chunks.append(rows)
        else:
            self._copy(rows)

    def fill(self, count: int, draw: Callable[[int], NDArray[Any]]) -> None:
        """Adds `count` rows, `draw(n)` giving the next n of them: `PIECE_ROWS` at a time, always the same pieces."""
        is_in_memory = self._n_rows + count <= self._most_rows
        whole = np.empty(count if is_in_memory else 0, self._dtype)
        for start in range(0, count, PIECE_ROWS):
            rows = draw(min(PIECE_ROWS, count - start))
            if is_in_memory:
                whole[start : start + rows.size] = rows
            else:
                self.append(rows)
        if whole.size:
            self.append(whole)

    def join(self) -> NDArray[Any]:
        """All rows, (n,); the column is empty afterwards. One chunk is given back as it is."""
        if self._file is not None:
            with _disk(self._folder), self._file as file:
                return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), self._dtype)
        self._close_block()
        if len(self._chunks) == 1:
            return self._chunks.pop()
        whole = np.empty(self._n_rows, self._dtype)
        place = self._n_rows
        while self._chunks:
            chunk = self._chunks.pop()
            place -= chunk.size
            whole[place : place + chunk.size] = chunk
        return whole

    def _copy(self, rows: NDArray[Any]) -> None:
        """Into blocks that grow to a size that the allocator gives back to the system, as `join` empties them."""
        while rows.size:
            if self._n_used == self._block.size:
                n_rows = max(2 * self._block.size, rows.size, _LEAST_BLOCK_ROWS)
                self._close_block()
                self._block = np.empty(min(n_rows, _BLOCK_BYTES // self._dtype.itemsize), self._dtype)
            taken = rows[: self._block.size - self._n_used]
            self._block[self._n_used : self._n_used + taken.size] = taken
            self._n_used += taken.size
            rows = rows[taken.size :]

    def _close_block(self) -> None:
        if self._n_used:
            self._chunks.append(self._block[: self._n_used])
        self._block, self._n_used = self._block[:0], 0

    def _write(self, rows: NDArray[Any]) -> None:
        with _disk(self._folder):
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115 - it grows until `join`
                weakref.finalize(self, self._file.close)
            self._close_block()
            while self._chunks:
                _write_all(self._file, self._chunks.pop(0))
            _write_all(self._file, rows)


def pieces(columns: Sequence[NDArray[Any]], n_rows: int = PIECE_ROWS) -> Iterator[slice]:
    """Slices that cover columns of one length in order, `n_rows` (a multiple of 4,096) at a time.

    Behind each the pages of file-backed columns are dropped.
    """
    maps = [(mapped, column.itemsize) for column in columns if (mapped := _map_of(column)) is not None]
    length = min((column.size for column in columns), default=0)
    for start in range(0, length, n_rows):
        stop = min(start + n_rows, length)
        yield slice(start, stop)
        for mapped, item_bytes in maps:
            mapped.madvise(mmap.MADV_DONTNEED, start * item_bytes, (stop - start) * item_bytes)


def _write_all(file: FileIO, rows: NDArray[Any]) -> None:
    left = np.ascontiguousarray(rows).view(np.uint8).data
    while left:
        left = left[file.write(left) :]


def _map_of(column: NDArray[Any]) -> mmap.mmap | None:
    base: Any = column
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


class _disk:
    """Maps the errors of temporary files."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            folder = self._folder or tempfile.gettempdir()
            reason = error.strerror or str(error)
            raise ScenarioError(
                f"{folder}: a temporary file of the plan cannot be written: {reason}; free space there or set TMPDIR"
            ) from error
