"""What recording kernels in windows cost the requests of the same run, and which requests it left alone.

    windows      begun ─ start ══════ end ─ done                      begun ─ start ══════
    sent              inside ├─────┤g│         ├ outside ─────────┤ g │
    pair         ├───────────────────── a window and the pause after it ─────┤

A request is told by the instant at which it was sent (or was to be), never by its end: to leave out what outlives a
pause would be to leave out the tail. `g` is the life that 99 % of the requests stay below, at most half of the window
or pause: what was sent later may reach over the edge. What outlives g counts where it was sent, so that a difference
between inside and outside is understated at worst by the share of such requests.

Estimate: ratio of the q-quantile of the requests inside to that of those outside, failures infinitely slow. Interval:
pairs are drawn with replacement, all their requests together, for what follows one another within a period depends on
one another; the spread s of the log ratio over the draws gives log ratio ± t s sqrt(n / (n - 1)), t being Student's
97.5 % point of n - 1 degrees, n pairs (Efron and Tibshirani 1993, sections 6.5 and 13.3). Drift over many periods is in
both conditions of a pair alike. Quantiles of draws are looked up in bins of 0.4 %, from a third of
the lower quantile to three times the higher: a draw beyond has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.intervals import joined_up
from squall.analysis.recorded import Windows, common_stretches
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.order_statistics import TAIL, rank_value, smallest_n
from squall.analysis.statistics.stretches import INFINITE_NS
from squall.analysis.statistics.student import student_quantile
from squall.analysis.storage.query import over
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen

QUANTILES = (0.50, 0.95)
LEAST_PAIRS = 10
"""Fewer pairs give no interval: the spread of ten is known to a quarter."""
LEAST_OUTSIDE = 200
"""Requests of each phase that must lie outside for these to be the latencies that lead: what a p95 takes."""
_N_DRAWS = 1_000
_STEP = 0.004
_FAR = 3.0
_SEED = 1


class RecordedQuantile(Frozen):
    """A quantile of the requests inside windows and of those outside, and inside / outside with its 95 % interval.

    Of several phases the ratio is the geometric mean of theirs, each weighed by its pairs: phases differ in load, and
    what they differ by is no cost. `log_spread`: standard deviation of the ratio's log. None each where `reason` says
    why.
    """

    q: float
    inside_ns: int | None
    outside_ns: int | None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    log_spread: float | None = None
    reason: str = ""


class RecordingCost(Frozen):
    """Of some phases: the share of their time in which recording may have cost something, and what it did cost.

    `n_pairs`: windows that have a pause after them in their phase; `n_inside` and `n_outside`: requests in these.
    `response` is None in a closed loop.
    """

    recorded_ratio: float
    n_windows: int
    n_pairs: int
    n_inside: int
    n_outside: int
    response: tuple[RecordedQuantile, ...] | None
    service: tuple[RecordedQuantile, ...]


class RecordingCosts(Frozen):
    """What the kernel library's windows cost. `headline`: `outside` where the latencies that lead are those of requests
    outside windows alone, `all` where too few of those there are. `measure`: of all measure phases."""

    recorded_by: str
    headline: str
    measure: RecordingCost
    by_phase: Mapping[str, RecordingCost]


class Placed(NamedTuple):
    """Where each request was sent, (n,): the last window begun before, -1 before the first; inside it; outside all."""

    window: Int64s
    is_inside: Bools
    is_outside: Bools


def one_server(every: Iterable[Windows]) -> Windows:
    """Windows of several servers as of one: asked for where any is, held where all are."""
    found = [one for one in every if len(one.begun_ns)]
    if len(found) <= 1:
        return found[0] if found else Windows.of([])
    begun, done = (np.concatenate([getattr(one, name) for one in found]) for name in ("begun_ns", "done_ns"))
    held = common_stretches([one.held() for one in found])
    rows = []
    for first, last in zip(*joined_up(begun, done), strict=True):
        own = [one for one in held if first <= one[0] and one[1] <= last]
        rows.append((first, *(own[0] if own else (last, last)), last))
    return Windows.of(rows)


_FAR_NS = 2**61
_PLACED = f"""
WITH edges AS (
    SELECT row_number() OVER (ORDER BY begun_ns) - 1 AS window, * FROM windows
    UNION ALL SELECT -1, -{_FAR_NS}, -{_FAR_NS}, -{_FAR_NS}, -{_FAR_NS}),
life AS (SELECT coalesce(quantile_disc(done_ns - at_ns, 0.99), 0) AS life_ns FROM sent WHERE is_done),
spans AS (SELECT *, lead(begun_ns, 1, {_FAR_NS}) OVER (ORDER BY begun_ns) AS next_ns FROM edges, life)
SELECT spans.window, at_ns >= start_ns AND at_ns < end_ns - least(life_ns, (end_ns - start_ns) // 2) AS is_inside,
    at_ns >= spans.done_ns AND at_ns < next_ns - least(life_ns, (next_ns - spans.done_ns) // 2) AS is_outside
FROM sent ASOF JOIN spans ON at_ns >= begun_ns ORDER BY place
"""


def place(requests: Requests, windows: Windows) -> Placed:
    """Where each request was sent."""
    at_ns = np.where(requests.is_sent, requests.sent_ns, requests.scheduled_ns)
    sent = requests.table("is_done", "done_ns", at_ns=at_ns, place=np.arange(len(at_ns)))
    with over({"sent": sent, "windows": pa.table(vars(windows))}) as connection:
        return Placed(**connection.execute(_PLACED).fetchnumpy())


def undisturbed(requests: Requests, placed: Placed, phases: Sequence[RunPhase]) -> Requests | None:
    """The requests outside windows, where each of the phases has `LEAST_OUTSIDE` of them; else None."""
    counts = requests.phase.take(placed.is_outside).counts()
    if not phases or min(counts.get(one.name, 0) for one in phases) < LEAST_OUTSIDE:
        return None
    return requests.take(placed.is_outside)


def recording_costs(
    requests: Requests, windows: Windows, placed: Placed, phases: Sequence[RunPhase], headline: str
) -> RecordingCosts:
    """What the `windows` cost the requests of the measure `phases`."""
    by_phase = {one.name: _cost(requests, windows, placed, [one]) for one in phases}
    whole = by_phase[phases[0].name] if len(phases) == 1 else _cost(requests, windows, placed, phases)
    if len(phases) > 1:
        whole = _over_phases(whole, list(by_phase.values()))
    return RecordingCosts("library", headline, whole, by_phase)


def _cost(requests: Requests, windows: Windows, placed: Placed, phases: Sequence[RunPhase]) -> RecordingCost:
    """Pairs lie within one phase: of a window that began in another there is none."""
    is_own = np.zeros(len(requests), np.bool_)
    in_windows_ns = []
    for phase in phases:
        first = np.searchsorted(windows.begun_ns, phase.start_ns)
        is_own |= requests.phase.is_any_of([phase.name]) & (placed.window >= first)
        begun, done = (
            np.clip(one, phase.start_ns, phase.end_ns) for one in (windows.begun_ns, windows.done_ns)
        )
        in_windows_ns += (done - begun).tolist()
    pairs, pair = np.unique(placed.window[is_own], return_inverse=True)
    inside, outside = placed.is_inside[is_own], placed.is_outside[is_own]
    n_inside, n_outside = (np.bincount(pair[side], minlength=len(pairs)) for side in (inside, outside))
    n_pairs = int(np.count_nonzero(n_inside * n_outside))
    is_failed = ~requests.is_ok[is_own]

    def quantiles(values_ns: Int64s) -> tuple[RecordedQuantile, ...]:
        values = np.where(is_failed, INFINITE_NS, values_ns[is_own])
        sides = [(values[side], pair[side]) for side in (inside, outside)]
        return tuple(_quantile(q, sides, len(pairs), n_pairs) for q in QUANTILES)

    duration_ns = sum(one.end_ns - one.start_ns for one in phases)
    return RecordingCost(
        recorded_ratio=sum(in_windows_ns) / duration_ns if duration_ns else 0.0,
        n_windows=sum(length_ns > 0 for length_ns in in_windows_ns),
        n_pairs=n_pairs,
        n_inside=int(inside.sum()),
        n_outside=int(outside.sum()),
        response=quantiles(requests.response_ns) if requests.is_open else None,
        service=quantiles(requests.service_ns),
    )


Floats32 = NDArray[np.float32]
_Side = tuple[Int64s, Int64s]
"""Latencies in ns, failures infinite, and the number of the pair of each."""


def _quantile(q: float, sides: Sequence[_Side], n_pairs: int, n_both: int) -> RecordedQuantile:
    """`sides`: of the requests inside and outside; of `n_pairs` so many have both."""
    one, other = (_value(values, q) for values, _ in sides)
    if one is None or other is None:
        few, least = min(len(values) for values, _ in sides), smallest_n(q)
        reason = "infinite: too many failed" if few >= least else f"{few} requests, {least} are needed"
        return RecordedQuantile(q, one, other, reason=reason)
    ratio = max(one, 1) / max(other, 1)
    if n_both < LEAST_PAIRS:
        reason = f"{n_both} windows with a pause after them, {LEAST_PAIRS} are needed for an interval"
        return RecordedQuantile(q, one, other, ratio, reason=reason)
    spread = _spread(q, sides, n_pairs, (min(one, other) / _FAR, max(one, other) * _FAR))
    if spread is None:
        return RecordedQuantile(q, one, other, ratio, reason="no interval: too wide to be told")
    return _with_interval(
        q, one, other, math.log(ratio), spread * math.sqrt(n_both / (n_both - 1)), n_both - 1
    )


def _with_interval(
    q: float, inside_ns: int | None, outside_ns: int | None, log_ratio: float, spread: float, degrees: int
) -> RecordedQuantile:
    half = student_quantile(1.0 - TAIL, degrees) * spread
    low, high = math.exp(log_ratio - half), math.exp(log_ratio + half)
    return RecordedQuantile(q, inside_ns, outside_ns, math.exp(log_ratio), low, high, spread)


def _over_phases(whole: RecordingCost, phases: Sequence[RecordingCost]) -> RecordingCost:
    """`whole` with the ratios of the phases in place of that of all requests in one heap."""

    def means(name: str) -> Any:
        return getattr(whole, name) and tuple(
            _mean(one, [(phase.n_pairs, getattr(phase, name)[place]) for phase in phases])
            for place, one in enumerate(getattr(whole, name))
        )

    return replace(whole, response=means("response"), service=means("service"))


def _mean(whole: RecordedQuantile, phases: Sequence[tuple[int, RecordedQuantile]]) -> RecordedQuantile:
    """Of the phases that have an interval; of none the first phase's reason."""
    known = [
        (n, math.log(one.ratio), one.log_spread)
        for n, one in phases
        if one.ratio and one.log_spread is not None
    ]
    if not known:
        return RecordedQuantile(whole.q, whole.inside_ns, whole.outside_ns, reason=phases[0][1].reason)
    n_pairs = sum(n for n, *_ in known)
    log_ratio = math.fsum(n * log for n, log, _ in known) / n_pairs
    spread = math.sqrt(math.fsum((n * own) ** 2 for n, _, own in known)) / n_pairs
    return _with_interval(whole.q, whole.inside_ns, whole.outside_ns, log_ratio, spread, n_pairs - len(known))


def _value(values: Int64s, q: float) -> int | None:
    """None where it is infinite, or not for so few."""
    value = rank_value(values, q) if len(values) >= smallest_n(q) else None
    return None if value is None or value >= INFINITE_NS else value


def _spread(q: float, sides: Sequence[_Side], n_pairs: int, reach: tuple[float, float]) -> float | None:
    """Standard deviation of the log of the ratio over draws of pairs; None where a quantile of some lies beyond `reach`
    or is infinite."""
    low, high = (math.log(max(edge, 1.0)) for edge in reach)
    n_bins = int((high - low) / _STEP) + 2
    rng = np.random.default_rng(_SEED)
    times = rng.multinomial(n_pairs, np.full(n_pairs, 1.0 / n_pairs), _N_DRAWS).astype(np.float32)
    one, other = (_bins_at(q, times @ _cumulated(side, n_pairs, low, n_bins)) for side in sides)
    if min(one.min(), other.min()) < 1 or max(one.max(), other.max()) >= n_bins - 1:
        return None
    return float(((one - other) * _STEP).std())


def _cumulated(side: _Side, n_pairs: int, low: float, n_bins: int) -> Floats32:
    """(n_pairs, n_bins): how many of each pair lie in each bin or below; the first and the last are of all beyond."""
    values, pair = side
    bins = 1 + ((np.log(np.maximum(values, 1)) - low) / _STEP).astype(np.int64)
    bins = np.clip(bins, 0, n_bins - 1)
    counts = np.bincount(pair * n_bins + bins, minlength=n_pairs * n_bins).reshape(n_pairs, n_bins)
    return np.cumsum(counts, axis=1).astype(np.float32)


def _bins_at(q: float, cumulated: Floats32) -> Int64s:
    """The bin of the q-quantile of each row; of a draw without requests the last."""
    ranks = np.maximum(np.ceil(q * cumulated[:, -1:]), 1.0)
    reached = cumulated >= ranks
    found: Int64s = np.where(reached.any(axis=1), reached.argmax(axis=1), cumulated.shape[1] - 1)
    return found
