"""Scaling a series of arrivals: what each operation makes of the instants, and what that does to its burstiness.

Offsets are int64 ns, sorted, from 0; every function gives back the same kind, and `scenarios.traces.replay` applies
them part by part with the requests' sizes and sessions. IDC(w) is var/mean of the counts in windows of w, c2 var/mean²
of the gaps, P/M(w) the largest count in a window of w over the mean one; primed is after the operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scenarios.hashing import mix64

Offsets = NDArray[np.int64]
Rows = NDArray[np.int64]

NO_SESSION = -1
_SESSION_SALT = (
    0x7151  # not the one that deals sessions to workers: what is kept must not lie on a few of them
)


def scaled(offset_ns: Offsets, ratio: Fraction) -> Offsets:
    """Every instant times `ratio`, floored: t' = t·num // den without a float and without overflow of t·num.

    Rate / ratio; c2 the same; IDC'(w) = IDC(w / ratio), P/M'(w) = P/M(w / ratio): bursts get as much shorter as the
    gaps do, so against fixed times (a service time, a queue delay) they are other bursts.
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


def spread(offset_ns: Offsets, width_ns: int, rng: np.random.Generator) -> Offsets:
    """Each arrival uniformly inside [its stamp, its stamp + width), sorted: undoes the grid of a coarse log.

    Rate the same. IDC(w) for w well above the width the same; below it, and in c2, the batches of the grid are gone:
    of Poisson arrivals floored to a grid it makes Poisson arrivals again (c2 1, IDC 1).
    """
    placed = offset_ns + delays(rng, offset_ns.size, width_ns)
    placed.sort()
    return placed


def thinned(offset_ns: Offsets, keep: float, rng: np.random.Generator) -> Offsets:
    """Each arrival stays with probability `keep`, independently: a random share of the requests.

    Rate · keep; IDC'(w) = 1 + keep·(IDC(w) - 1) exactly (law of total variance); c2 -> 1; P/M grows by noise alone.
    Taking every k-th arrival instead is no thinning: it evens the gaps out, and its IDC and c2 lie below that.
    """
    return offset_ns[kept_by_chance(rng, offset_ns.size, keep)]


def thinned_by_session(offset_ns: Offsets, session: NDArray[np.int64], keep: float) -> Offsets:
    """Sessions stay whole, each with probability `keep` by a hash of its number: no generator, the same every time.

    Rate · keep on average over sets of sessions. With independent sessions that each bring their arrivals in a time
    shorter than w, IDC'(w) = IDC(w), since every kept session is as clustered as before: the bursts inside sessions
    stay, where random thinning takes them apart. What the sessions have in common (a busy hour) falls as in `thinned`.
    """
    return offset_ns[kept_sessions(session, keep, 0)]


def overlaid(offset_ns: Offsets, copies: int, length_ns: int) -> Offsets:
    """`copies` consecutive windows of `length_ns` from 0 on, all at once, sorted; what lies behind them is not used.

    Rate · copies; for windows that are independent IDC'(w) is the mean of theirs, so the same; c2 -> 1; the excess of
    P/M falls like 1/√copies, as it does for independent tenants of one service.
    """
    placed = np.concatenate(
        [offset_ns[rows] - start for start, rows in windows(offset_ns, copies, length_ns)]
    )
    placed.sort()
    return placed


def replicated(offset_ns: Offsets, copies: int, jitter_ns: int, rng: np.random.Generator) -> Offsets:
    """Each arrival `copies` times: once where it is, the others uniformly up to `jitter_ns` later; sorted.

    Rate · copies; IDC'(w) -> copies·IDC(w) for w well above the jitter, since all copies fall into the same window;
    with jitter 0 c2' = copies·(c2 + 1) - 1, falling with the jitter; P/M(w) the same for w well above the jitter.
    """
    placed = np.repeat(offset_ns, copies)
    placed += copy_delays(rng, offset_ns.size, copies, jitter_ns)
    placed.sort()
    return placed


def redrawn(offset_ns: Offsets, factor: float, bin_ns: int, end_ns: int, rng: np.random.Generator) -> Offsets:
    """Poisson arrivals at `factor` times the count of each bin of `bin_ns`, the last of which ends at `end_ns`.

    Rate · factor; c2 -> that of Poisson arrivals on this envelope. In windows that divide the bin B
    IDC'(w) = 1 + factor·(w/B)·IDC(B), in multiples of it IDC'(w) = 1 + factor·IDC(w), both exactly (law of total
    variance, given the counts). With IDC = 1 + the envelope's own part that is 1 + factor·(IDC - 1), and up to `factor`
    more for the noise that the counts themselves carry: a bin should hold 50 arrivals or more.
    """
    redraw = Redraw.seeded(rng, factor, bin_ns, end_ns)
    return redraw.bins(offset_ns)[0]


def looped(offset_ns: Offsets, period_ns: int, horizon_ns: int) -> Offsets:
    """The series again and again every `period_ns`, cut at the horizon. It must end before the period does.

    Rate, c2 and IDC(w) for w well below the period the same; at multiples of the period the counts are all equal.
    """
    n_laps = -(-horizon_ns // period_ns)
    placed = (np.arange(n_laps, dtype=np.int64)[:, None] * period_ns + offset_ns).ravel()
    return placed[: np.searchsorted(placed, horizon_ns)]


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
    """New arrivals bin by bin. Each kind of draw has a generator of its own, so that bins can come in any pieces."""

    factor: float
    bin_ns: int
    end_ns: int
    counts: np.random.Generator
    places: np.random.Generator
    picks: np.random.Generator

    @classmethod
    def seeded(cls, rng: np.random.Generator, factor: float, bin_ns: int, end_ns: int) -> Redraw:
        return cls(factor, bin_ns, end_ns, *rng.spawn(3))

    def bins(self, offset_ns: Offsets) -> tuple[Offsets, Rows]:
        """New offsets, sorted, for the sorted arrivals of whole bins; and of each the row whose request it repeats,
        drawn with replacement from its bin."""
        numbers = offset_ns // self.bin_ns
        firsts = np.flatnonzero(np.diff(numbers, prepend=-1))
        sizes = np.diff(firsts, append=offset_ns.size)
        starts = numbers[firsts] * self.bin_ns
        drawn = self.counts.poisson(self.factor * sizes)
        widths = np.repeat(np.clip(self.end_ns - starts, 1, self.bin_ns), drawn)
        inside = (self.places.random(widths.size) * widths).astype(np.int64)
        placed = np.repeat(starts, drawn) + np.minimum(inside, widths - 1)
        placed.sort()
        n_rows = np.repeat(sizes, drawn)
        picked = np.repeat(firsts, drawn) + (self.picks.random(n_rows.size) * n_rows).astype(np.int64)
        return placed, picked
