"""Where a difference of mean latency comes from: by part, and of the batches' part by size of batch.

The parts of a latency add up to it in each run, so their differences add up to the difference of the means, in each
pair and in the mean over pairs: no part is estimated. What they do not explain is itself a part (residual, unjoined).

The mean length of the batch that serves a request is C = sum over sizes s of w(s) c(s), w being the share of requests
in batches of s rows and c the mean length of these. With w and c of both sides (Kitagawa 1955, JASA 50(272)),

    C_B - C_A = sum (w_A + w_B) / 2 (c_B - c_A)     at equal batch size
              + sum (w_B - w_A) (c_A + c_B) / 2     because the mix of sizes changed

A size that one side never had has no c there: the other's is taken, so that all of it counts as mix.

Whether a batch of one size takes longer is told by the logarithm of sum v(s) c_B(s) / sum v(s) c_A(s) of each pair,
over sizes that both have, v = n_A n_B / (n_A + n_B) of their requests: the weight with the least variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from squall.analysis.compare.change import DIFFERENT, SAME, UNDECIDED, shown_by
from squall.analysis.compare.intervals import MeanChange, mean_change
from squall.analysis.compare.pairing import Pair
from squall.analysis.compare.run_account import PARTS, PartMeans, SizeSums

_LEAST_SHARE = 0.5
"""Of the requests: with fewer in sizes that both sides have, nothing is said at equal size."""


@dataclass(frozen=True)
class PartsChange:
    """Of the `n_pairs` pairs that have parts: the mean latency, and its `parts`, whose changes add up to it, the
    largest first. `residual_ns`: what of it nothing recorded explains. `requests`: `all` or `slowest tenth`."""

    requests: str
    n_pairs: int
    latency: MeanChange
    parts: tuple[MeanChange, ...]
    residual_ns: float


@dataclass(frozen=True)
class EqualSizes:
    """Length of batches, B over A, at equal size: geometric mean of the pairs' ratios with interval, and its verdict.
    `share_ratio`: of the requests, how many are in sizes that both sides have, in the pair that has the fewest."""

    what: str
    n_pairs: int
    ratio: float
    low_ratio: float
    high_ratio: float
    verdict: str
    share_ratio: float


@dataclass(frozen=True)
class BatchChange:
    """The part `compute` taken apart, ns over requests: at equal size, and by the mix of sizes. `rows`: mean rows of
    the batch that serves a request. `equal`: None where the sides have too few sizes in common."""

    n_pairs: int
    compute: MeanChange
    at_equal_size: MeanChange
    by_mix: MeanChange
    rows: MeanChange
    equal: EqualSizes | None


def parts_change(pairs: Sequence[Pair], is_tail: bool, level: float) -> PartsChange | None:
    """Of all requests, or of those at or beyond each run's own p90; None where no pair has parts."""
    accounts = [(pair.a.account, pair.b.account) for pair in pairs]
    both = [(a.tail, b.tail) if is_tail else (a.every, b.every) for a, b in accounts]
    own = [(one, other) for one, other in both if one is not None and other is not None]
    if not own:
        return None

    def change(what: str, value: Callable[[PartMeans], float]) -> MeanChange:
        return mean_change(what, [value(one) for one, _ in own], [value(other) for _, other in own], level)

    parts = [change(part, lambda means, part=part: means.ns[part]) for part in PARTS]  # type: ignore[misc]
    used = [one for one in parts if one.a or one.b]
    return PartsChange(
        "slowest tenth" if is_tail else "all",
        len(own),
        change("latency", lambda means: means.latency_ns),
        tuple(sorted(used, key=lambda one: -abs(one.change))),
        math.fsum(one.change for one in used if one.what in ("residual", "unjoined")),
    )


def batch_change(pairs: Sequence[Pair], margin: float, level: float) -> BatchChange | None:
    """Of the pairs whose runs both know the batches of their requests; None where there is none. `margin` of lengths,
    as a logarithm."""
    own = [(pair.a.account.sizes, pair.b.account.sizes) for pair in pairs]
    own = [(one, other) for one, other in own if one and other]
    if not own:
        return None
    split = [_split(one, other) for one, other in own]
    zero = [0.0] * len(own)

    def change(what: str, total: Callable[[SizeSums], float]) -> MeanChange:
        a, b = ([_mean(sizes, total) for sizes in side] for side in zip(*own, strict=True))
        return mean_change(what, a, b, level)

    return BatchChange(
        len(own),
        change("compute", lambda one: one.compute_ns),
        mean_change("at equal batch size", zero, [equal for equal, _ in split], level),
        mean_change("by the mix of batch sizes", zero, [mix for _, mix in split], level),
        change("rows of the batch", lambda one: one.rows * one.n_requests),
        equal_sizes("batches", [(_sized(one), _sized(other)) for one, other in own], margin, level),
    )


def _sized(sizes: Sequence[SizeSums]) -> dict[int, tuple[float, float]]:
    return {one.rows: (one.n_requests, one.compute_ns) for one in sizes}


def _mean(sizes: Sequence[SizeSums], total: Callable[[SizeSums], float]) -> float:
    """Over requests."""
    return math.fsum(map(total, sizes)) / sum(one.n_requests for one in sizes)


def _split(a: Sequence[SizeSums], b: Sequence[SizeSums]) -> tuple[float, float]:
    """What of the change of the mean length is at equal size, and what is of the mix; they add up to it."""
    n_a, n_b = sum(one.n_requests for one in a), sum(one.n_requests for one in b)
    of_a = {one.rows: (one.n_requests / n_a, one.compute_ns / one.n_requests) for one in a}
    of_b = {one.rows: (one.n_requests / n_b, one.compute_ns / one.n_requests) for one in b}
    equal, mix = list[float](), list[float]()
    for size in {**of_a, **of_b}:
        w_a, c_a = of_a.get(size, (0.0, of_b.get(size, (0.0, 0.0))[1]))
        w_b, c_b = of_b.get(size, (0.0, c_a))
        equal.append((w_a + w_b) / 2.0 * (c_b - c_a))
        mix.append((w_b - w_a) * (c_a + c_b) / 2.0)
    return math.fsum(equal), math.fsum(mix)


Sized = Mapping[int, tuple[float, float]]
"""By size: the number of what was measured, and the sum of its times."""


def equal_sizes(
    what: str, sized: Sequence[tuple[Sized, Sized]], margin: float, level: float
) -> EqualSizes | None:
    """Mean time at equal size, B over A, pair by pair; None where a pair has less than half in common, and of one
    pair."""
    logs, shares = list[float](), list[float]()
    for one, other in sized:
        common = [size for size in one if size in other and one[size][0] and other[size][0]]
        times = [
            math.fsum(_weight(one, other, size) * side[size][1] / side[size][0] for size in common)
            for side in (one, other)
        ]
        share = min(
            sum(side[size][0] for size in common) / max(1.0, sum(n for n, _ in side.values()))
            for side in (one, other)
        )
        if share < _LEAST_SHARE or min(times) <= 0.0:
            return None
        logs.append(math.log(times[1] / times[0]))
        shares.append(share)
    if len(logs) < 2:
        return None
    shown = shown_by(np.array(logs), margin, level)
    verdict = SAME if shown.is_within else DIFFERENT if shown.p_value <= level else UNDECIDED
    return EqualSizes(
        what, shown.n, math.exp(shown.centre), math.exp(shown.low), math.exp(shown.high), verdict, min(shares)
    )  # fmt: skip


def _weight(a: Sized, b: Sized, size: int) -> float:
    return a[size][0] * b[size][0] / (a[size][0] + b[size][0])
