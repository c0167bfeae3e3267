"""Rows in order of the schedule, in one planned stretch or several, and how long each level of them is remembered."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.statistics.autocorrelation import Deviations, deviations, integrated_time
from squall.analysis.statistics.order_statistics import nearest_rank
from squall.scenarios.errors import AnalysisError
from squall.scenarios.records import Frozen

INFINITE_NS = int(np.iinfo(np.int64).max)
"""Stands for a failed row while rows are ordered; no table and no summary holds it."""
_LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99)


class Stretch(Frozen, eq=False):
    """Rows in order of the schedule, failed ones infinite, and the same sorted; not empty."""

    rows_ns: Int64s
    sorted_ns: Int64s

    def is_below(self, q: float) -> Bools:
        """Which rows are at or below the q-quantile; less than it where that is nearer to a share of q.

        Ties make the two differ; where the quantile is the largest value or infinity, all rows are at or below it,
        and what varies is who falls short of it.
        """
        n = len(self.rows_ns)
        value_ns = self.sorted_ns[nearest_rank(q, n) - 1]
        n_less, n_most = (np.searchsorted(self.sorted_ns, value_ns, side) for side in ("left", "right"))
        is_less = n_less > 0 and (n_most == n or q * n - n_less < n_most - q * n)
        found: Bools = self.rows_ns < value_ns if is_less else self.rows_ns <= value_ns
        return found

    def time(self, level: float) -> float:
        """The autocorrelation time at `level`, in rows."""
        return integrated_time(deviations(self.is_below(level)))


class Rows:
    """All rows, and the stretches that they are made of."""

    def __init__(self, values_ns: Int64s, is_failed: Bools | None, lengths: Sequence[int] | None) -> None:
        rows_ns = np.asarray(values_ns, dtype=np.int64)
        if is_failed is not None:
            rows_ns = np.where(is_failed, INFINITE_NS, rows_ns)
        self.n = len(rows_ns)
        self.lengths = [length for length in ([self.n] if lengths is None else lengths) if length]
        if sum(self.lengths) != self.n:
            raise AnalysisError(f"stretches of {sum(self.lengths)} rows in all do not make up {self.n} rows")
        self.whole = Stretch(rows_ns, np.sort(rows_ns))
        self._times: dict[float, float] = {}

    @functools.cached_property
    def stretches(self) -> list[Stretch]:
        """Those that are not empty."""
        if self._is_one:
            return [self.whole]
        parts = np.split(self.whole.rows_ns, np.cumsum(self.lengths)[:-1])
        return [Stretch(part, np.sort(part)) for part in parts]

    @functools.cached_property
    def median_times(self) -> list[float]:
        """The autocorrelation time of each stretch at its own median, in rows."""
        return [self.time(0.5)] if self._is_one else [one.time(0.5) for one in self.stretches]

    def at_rank(self, rank: int | None) -> int | None:
        """The value at 1-based `rank`, or None for no rank and for infinity."""
        if rank is None or self.whole.sorted_ns[rank - 1] == INFINITE_NS:
            return None
        return int(self.whole.sorted_ns[rank - 1])

    def deviations(self, q: float) -> Deviations:
        """Of 1{X <= x} within the stretches, x the q-quantile of all rows."""
        return deviations(self.whole.is_below(q), self.lengths)

    def time(self, level: float) -> float:
        """The autocorrelation time in rows, each stretch at its own quantile of `level`."""
        if level not in self._times:
            parts = [one.is_below(level) for one in self.stretches]
            is_below = parts[0] if self._is_one else np.concatenate(parts)
            self._times[level] = integrated_time(deviations(is_below, self.lengths))
        return self._times[level]

    @property
    def _is_one(self) -> bool:
        """Whether all rows are one stretch: its quantiles are then those of all, and so are its times."""
        return len(self.lengths) == 1

    def times(self, series: Deviations, q: float) -> tuple[float, float]:
        """The longest autocorrelation time in rows: of `series`, which is at q, and of the levels from the median to
        q; and of all levels on that side of the median. A slow spell in a quick run shows in the far ones alone."""
        own = self.time(q) if self._is_one else integrated_time(series)
        levels = {one: one if q >= 0.5 else 1.0 - one for one in _LEVELS}
        near = [self.time(level) for one, level in levels.items() if one == 0.5 or one < max(q, 1.0 - q)]
        return max(own, *near), max(own, *(self.time(level) for level in levels.values()))


def run_lengths(codes: npt.NDArray[np.integer[Any]]) -> list[int]:
    """How many equal codes follow one another, in turn: the stretches of rows that are labelled, say, by phase."""
    if not len(codes):
        return []
    edges = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    return [int(length) for length in np.diff(np.concatenate([[0], edges, [len(codes)]]))]
