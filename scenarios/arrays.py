"""Names of the arrays that every part of a plan speaks of, and how they are swept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Array = NDArray[Any]
Columns = Mapping[str, Array]
"""Of equal length, by name."""
PIECE_ROWS = 2**20


def pieces(n_rows: int, most: int = PIECE_ROWS) -> Iterator[slice]:
    """Slices that cover columns of `n_rows` rows in order, `most` at a time."""
    for start in range(0, n_rows, most):
        yield slice(start, min(start + most, n_rows))
