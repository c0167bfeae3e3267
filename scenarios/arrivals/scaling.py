"""What scales a recorded trace: the keys of each operation, what it does to burstiness, and the operation itself.

IDC(w) is var/mean of the counts in windows of w, c2 var/mean² of the gaps, P/M(w) the largest count in a window of w
over the mean one; primed is after the operation. `squall.scenarios.arrivals.replay` and `window` apply the operations
part by part with the requests' sizes and sessions. Offsets are int64 ns, sorted, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer

from squall.scenarios.exact.draws import PoissonSeries
from squall.scenarios.exact.hashing import mix64
from squall.scenarios.fields import Count, Duration, Number, PositiveDuration, PositiveNumber, Section
from squall.scenarios.traces.parts.part import NO_SESSION

Offsets = NDArray[np.int64]
Rows = NDArray[np.int64]

_SESSION_SALT = (
    0x7151  # not the one that deals sessions to workers: what is kept must not lie on a few of them
)
LARGEST_TERM = 10**9  # of a time scale: times stay within int64 arithmetic of 128 bits
LARGEST_COPIES = 1_000


def _fraction(value: object) -> Fraction:
    """`1/60`, `2`, `0.25` as an exact ratio. Raises ValueError for anything else."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a ratio, write for example 1/60, 2 or 0.25")
    try:
        ratio = Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{value!r} is not a ratio, write for example 1/60, 2 or 0.25") from error
    if ratio <= 0 or max(ratio.numerator, ratio.denominator) > LARGEST_TERM:
        raise ValueError(f"{value!r} must be above 0, with numerator and denominator up to {LARGEST_TERM:,}")
    return ratio


Ratio = Annotated[Fraction, BeforeValidator(_fraction), PlainSerializer(str, return_type=str)]
"""An exact ratio above 0: `1/60` in the file."""

Share = Annotated[Number, Field(gt=0, le=1)]


class ThinScale(Section):
    """Each arrival stays with probability `keep`, independently: a random share of the requests.

    Rate · keep; IDC'(w) = 1 + keep·(IDC(w) - 1) exactly (law of total variance); c2 -> 1; P/M grows by noise alone.
    Taking every k-th arrival instead is no thinning: it evens the gaps out, and its IDC and c2 lie below that.
    """

    kind: Literal["thin"]
    keep: Share


class SessionScale(Section):
    """Each session stays whole with probability `keep`: what a load balancer with affinity leaves to one server.

    By a hash of the session's number, so the same every time. Rate · keep on average over sets of sessions. With
    independent sessions that each bring their arrivals in a time shorter than w, IDC'(w) = IDC(w), since every kept
    session is as clustered as before: the bursts inside sessions stay, where random thinning takes them apart. What
    the sessions have in common (a busy hour) falls as in `thin`.
    """

    kind: Literal["thin-by-session"]
    keep: Share


class OverlapScale(Section):
    """`copies` different windows of the trace at once, as of independent tenants; the trace must be long enough.

    Rate · copies; for windows that are independent IDC'(w) is the mean of theirs, so the same; c2 -> 1; the excess of
    P/M over 1 falls like 1/√copies.
    """

    kind: Literal["overlap"]
    copies: Annotated[Count, Field(ge=2, le=LARGEST_COPIES)]


class ReplicateScale(Section):
    """Each arrival `copies` times, once where it is, the others uniformly up to `jitter` later.

    Rate · copies; IDC'(w) -> copies·IDC(w) for w well above the jitter, since all copies fall into the same window;
    with jitter 0 c2' = copies·(c2 + 1) - 1, falling with the jitter; P/M(w) the same for w well above the jitter.
    """

    kind: Literal["replicate"]
    copies: Annotated[Count, Field(ge=2, le=LARGEST_COPIES)]
    jitter_ns: Duration = Field(alias="jitter")


class EnvelopeScale(Section):
    """The trace's rate per `bin`, times `factor`, with Poisson arrivals drawn anew: more of the same users.

    Rate · factor; c2 -> that of Poisson arrivals on this envelope. In windows that divide the bin B
    IDC'(w) = 1 + factor·(w/B)·IDC(B), in multiples of it IDC'(w) = 1 + factor·IDC(w), both exactly (law of total
    variance, given the counts). With IDC = 1 + the envelope's own part that is 1 + factor·(IDC - 1), and up to `factor`
    more for the noise that the counts themselves carry: a bin should hold 50 arrivals or more.
    """

    kind: Literal["envelope"]
    factor: PositiveNumber
    bin_ns: PositiveDuration = Field(default=60_000_000_000, alias="bin")


RateScaleConfig = Annotated[
    ThinScale | SessionScale | OverlapScale | ReplicateScale | EnvelopeScale, Field(discriminator="kind")
]


OTHER_SESSIONS: Final = (SessionScale, OverlapScale, ReplicateScale)
"""Scales that look at sessions, or whose copies are of others than the trace's."""


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
