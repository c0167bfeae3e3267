"""Columns of a plan: in memory up to `MOST_ROWS_IN_MEMORY`, above it mapped from temporary files without a name.

A mapped column is an ordinary read-only array whose file goes with the last reference to it. Its pages are the
kernel's to drop, so that a sweep in `pieces` over columns of any length takes no more memory than there is.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from io import FileIO
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from squall.scenarios.errors import ScenarioError

MOST_ROWS_IN_MEMORY = 2**24
PIECE_ROWS = 2**20


class Column:
    """A column under construction."""

    def __init__(self, dtype: DTypeLike) -> None:
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

    def join(self) -> NDArray[Any]:
        """All rows, (n,); the column is empty afterwards. One chunk is returned as it is."""
        if self._file is not None:
            with self._file as file:
                return np.asarray(np.memmap(file, self._dtype, mode="r"))
        chunks, self._chunks = self._chunks, []
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, self._dtype), *chunks])


def pieces(n_rows: int, most: int = PIECE_ROWS) -> Iterator[slice]:
    """Slices that cover columns of `n_rows` rows in order, `most` at a time."""
    for start in range(0, n_rows, most):
        yield slice(start, min(start + most, n_rows))
