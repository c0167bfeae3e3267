"""The whole search: an edge for each seed, what they say together, and whether the safe load is kept.

With x_i = ln(capacity of seed i) of K seeds, mean m and standard deviation s, both of which the seeds alone give:

    capacity   exp(m),  95 % interval  exp(m ± t(97.5 %, K - 1) s / sqrt(K))     the mean burst
    safe load  exp(m - k(K) s)         at least 9 of 10 bursts are kept below it, with 95 % confidence

k is the one-sided tolerance factor of `squall.analysis.statistics.tolerance`. Two seeds that the search has not seen
must keep their promises at the safe load; else it goes down by one precision, and two others must. No load is tried
twice: one that is repeated until it passes says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from squall.analysis.compare.figures import UNDECIDED
from squall.analysis.statistics.student import mean_of
from squall.analysis.statistics.tolerance import tolerance_factor
from squall.analysis.studies.capacity_edge import Edge, Kind, lower_edge, upper_edge
from squall.analysis.studies.capacity_probe import BRACKET, CONFIRM, LOW, Measure, Probe
from squall.scenarios.records import Frozen

LEVEL, SHARE, CONFIDENCE = 0.95, 0.9, 0.95
"""Of the interval of the capacity; and of the safe load: of so many bursts, so sure."""
N_CONFIRMING = 2
MOST_STEPS_DOWN = 5
"""What is not kept after so many steps down is said to be unconfirmed."""
MOST_UNMEASURED = 2
"""Fresh seeds that cannot be measured at the safe load."""
LOW_EDGE_PRECISION = 0.05
LEAST_MEASURED = 2.0 / 3.0
"""Of the seeds must have an edge, where what stopped the others was the host."""


FIRST_PROBES, FURTHER_PROBES, CONFIRMING_PROBES = 5.0, 3.5, 3.0
"""About so many runs take the edge of the first seed, that of each after it, and the safe load; of searches on a
simulated clock, to which tests/unit/analysis/studies/test_planted_truths.py holds it."""


class Options(Frozen):
    """What is searched: `n_seeds` seeds from `first_seed` on, from `start_hz` up to `most_hz`; `low_ratio`: the probe
    below the first edge, 0 for none."""

    n_seeds: int
    first_seed: int
    start_hz: float
    most_hz: float
    precision: float = 0.02
    low_ratio: float = 0.1


class Interval(Frozen):
    """Of the capacity, over `n_seeds` seeds; `spread` is the standard deviation of its logarithm."""

    rate_hz: float
    low_hz: float
    high_hz: float
    n_seeds: int
    spread: float


class Safe(Frozen):
    """The safe load. `factor`: k; `n_steps_down`: from what the seeds alone give, `first_hz`; `is_confirmed`: by fresh
    seeds, None where they were not run or could not be measured."""

    rate_hz: float
    first_hz: float
    factor: float
    is_confirmed: bool | None
    n_steps_down: int


class Found(Frozen):
    """What a search found. `kind`: found, or what of all seeds together is to be said instead.

    `seeds`: the edge of each. `low`: the lowest load that is kept, of the first seed, where a load below it is not: p95
    is not monotone then.
    `low_probe`: the probe that showed it, or that it is not so. `undecided`: why the search could not go on.
    """

    kind: str
    seeds: tuple[Edge, ...]
    interval: Interval | None = None
    safe: Safe | None = None
    low_probe: Probe | None = None
    low: Edge | None = None
    undecided: str = ""

    @property
    def is_hopeless(self) -> bool:
        """Whether the first seed ends the search."""
        return bool(self.seeds) and self.seeds[0].kind in ("nothing passes", "not measured")


def expected_probes(options: Options, n_done: int = 0) -> float:
    """About how many runs a search has still before it once `n_done` seeds have an edge."""
    first = FIRST_PROBES + (options.low_ratio > 0.0) if n_done == 0 else 0.0
    confirming = CONFIRMING_PROBES if options.n_seeds > 1 else 0.0
    return first + FURTHER_PROBES * (options.n_seeds - max(1, n_done)) + confirming


class _Undecided(Exception):  # it ends a search, and is no error of anybody
    """A run that says neither kept nor broken."""


def search(
    measure: Measure, options: Options, tell: Callable[[Found], None] = lambda _: None, confirms: bool = True
) -> Found:
    """The capacity; `tell` hears what is known after each seed. `confirms`: the safe load is tried on fresh seeds."""

    def decided(seed: int, rate_hz: float, purpose: str) -> Probe:
        found = measure(seed, rate_hz, purpose)
        if found.verdict == UNDECIDED:
            raise _Undecided(found.reason)
        return found

    so_far = Found("searching", ())
    try:
        for number in range(options.n_seeds):
            so_far = _with_seed(so_far, decided, options, options.first_seed + number)
            tell(so_far)
            if so_far.is_hopeless:
                break
        so_far = _together(so_far)
        if so_far.safe is not None and confirms:
            so_far = replace(so_far, safe=_confirmed(so_far.safe, decided, options))
    except _Undecided as reason:
        return replace(so_far, kind=UNDECIDED, undecided=str(reason))
    return so_far


def _with_seed(so_far: Found, measure: Measure, options: Options, seed: int) -> Found:
    """With the edge of one seed more; after the first it is seen whether less load is kept too."""
    edges = [one for one in so_far.seeds if one.kind == "found"]
    start_hz = _geometric_mean([one.rate_hz for one in edges if one.rate_hz is not None]) or options.start_hz
    slopes = [one.slope for one in edges if one.slope is not None]
    slope = _geometric_mean(slopes)
    least_hz = so_far.low.rate_hz if so_far.low is not None else None
    edge = upper_edge(
        lambda rate_hz: measure(seed, rate_hz, BRACKET),
        start_hz,
        options.most_hz,
        options.precision,
        slope,
        least_hz,
        _least_kept_hz(so_far),
    )
    so_far = replace(so_far, seeds=(*so_far.seeds, edge))
    if len(so_far.seeds) > 1 or edge.low is None or options.low_ratio <= 0.0:
        return so_far
    below = measure(seed, options.low_ratio * (edge.rate_hz or edge.low.rate_hz), LOW)
    if not below.is_broken:
        return replace(so_far, low_probe=below)
    precision = max(options.precision, LOW_EDGE_PRECISION)
    low = lower_edge(lambda rate_hz: measure(seed, rate_hz, LOW), below, edge.low, precision)
    return replace(so_far, low_probe=below, low=low)


def _least_kept_hz(so_far: Found) -> float | None:
    """The least load below an edge that a seed is known to keep; None where no seed has an edge yet."""
    known = [one.low for one in so_far.seeds if one.kind == "found"]
    if known and so_far.low is not None:
        known.append(so_far.low.low)
    elif known:
        known.append(so_far.low_probe)
    return min((one.rate_hz for one in known if one is not None and one.is_kept), default=None)


def _together(so_far: Found) -> Found:
    """What the edges of all seeds say: where one has none, none is said of all; one whose edge could not be measured is
    left out, as by a host whose CPU others took, while two of three seeds have theirs."""
    rates_hz = [one.rate_hz for one in so_far.seeds if one.rate_hz is not None]
    is_enough = len(rates_hz) >= LEAST_MEASURED * len(so_far.seeds)
    kinds = [one.kind for one in so_far.seeds if not (is_enough and one.is_stopped_by_host)]
    order: Sequence[Kind] = ("nothing passes", "client limit", "nothing fails")
    noisy = [one.seed for one in so_far.seeds if one.kind == "nothing passes" and one.is_in_disorder]
    if rates_hz and noisy:
        return replace(so_far, kind=UNDECIDED, undecided=_disorder_text(noisy[0]))
    kind = next((one for one in order if one in kinds), None)
    if kind is None:
        kind = "found" if rates_hz else "not measured"
    if kind != "found" or len(rates_hz) < 2:
        return replace(so_far, kind=kind)
    interval = interval_of(rates_hz)
    factor = tolerance_factor(len(rates_hz), SHARE, CONFIDENCE)
    first_hz = interval.rate_hz * math.exp(-factor * interval.spread)
    return replace(so_far, kind=kind, interval=interval, safe=Safe(first_hz, first_hz, factor, None, 0))


def _disorder_text(seed: int) -> str:
    return (
        f"seed {seed} kept no load, and did much worse at less of it than at more, where other seeds have an edge: use"
        " a quieter host or longer phases"
    )


def interval_of(rates_hz: Sequence[float]) -> Interval:
    """Of the capacities of two seeds or more."""
    log = mean_of([math.log(one) for one in rates_hz])
    reach = log.half(1.0 - LEVEL)
    return Interval(
        math.exp(log.mean), math.exp(log.mean - reach), math.exp(log.mean + reach), log.n, log.spread
    )


def _confirmed(safe: Safe, measure: Measure, options: Options) -> Safe:
    """The first load, from the safe one down, that two fresh seeds keep. A seed that cannot be measured there says
    nothing, and the next one is asked; where a few of them cannot, the load stays unconfirmed."""
    seed, n_unmeasured = options.first_seed + options.n_seeds, 0
    for n_steps in range(MOST_STEPS_DOWN + 1):
        rate_hz, n_kept = safe.first_hz * math.exp(-n_steps * options.precision), 0
        while n_kept < N_CONFIRMING:
            probe = measure(seed, rate_hz, CONFIRM)
            seed, n_kept = seed + 1, n_kept + probe.is_kept
            n_unmeasured += probe.is_invalid
            if n_unmeasured > MOST_UNMEASURED:
                return replace(safe, rate_hz=rate_hz, n_steps_down=n_steps)
            if probe.is_broken:
                break
        else:
            return replace(safe, rate_hz=rate_hz, is_confirmed=True, n_steps_down=n_steps)
    return replace(safe, rate_hz=rate_hz, is_confirmed=False, n_steps_down=MOST_STEPS_DOWN)


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None
