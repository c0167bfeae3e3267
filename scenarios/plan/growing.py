"""Columns of a plan: in memory up to `MOST_ROWS_IN_MEMORY`, above it mapped from temporary files without a name.

A mapped column is an ordinary read-only array whose file goes with the last reference to it. Its pages are the
kernel's to drop, so that a sweep in `pieces` over columns of any length takes no more memory than there is.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.errors import ScenarioError

MOST_ROWS_IN_MEMORY = 2**24
PIECE_ROWS = 2**20


class Column:
    """A column under construction."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        self._chunks: list[NDArray[Any]] = []
        self._file: FileIO | None = None  # has all rows, once they are too many for memory
        self._n_rows = 0

    def __len__(self) -> int:
        return self._n_rows

    def append(self, rows: NDArray[Any]) -> None:
        """Adds rows. Raises ScenarioError if the temporary file cannot be written."""
        self._chunks.append(np.asarray(rows, dtype=self._dtype))
        self._n_rows += rows.size
        if self._n_rows <= MOST_ROWS_IN_MEMORY:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it grows until `join`
                weakref.finalize(self, self._file.close)
            while self._chunks:
                left = np.ascontiguousarray(self._chunks.pop(0)).view(np.uint8).data
                while left:
                    left = left[self._file.write(left) :]
        except OSError as error:
            raise ScenarioError(
                f"{tempfile.gettempdir()}: a temporary file of the plan cannot be written:"
                f" {error.strerror or error}; free space there or set TMPDIR"
            ) from error

    def fill(self, count: int, draw: Callable[[int], NDArray[Any]]) -> None:
        """Adds `count` rows, `draw(n)` returning the next n of them: `PIECE_ROWS` at a time, always the same pieces."""
        for start in range(0, count, PIECE_ROWS):
            self.append(draw(min(PIECE_ROWS, count - start)))

    def join(self) -> NDArray[Any]:
        """All rows, (n,); the column is empty afterwards. One chunk is returned as it is."""
        if self._file is not None:
            with self._file as file:
                return np.asarray(np.memmap(file, self._dtype, mode="r"))
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, self._dtype), *chunks])


def pieces(columns: Sequence[NDArray[Any]], n_rows: int = PIECE_ROWS) -> Iterator[slice]:
    """Slices that cover columns of one length in order, `n_rows` at a time."""
    length = min((column.size for column in columns), default=0)
    for start in range(0, length, n_rows):
        yield slice(start, min(start + n_rows, length))
