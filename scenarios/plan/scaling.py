"""Pieces of the operations that scale a trace: which arrivals stay, by how much they move, what is drawn anew.

`squall.scenarios.plan.replay` and `window` apply them part by part with the requests' sizes and sessions;
`squall.scenarios.config.trace` says what each operation does to rate and burstiness. Offsets are int64 ns, sorted, from
0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.exact.draws import PoissonSeries
from squall.scenarios.plan.hashing import mix64
from squall.scenarios.traces.parts.part import NO_SESSION

Offsets = NDArray[np.int64]
Rows = NDArray[np.int64]

_SESSION_SALT = (
    0x7151  # not the one that deals sessions to workers: what is kept must not lie on a few of them
)


def scaled(offset_ns: Offsets, ratio: Fraction) -> Offsets:
    """Every instant times `ratio`, floored: t' = t·num // den without a float and without overflow of t·num.

    t = q·den + r gives q·num + r·num // den, of which the second term fits for num and den up to 1e9.
    """
    if ratio == 1:
        return offset_ns
    whole, rest = np.divmod(offset_ns, ratio.denominator)
    whole *= ratio.numerator
    rest *= ratio.numerator
    rest //= ratio.denominator
    whole += rest
    return whole


def delays(rng: np.random.Generator, count: int, width_ns: int) -> Offsets:
    """Uniform whole ns in [0, width_ns), (count,). Drawn in pieces it is the same series."""
    return rng.integers(0, width_ns, count, dtype=np.int64)


def copy_delays(rng: np.random.Generator, count: int, copies: int, jitter_ns: int) -> Offsets:
    """Delays of each arrival's copies, (count · copies,): 0 for the first, uniform in [0, jitter_ns] for the others."""
    late = rng.integers(0, jitter_ns, (count, copies - 1), dtype=np.int64, endpoint=True)
    return np.concatenate([np.zeros((count, 1), np.int64), late], axis=1).ravel()


def kept_by_chance(rng: np.random.Generator, count: int, keep: float) -> NDArray[np.bool_]:
    """Which of `count` arrivals a random thinning keeps. Drawn in pieces it is the same series."""
    return rng.random(count) < keep


def kept_sessions(session: NDArray[np.int64], keep: float, first_row: int) -> NDArray[np.bool_]:
    """Which arrivals a thinning by session keeps, the first being row `first_row`.

    One that names no session (-1) is a session of its own, told by its row.
    """
    rows = np.arange(first_row, first_row + session.size, dtype=np.int64)
    hashes = np.where(session == NO_SESSION, mix64(rows, _SESSION_SALT + 1), mix64(session, _SESSION_SALT))
    return hashes <= np.uint64(max(int(keep * 2**64), 1) - 1)


def windows(offset_ns: Offsets, copies: int, length_ns: int) -> list[tuple[int, slice]]:
    """Start in ns and rows of `copies` consecutive windows from 0 on."""
    starts = [index * length_ns for index in range(copies)]
    bounds = np.searchsorted(offset_ns, [*starts, copies * length_ns]).tolist()
    return [
        (start, slice(low, high)) for start, low, high in zip(starts, bounds[:-1], bounds[1:], strict=True)
    ]


def other_sessions(session: NDArray[np.int64], copy: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """The sessions of copy number `copy`, (n,): other people than those of copy 0, which are the trace's own."""
    mixed = mix64(session ^ mix64(np.asarray(copy, np.int64), 1).astype(np.int64)) >> np.uint64(1)
    is_same = (session == NO_SESSION) | (np.asarray(copy) == 0)
    return np.where(is_same, session, mixed.astype(np.int64))


@dataclass(frozen=True)
class Redraw:
    """New arrivals bin by bin: Poisson of `factor` times the bin's count, uniform inside it; the last ends at `end_ns`.

    Each kind of draw has a generator of its own, so that bins can come in any pieces.
    """

    factor: float
    bin_ns: int
    end_ns: int
    counts: PoissonSeries
    places: np.random.Generator
    picks: np.random.Generator

    @classmethod
    def seeded(cls, rng: np.random.Generator, factor: float, bin_ns: int, end_ns: int) -> Redraw:
        counts, places, picks = rng.spawn(3)
        return cls(factor, bin_ns, end_ns, PoissonSeries(counts), places, picks)

    def bins(self, offset_ns: Offsets) -> tuple[Offsets, Rows]:
        """New offsets, sorted, for the sorted arrivals of whole bins; and of each the row whose request it repeats,
        drawn with replacement from its bin."""
        numbers = offset_ns // self.bin_ns
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        sizes = np.diff(firsts, append=offset_ns.size)
        starts = numbers[firsts] * self.bin_ns
        drawn = self.counts.draw(self.factor * sizes)
        widths = np.repeat(np.clip(self.end_ns - starts, 1, self.bin_ns), drawn)
        inside = (self.places.random(widths.size) * widths).astype(np.int64)
        placed = np.repeat(starts, drawn) + np.minimum(inside, widths - 1)
        placed.sort()
        n_rows = np.repeat(sizes, drawn)
        picked = np.repeat(firsts, drawn) + (self.picks.random(n_rows.size) * n_rows).astype(np.int64)
        return placed, picked
