"""Small numbers for the different values of columns, the same over all slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Int64s

# SplitMix64's step and finaliser (Steele, Lea, Flood 2014, figure 17; variant 13 of Stafford's mixers).
_STEP = 0x9E3779B97F4A7C15
_MIX, _MIX_AGAIN = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def present(codes: Int64s) -> list[int]:
    """The different ones of small whole numbers, ascending; negative ones left out."""
    if not len(codes):
        return []
    low, high = int(codes.min()), int(codes.max())
    if low == high:
        return [low] if low >= 0 else []
    found: list[int] = np.flatnonzero(np.bincount(codes[codes >= 0] if low < 0 else codes)).tolist()
    return found


class Numbering:
    """Numbers 0, 1, … of different rows of whole numbers, as they come.

    Rows are told apart by a hash of 64 bits: of a million different rows two are taken for one with a chance below
    one in ten million (birthday bound n^2 / 2^65).
    """

    def __init__(self, n_columns: int) -> None:
        self.rows = np.zeros((0, n_columns), np.int64)
        """The different rows, by number."""
        self._known = np.zeros(0, np.uint64)
        self._number = np.zeros(0, np.int64)

    def encode(self, columns: Sequence[Int64s]) -> Int64s:
        """The number of each row of `columns`."""
        if not len(columns[0]):
            return np.zeros(0, np.int64)
        hashed = _hashes(columns)
        if len(hashed) == 1 < len(columns[0]):
            return np.full(len(columns[0]), self.encode([column[:1] for column in columns])[0])
        while True:
            place = np.minimum(np.searchsorted(self._known, hashed), max(0, len(self._known) - 1))
            is_known = self._known[place] == hashed if len(self._known) else np.zeros(len(hashed), bool)
            if is_known.all():
                return self._number[place]
            self._learn(columns, hashed, ~is_known)

    def _learn(
        self, columns: Sequence[Int64s], hashed: NDArray[np.uint64], is_new: NDArray[np.bool_]
    ) -> None:
        at = np.flatnonzero(is_new)
        new, first = np.unique(hashed[at], return_index=True)
        first.sort()  # numbered as they come
        new = hashed[at[first]]
        number = len(self.rows) + np.arange(len(new))
        self.rows = np.concatenate([self.rows, np.column_stack([column[at[first]] for column in columns])])
        order = np.argsort(np.r_[self._known, new], kind="stable")
        self._known = np.r_[self._known, new][order]
        self._number = np.r_[self._number, number][order]


def _hashes(columns: Sequence[Int64s]) -> NDArray[np.uint64]:
    """A hash of each row; a single one if all rows are the same. Columns of one value cost next to nothing.

    The sum over the columns of SplitMix64's output at (value + step * place). A weaker mixer will not do: rows are
    small numbers, and of those that differ as (7, 0) and (1, 2) do whole families fell together.
    """
    total = np.zeros(1, np.uint64)
    for place, column in enumerate(columns):
        is_same = column[0] == column[-1] and bool((column == column[0]).all())
        mixed = (column[:1] if is_same else column).astype(np.uint64)
        mixed += np.uint64(_STEP * (place + 1) % (1 << 64))
        mixed ^= mixed >> np.uint64(30)
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(27)
        mixed *= _MIX_AGAIN
        mixed ^= mixed >> np.uint64(31)
        total = total + mixed
    return total
