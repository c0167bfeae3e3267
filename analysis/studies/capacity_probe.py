"""A measured level of load: what became of the promises there, and by how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from squall.analysis.compare.figures import BROKEN, INVALID, KEPT, UNDECIDED, PromiseFigures, worst_verdict
from squall.scenarios.promises import Promise
from squall.scenarios.records import Frozen

BRACKET, LOW, CONFIRM = "bracket", "low", "confirm"
"""What a probe is for: a seed's edge, whether it is monotone, whether the safe load is kept."""
_DISORDER = 0.2
"""Of the logarithm of a figure, 22 %: several times what a step of one precision moves it on a server near its edge."""


class Probe(Frozen):
    """The outcome at mean rate `rate_hz` of the schedule of `seed`.

    `verdict`: kept, broken, undecided, or invalid where the load could not be measured, twice. `margin`: ln of the
    figure over its limit, of the promise nearest to broken or furthest beyond (`binding`): below 0 exactly where kept,
    None where it is infinite or not known. `is_saturated`: the backlog grew all along; None where not known. `reason`:
    of undecided and invalid; `cause`: kind of that of an invalid run, of `squall.analysis.verdict.causes.ORDER`.
    """

    seed: int
    rate_hz: float
    verdict: str
    margin: float | None = None
    binding: str = ""
    is_saturated: bool | None = None
    reason: str = ""
    cause: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether all promises were kept."""
        return self.verdict == KEPT

    @property
    def is_broken(self) -> bool:
        """Whether a promise was broken."""
        return self.verdict == BROKEN

    @property
    def is_invalid(self) -> bool:
        """Whether the level could not be measured."""
        return self.verdict == INVALID


Measure = Callable[[int, float, str], Probe]
"""Measures the schedule of a seed at a mean rate, Hz, for a purpose; the probe tells the rate that it had."""


def disorder(levels: Iterable[Probe]) -> tuple[float, Probe, Probe] | None:
    """By how much, as a share of the figure, one schedule did worse at less load than at more: the largest of all pairs
    with its two levels, the lower one first. None below 22 %: what no queue does to a schedule scaled in time."""
    known = sorted((one for one in levels if one.margin is not None), key=lambda one: one.rate_hz)
    drops = [
        ((low.margin or 0.0) - (high.margin or 0.0), low, high)
        for low, high in combinations(known, 2)
        if low.rate_hz < high.rate_hz
    ]
    drop, low, high = max(drops, key=lambda one: one[0], default=(0.0, None, None))
    if low is None or high is None or drop < _DISORDER:
        return None
    return math.expm1(drop), low, high


class Margin(Frozen):
    """Of all promises of a run: the verdict, the worst margin as in `Probe`, and of which promise it is."""

    verdict: str
    margin: float | None
    binding: str
    reason: str


def margin_of(promises: Sequence[Promise], figures: Sequence[PromiseFigures]) -> Margin:
    """The worst of the promises of one run, at least one, with its figures in the same order."""
    verdict = worst_verdict([one.verdict for one in figures])
    if verdict in (INVALID, UNDECIDED):
        reason = next(one.reason for one in figures if one.verdict == verdict)
        return Margin(verdict, None, "", reason)
    margins = {
        promise.text: _margin(promise, own)
        for promise, own in zip(promises, figures, strict=True)
        if own.verdict in (KEPT, BROKEN)  # beside a broken one another may be open, or about no request
    }
    binding = max(margins, key=margins.__getitem__)
    return Margin(verdict, margins[binding] if math.isfinite(margins[binding]) else None, binding, "")


def _margin(promise: Promise, figures: PromiseFigures) -> float:
    """ln of a time over its limit; of counts ln of (late + 1/2) over (allowed + 1), which is below 0 exactly where no
    more are late than may be, and finite where none is. Infinite where the time is."""
    assert figures.n_allowed is not None
    if not promise.is_of_times:
        return math.log((figures.n_late + 0.5) / max(figures.n_allowed + 1, 0.25))
    if figures.is_infinite or figures.value is None:
        return math.inf
    margin = math.log(max(figures.value, 1.0) / max(float(promise.limit), 1.0))
    # at the very limit the sign is the verdict's
    return max(margin, 0.0) if figures.verdict == BROKEN else min(margin, -1e-9)
