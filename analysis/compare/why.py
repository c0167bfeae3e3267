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
from typing import Any

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.compare.change import DIFFERENT, SAME, UNDECIDED, shown_by
from squall.analysis.compare.intervals import MeanChange, mean_change
from squall.analysis.compare.pairing import Pair
from squall.analysis.compare.run_account import PARTS, PartMeans, SizeSums
from squall.scenarios.records import Frozen

_LEAST_SHARE = 0.5
"""Of the requests: with fewer in sizes that both sides have, nothing is said at equal size."""


class PartsChange(Frozen):
    """Of the `n_pairs` pairs that have parts: the mean latency, and its `parts`, whose changes add up to it, the
    largest first. `residual_ns`: what of it nothing recorded explains. `requests`: `all` or `slowest tenth`."""

    requests: str
    n_pairs: int
    latency: MeanChange
    parts: tuple[MeanChange, ...]
    residual_ns: float


class EqualSizes(Frozen):
    """Length of batches, B over A, at equal size: geometric mean of the pairs' ratios with interval, and its verdict.
    `share_ratio`: of the requests, how many are in sizes that both sides have, in the pair that has the fewest."""

    what: str
    n_pairs: int
    ratio: float
    low_ratio: float
    high_ratio: float
    verdict: str
    share_ratio: float


class BatchChange(Frozen):
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
    accounts = [(pair.a.account.sizes, pair.b.account.sizes) for pair in pairs]
    sized = [(_sized(a), _sized(b)) for a, b in accounts if a and b]
    if not sized:
        return None
    split = [_split(*both) for both in sized]
    zero = [0.0] * len(sized)

    def change(what: str, total: Callable[[int, float, float], float]) -> MeanChange:
        """Of a mean over requests; `total`: of the rows of a size, its requests and their time."""
        a, b = (
            [
                math.fsum(total(rows, *sums) for rows, sums in one.items()) / sum(n for n, _ in one.values())
                for one in side
            ]
            for side in zip(*sized, strict=True)
        )
        return mean_change(what, a, b, level)

    return BatchChange(
        len(sized),
        change("compute", lambda _rows, _n, time_ns: time_ns),
        mean_change("at equal batch size", zero, [equal for equal, _ in split], level),
        mean_change("by the mix of batch sizes", zero, [mix for _, mix in split], level),
        change("rows of the batch", lambda rows, n, _: rows * n),
        equal_sizes("batches", sized, margin, level),
    )


Sized = Mapping[Any, tuple[float, float]]
"""By size, and by what else is compared like with like: the number of what was measured, and the sum of its times."""


def _sized(sizes: Sequence[SizeSums]) -> Sized:
    return {one.rows: (one.n_requests, one.compute_ns) for one in sizes}


def _aligned(a: Sized, b: Sized) -> tuple[Floats, Floats]:
    """Numbers and times of both sides, (2, n_sizes) each; 0 of a size that a side never had."""
    sizes = [*{**a, **b}]
    both = np.array([[side.get(size, (0.0, 0.0)) for size in sizes] for side in (a, b)], np.float64)
    found: Floats = both.reshape(2, len(sizes), 2)
    return found[..., 0], found[..., 1]


def _split(a: Sized, b: Sized) -> tuple[float, float]:
    """What of the change of the mean length is at equal size, and what is of the mix; they add up to it."""
    n, time_ns = _aligned(a, b)
    share = n / n.sum(axis=1, keepdims=True)
    length_ns = time_ns / np.maximum(n, 1.0)
    length_ns = np.where(n > 0, length_ns, length_ns[::-1])
    equal = share.mean(axis=0) * (length_ns[1] - length_ns[0])
    mix = (share[1] - share[0]) * length_ns.mean(axis=0)
    return float(equal.sum()), float(mix.sum())


def equal_sizes(
    what: str, sized: Sequence[tuple[Sized, Sized]], margin: float, level: float
) -> EqualSizes | None:
    """Mean time at equal size, B over A, pair by pair; None where a pair has less than half in common, and of one
    pair."""
    logs, shares = list[float](), list[float]()
    for both in sized:
        n, time_ns = _aligned(*both)
        is_common = n.all(axis=0)
        share = float((n[:, is_common].sum(axis=1) / np.maximum(n.sum(axis=1), 1.0)).min())
        n, time_ns = n[:, is_common], time_ns[:, is_common]
        times_ns = (n.prod(axis=0) / n.sum(axis=0) * time_ns / n).sum(axis=1).tolist()
        if share < _LEAST_SHARE or min(times_ns) <= 0.0:
            return None
        logs.append(math.log(times_ns[1] / times_ns[0]))
        shares.append(share)
    if len(logs) < 2:
        return None
    shown = shown_by(np.array(logs), margin, level)
    verdict = SAME if shown.is_within else DIFFERENT if shown.p_value <= level else UNDECIDED
    ratio, low, high = (math.exp(end) for end in (shown.centre, shown.low, shown.high))
    return EqualSizes(what, shown.n, ratio, low, high, verdict, min(shares))
