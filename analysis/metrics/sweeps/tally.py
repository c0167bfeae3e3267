"""Exact quantiles of very many whole numbers: how often each value occurs, instead of the values themselves."""

from __future__ import annotations

import numpy as np

from squall.analysis.arrays import Int64s

_DENSE = 1 << 16
"""Values below this have a place each: most durations and gaps, in ns, are."""
_MERGE_FROM = 1 << 18


class Tally:
    """Counts of the values 0, 1, 2, … that were added. Memory grows with the number of different values."""

    def __init__(self, n_dense: int = _DENSE) -> None:
        self._dense = np.zeros(n_dense, np.int64)
        self._values = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._new: list[tuple[Int64s, Int64s]] = []
        self._n_new = 0

    def add(self, values: Int64s) -> None:
        """Adds values, each at least 0."""
        if not len(values):
            return
        is_small = values < len(self._dense)
        if is_small.any():
            self._dense += np.bincount(values[is_small], minlength=len(self._dense))
        if is_small.all():
            return
        found, counts = np.unique(values[~is_small], return_counts=True)
        self._new.append((found, counts))
        self._n_new += len(found)
        if self._n_new > max(_MERGE_FROM, len(self._values)):
            self._merge()

    def _merge(self) -> None:
        self._values, self._counts = summed([(self._values, self._counts), *self._new])
        self._new, self._n_new = [], 0

    def counted(self) -> tuple[Int64s, Int64s]:
        """The different values in ascending order, and how often each was added."""
        self._merge()
        small = np.flatnonzero(self._dense)
        return np.r_[small, self._values], np.r_[self._dense[small], self._counts]


def summed(parts: list[tuple[Int64s, Int64s]]) -> tuple[Int64s, Int64s]:
    """Values, ascending, and counts of all of `parts`, each with its values ascending."""
    values = np.concatenate([found for found, _ in parts])
    if len(parts) == 1 or not len(values):
        return values, np.concatenate([found for _, found in parts])
    order = np.argsort(values, kind="stable")  # merges runs that are in order
    values = values[order]
    first = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    counts = np.concatenate([found for _, found in parts])[order]
    return values[first], np.add.reduceat(counts, first)


class Distribution:
    """What is asked of counted values. Quantiles have rank ceil(q n); the median is the mean of the middle two."""

    def __init__(self, values: Int64s, counts: Int64s) -> None:
        self.values = values
        self.counts = counts
        self._upto = np.cumsum(counts)

    @classmethod
    def of(cls, tally: Tally) -> Distribution:
        return cls(*tally.counted())

    @property
    def n(self) -> int:
        return int(self._upto[-1]) if len(self._upto) else 0

    @property
    def total(self) -> int:
        return int(self.values @ self.counts)

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None

    def rank(self, rank: int) -> int:
        """The value of 1-based `rank`."""
        return int(self.values[np.searchsorted(self._upto, rank)])

    def quantile(self, q_permille: int) -> int | None:
        """The value of rank ceil(q n), q in thousandths; None of no values."""
        return self.rank(max(1, -(-q_permille * self.n // 1000))) if self.n else None

    @property
    def median(self) -> float | None:
        if not self.n:
            return None
        return (self.rank((self.n + 1) // 2) + self.rank(self.n // 2 + 1)) / 2

    @property
    def least(self) -> int | None:
        return int(self.values[0]) if self.n else None

    @property
    def most(self) -> int | None:
        return int(self.values[-1]) if self.n else None

    def n_below(self, limit: int) -> int:
        """How many values are below `limit`."""
        place = int(np.searchsorted(self.values, limit))
        return int(self._upto[place - 1]) if place else 0

    def total_below(self, limit: int) -> int:
        """Sum of the values below `limit`."""
        place = int(np.searchsorted(self.values, limit))
        return int(self.values[:place] @ self.counts[:place])
