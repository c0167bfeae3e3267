"""What scales a recorded trace: the keys of each operation, what it does to burstiness, and the operation itself.

IDC(w) is var/mean of the counts in windows of w, c2 var/mean² of the gaps, P/M(w) the largest count in a window of w
over the mean one; primed is after the operation. Rows are those of `squall.scenarios.arrivals.replay`: their stamps
are int64 ns, sorted, from the beginning of the replay.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Final, Literal

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer

from squall.scenarios.arrays import Bools, Int64s
from squall.scenarios.arrivals.process import floor_in_place, refuse_many
from squall.scenarios.exact import draws
from squall.scenarios.exact.hashing import mix64
from squall.scenarios.fields import (
    BY_KIND,
    Count,
    Duration,
    PositiveDuration,
    PositiveNumber,
    Section,
)
from squall.scenarios.traces.part import NO_SESSION, TracePart

if TYPE_CHECKING:
    from numpy.random import Generator

_SESSION_SALT = (
    0x7151  # not the one that deals sessions to workers: what is kept must not lie on a few of them
)
LARGEST_TERM = 10**9  # of a time scale: times stay within int64 arithmetic of 128 bits
LARGEST_COPIES = 1_000


def _fraction(value: object) -> Fraction:
    """`1/60`, `2`, `0.25` as an exact ratio. Raises ValueError for anything else."""
    try:
        ratio = Fraction(str(value).strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{value!r} is not a ratio, write for example 1/60, 2 or 0.25") from error
    if ratio <= 0 or max(ratio.numerator, ratio.denominator) > LARGEST_TERM:
        raise ValueError(f"{value!r} must be above 0, with numerator and denominator up to {LARGEST_TERM:,}")
    return ratio


Ratio = Annotated[Fraction, BeforeValidator(_fraction), PlainSerializer(str, return_type=str)]
"""An exact ratio above 0: `1/60` in the file."""

Share = Annotated[PositiveNumber, Field(le=1)]
Copies = Annotated[Count, Field(ge=2, le=LARGEST_COPIES)]


class RateScale(Section):
    """An operation on the rate of a replayed trace; this one leaves it as it is."""

    def applied(self, rows: TracePart, rng: Generator, end_ns: int) -> TracePart:
        """The rows of a replay that ends at `end_ns`, scaled. Raises ValueError for those that cannot be."""
        del rng, end_ns
        return rows

    def reach_ns(self, t_ns: int) -> int:
        """Up to which instant rows decide how many arrivals are expected before `t_ns`."""
        return t_ns

    def expected(self, rows: TracePart, t_ns: int, width_ns: int, end_ns: int) -> float:
        """Arrivals expected before `t_ns`, each row being placed uniformly within `width_ns` from its stamp on."""
        del end_ns
        return expected_before(rows.stamp_ns, t_ns, width_ns)


class ThinScale(RateScale):
    """Each arrival stays with probability `keep`, independently: a random share of the requests.

    Rate · keep; IDC'(w) = 1 + keep·(IDC(w) - 1) exactly (law of total variance); c2 -> 1; P/M grows by noise alone.
    Taking every k-th arrival instead is no thinning: it evens the gaps out, and its IDC and c2 lie below that.
    """

    kind: Literal["thin"]
    keep: Share

    def applied(self, rows: TracePart, rng: Generator, end_ns: int) -> TracePart:
        del end_ns
        return rows.take(rng.random(len(rows)) < self.keep)

    def expected(self, rows: TracePart, t_ns: int, width_ns: int, end_ns: int) -> float:
        return self.keep * super().expected(rows, t_ns, width_ns, end_ns)


class SessionScale(RateScale):
    """Each session stays whole with probability `keep`: what a load balancer with affinity leaves to one server.

    By a hash of the session's number, so the same every time. Rate · keep on average over sets of sessions. With
    independent sessions that each bring their arrivals in a time shorter than w, IDC'(w) = IDC(w), since every kept
    session is as clustered as before: the bursts inside sessions stay, where random thinning takes them apart. What
    the sessions have in common (a busy hour) falls as in `thin`.
    """

    kind: Literal["thin-by-session"]
    keep: Share

    def applied(self, rows: TracePart, rng: Generator, end_ns: int) -> TracePart:
        del rng, end_ns
        return rows.take(self._is_kept(rows))

    def expected(self, rows: TracePart, t_ns: int, width_ns: int, end_ns: int) -> float:
        return super().expected(rows.take(self._is_kept(rows)), t_ns, width_ns, end_ns)

    def _is_kept(self, rows: TracePart) -> Bools:
        if rows.session is None:
            raise ValueError("rate_scale thin-by-session needs a trace with sessions; use kind thin")
        return kept_sessions(rows.session, self.keep)


class OverlapScale(RateScale):
    """`copies` different windows of the trace at once, as of independent tenants; the trace must be long enough.

    Rate · copies; for windows that are independent IDC'(w) is the mean of theirs, so the same; c2 -> 1; the excess of
    P/M over 1 falls like 1/√copies. It is the window that is so composed, before all else is done to it.
    """

    kind: Literal["overlap"]
    copies: Copies


class ReplicateScale(RateScale):
    """Each arrival `copies` times, once where it is, the others uniformly up to `jitter` later.

    Rate · copies; IDC'(w) -> copies·IDC(w) for w well above the jitter, since all copies fall into the same window;
    with jitter 0 c2' = copies·(c2 + 1) - 1, falling with the jitter; P/M(w) the same for w well above the jitter.
    """

    kind: Literal["replicate"]
    copies: Copies
    jitter_ns: Duration

    def applied(self, rows: TracePart, rng: Generator, end_ns: int) -> TracePart:
        """Later copies are of other sessions."""
        del end_ns
        refuse_many(len(rows) * self.copies)
        late = rng.integers(0, self.jitter_ns, (len(rows), self.copies - 1), dtype=np.int64, endpoint=True)
        again = rows.take(np.repeat(np.arange(len(rows)), self.copies))
        if again.session is not None:
            copy = np.tile(np.arange(self.copies), len(rows))
            again = replace(again, session=other_sessions(again.session, copy))
        return delayed(again, np.insert(late, 0, 0, axis=1).ravel())

    def expected(self, rows: TracePart, t_ns: int, width_ns: int, end_ns: int) -> float:
        """The copies of a row are counted from the middle of its width."""
        later = expected_before(rows.stamp_ns, t_ns - width_ns // 2, self.jitter_ns + 1)
        return super().expected(rows, t_ns, width_ns, end_ns) + (self.copies - 1) * later


class EnvelopeScale(RateScale):
    """The trace's rate per `bin`, times `factor`, with Poisson arrivals drawn anew: more of the same users.

    Rate · factor; c2 -> that of Poisson arrivals on this envelope. In windows that divide the bin B
    IDC'(w) = 1 + factor·(w/B)·IDC(B), in multiples of it IDC'(w) = 1 + factor·IDC(w), both exactly (law of total
    variance, given the counts). With IDC = 1 + the envelope's own part that is 1 + factor·(IDC - 1), and up to `factor`
    more for the noise that the counts themselves carry: a bin should hold 50 arrivals or more.
    """

    kind: Literal["envelope"]
    factor: PositiveNumber
    bin_ns: PositiveDuration = 60_000_000_000

    def applied(self, rows: TracePart, rng: Generator, end_ns: int) -> TracePart:
        """Each bin's request is one of that bin, drawn with replacement; the last bin ends at `end_ns`."""
        refuse_many(len(rows) * self.factor)
        count_rng, place_rng, pick_rng = rng.spawn(3)
        bins = rows.stamp_ns // self.bin_ns
        firsts = np.flatnonzero(np.diff(bins, prepend=-1))
        sizes = np.diff(firsts, append=len(rows))
        starts = bins[firsts] * self.bin_ns
        widths = np.full(firsts.size, self.bin_ns)
        widths[-1:] = np.clip(end_ns - starts[-1:], 1, self.bin_ns)
        counts = draws.poisson_each(count_rng, self.factor * sizes)
        placed = _uniform(place_rng, np.repeat(widths, counts))
        placed += np.repeat(starts, counts)
        placed.sort()
        picked = _uniform(pick_rng, np.repeat(sizes, counts))
        picked += np.repeat(firsts, counts)
        return replace(rows.take(picked), stamp_ns=placed)

    def reach_ns(self, t_ns: int) -> int:
        return (t_ns // self.bin_ns + 1) * self.bin_ns

    def expected(self, rows: TracePart, t_ns: int, width_ns: int, end_ns: int) -> float:
        start_ns = t_ns // self.bin_ns * self.bin_ns
        before, after = (
            expected_before(rows.stamp_ns, edge_ns, width_ns)
            for edge_ns in (start_ns, start_ns + self.bin_ns)
        )
        share = min((t_ns - start_ns) / min(max(end_ns - start_ns, 1), self.bin_ns), 1.0)
        return self.factor * (before + (after - before) * share)


AS_IT_IS = RateScale()
RateScaleConfig = Annotated[ThinScale | SessionScale | OverlapScale | ReplicateScale | EnvelopeScale, BY_KIND]


OTHER_SESSIONS: Final = (SessionScale, OverlapScale, ReplicateScale)
"""Scales that look at sessions, or whose copies are of others than the trace's."""


def scaled(offset_ns: Int64s, ratio: Fraction) -> Int64s:
    """Every instant times `ratio`, floored: t' = t·num // den without a float and without overflow of t·num.

    t = q·den + r gives q·num + r·num // den, of which the second term fits for num and den up to 1e9.
    """
    if ratio == 1:
        return offset_ns
    whole, rest = np.divmod(offset_ns, ratio.denominator)
    rest *= ratio.numerator
    rest //= ratio.denominator
    whole *= ratio.numerator
    return np.add(whole, rest, out=whole)


def delayed(rows: TracePart, delay_ns: Int64s) -> TracePart:
    """Rows put off by their delays, in the order of time; those at one instant in the order of the trace."""
    late = replace(rows, stamp_ns=rows.stamp_ns + delay_ns)
    return late.take(np.argsort(late.stamp_ns, kind="stable"))


def expected_before(stamp_ns: Int64s, t_ns: int, width_ns: int) -> float:
    """Σ P(stamp + U < t), U uniform in [0, width), of a width of 0 in [0, 1)."""
    width_ns = max(width_ns, 1)
    done, begun = np.searchsorted(stamp_ns, [t_ns - width_ns + 1, t_ns])
    return float(done) + math.fsum((t_ns - stamp_ns[done:begun]) / width_ns)


def kept_sessions(session: Int64s, keep: float) -> Bools:
    """Which arrivals a thinning by session keeps; one that names no session (-1) is one of its own, told by its row."""
    alone = mix64(np.arange(session.size), _SESSION_SALT + 1)
    hashes = np.where(session == NO_SESSION, alone, mix64(session, _SESSION_SALT))
    return hashes <= np.uint64(max(int(keep * 2**64), 1) - 1)


def other_sessions(session: Int64s, copy: Int64s | int) -> Int64s:
    """The sessions of copy number `copy`, (n,): other people than those of copy 0, which are the trace's own."""
    mixed = mix64(session ^ mix64(np.asarray(copy, np.int64), 1).astype(np.int64)) >> np.uint64(1)
    is_same = (session == NO_SESSION) | (np.asarray(copy) == 0)
    return np.where(is_same, session, mixed.astype(np.int64))


def _uniform(rng: Generator, widths: Int64s) -> Int64s:
    """Whole numbers in [0, width) for each width, (n,), which are used up; one that is rounded up is held below it."""
    points = rng.random(widths.size)
    points *= widths
    widths -= 1
    return np.minimum(floor_in_place(points), widths, out=widths)
