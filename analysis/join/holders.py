"""What holds what, where nothing names it: stretches that hold others whole, and the one set of them that holds nearly
all of something when no other set does.

On an H200 with four instances of one model under load the right one's batches held all of 115,675 kernels, the second
best's 50 to 56 % of a process's. Where all are busy nearly all the time, the others hold nearly all too: then the right
one is told by holding all but a thousandth, over many begins of its stretches, where each other one misses many.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from squall.analysis.arrays import Bools, Floats, Int64s

LEAST_HELD: Final = 0.99
"""Share of what is held that the stretches of its holder must hold."""
LARGEST_SECOND: Final = 0.97
"""Where those of another hold a larger share too, `MOST_MISSED` and `FEWEST_MISSED` tell them apart, or nothing."""
MOST_MISSED: Final = 0.001
"""Share that the holder may miss then."""
FEWEST_MISSED: Final = 20
"""How many each other one must miss then, beyond three times as many as the holder does."""
FEWEST: Final = 20
"""How many must be held for it to be told by whom; of fewer one is 5 % and more. Likewise begins of stretches."""
AMBIGUOUS, UNHELD = -2, -1


class Stretches:
    """Stretches of time in order of their starts, which may hold intervals; they may overlap."""

    def __init__(self, start_ns: Int64s, end_ns: Int64s) -> None:
        """(n,) arrays in any order; none ends before it starts."""
        self.order = np.lexsort((end_ns, start_ns))
        """Row, as given, of each by its number."""
        self._start, self._end = start_ns[self.order], end_ns[self.order]
        self._ends = np.sort(end_ns)
        self._reach = np.maximum.accumulate(self._end) if len(self.order) else self._end
        last = np.where(self._end == self._reach, np.arange(len(self.order)), 0)
        self._reaching = np.maximum.accumulate(last) if len(self.order) else last
        later = np.minimum.accumulate(self._end[::-1])[::-1]
        self._first_end = np.append(later, np.iinfo(np.int64).max)
        """Of each and all that begin after it the first end; after the last one never."""

    def holders(self, start_ns: Int64s, end_ns: Int64s) -> Int64s:
        """Of each interval the number of the stretch that holds it whole; AMBIGUOUS: several do, UNHELD: none does."""
        n_begun = np.searchsorted(self._start, start_ns, side="right")
        n_over = np.searchsorted(self._ends, end_ns, side="left")
        found = np.full(len(start_ns), UNHELD)
        held = np.flatnonzero(n_begun > 0)
        held = held[self._reach[n_begun[held] - 1] >= end_ns[held]]
        last = n_begun[held] - 1
        row = np.where(self._end[last] >= end_ns[held], last, self._reaching[last])
        is_shared = n_begun[held] - n_over[held] > 1
        is_around = self._first_end[n_begun[held]] < end_ns[held]  # of one that is over and had not begun
        first, _ = self.bounds(start_ns[held], end_ns[held])
        found[held] = np.where(np.where(is_around, first < last, is_shared), AMBIGUOUS, row)
        return found

    def bounds(self, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
        """Of each interval the numbers between which, both included, that of a stretch must be that holds it whole; the
        first is larger where none does."""
        first = np.searchsorted(self._reach, end_ns, side="left")
        return first, np.searchsorted(self._start, start_ns, side="right") - 1

    def hold(self, numbers: Int64s, start_ns: Int64s, end_ns: Int64s) -> Bools:
        """Whether each stretch, by its number, holds its interval whole; a number of none does not."""
        is_one = (numbers >= 0) & (numbers < len(self._start))
        row = np.where(is_one, numbers, 0)
        if not len(self._start):
            return is_one
        return is_one & (self._start[row] <= start_ns) & (end_ns <= self._end[row])

    @property
    def begins_ns(self) -> Int64s:
        """Begin of each, in order."""
        return self._start

    def n_held(self, start_ns: Int64s, end_ns: Int64s) -> int:
        """How many of the intervals some stretch holds."""
        return int(np.count_nonzero(self.holders(start_ns, end_ns) != UNHELD))


def holder_of(n: int, held: Int64s | Floats, n_begun: int) -> int | None:
    """Number of the one that holds nearly all of `n` when no other does; None where that cannot be told.

    `held`: how many of them each holds; `n_begun`: stretches of the best that began meanwhile. One whose stretches
    hardly ever begin misses nothing of anything.
    """
    if n < FEWEST or not held.size:
        return None
    best = int(held.argmax())
    others = np.delete(held.astype(np.float64), best)
    is_clear = not others.size or others.max() <= LARGEST_SECOND * n
    return (
        best
        if held[best] >= LEAST_HELD * n and (is_clear or _is_told(n, held[best], others, n_begun))
        else None
    )


def _is_told(n: int, best: float, others: Floats, n_begun: int) -> bool:
    """Whether what they miss tells the best from the others."""
    missed = n - best
    is_apart = stand_apart(n - others.max(), missed, FEWEST_MISSED)
    return bool(n_begun >= FEWEST and missed <= MOST_MISSED * n and is_apart)


def stand_apart(n_missed: float, n_own: float, fewest: int) -> bool:
    """Whether what misses so many cannot be what is true, where what seems to be misses `n_own`."""
    return bool(n_missed >= 3 * n_own + fewest)
