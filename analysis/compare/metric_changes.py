"""Every figure of two sides with its change over the pairs, and what that shows.

The primary figures decide: p50 and p95 of the latency, the share of failures, throughput. The others are shown with
their intervals to explore, and nothing is claimed of them: of many figures some always stray.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from squall.analysis.compare.change import (
    DIFFERENT,
    SAME,
    SHARE_MARGIN,
    UNDECIDED,
    Shown,
    differences,
    n_more_pairs,
    shown_by,
)
from squall.analysis.compare.pairing import LEAST_PAIRS, Pair, sides
from squall.analysis.compare.run_row import FAILURES
from squall.analysis.statistics.holm import holm
from squall.analysis.verdict.run_figures import METRICS, THROUGHPUT, Reading
from squall.scenarios.records import Frozen

PRIMARY = ("p50_ns", "p95_ns", FAILURES, THROUGHPUT)
WORSE, BETTER = "worse", "better"
_ALL = (*PRIMARY, *(name for name in METRICS if name not in PRIMARY))


class MetricChange(Frozen):
    """One figure, pair by pair. `a`, `b`: None where infinite or absent; `mean_a`, `mean_b`: geometric means, of shares
    means, None where one is infinite.

    `change`: B over A less 1, of a share (`is_share`) B less A; with its interval; None where it has no end. `p_value`:
    of no change; `p_holm`: corrected, of primary ones; `wilcoxon_p`: the second opinion. `verdict`: different, same,
    undecided; of what is only shown, empty. `direction`: better or worse, of a different one. `outcome`: what it means
    beside the margin: worse, better, same, undecided. `n_more`: pairs that an undecided one needs besides.
    """

    metric: str
    is_primary: bool
    is_share: bool
    n_pairs: int
    a: tuple[float | None, ...]
    b: tuple[float | None, ...]
    n_infinite_a: int
    n_infinite_b: int
    mean_a: float | None
    mean_b: float | None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    p_holm: float | None = None
    wilcoxon_p: float | None = None
    verdict: str = ""
    direction: str = ""
    outcome: str = ""
    n_more: int | None = None
    reason: str = ""


class _Figure(Frozen):
    """A figure in both runs of every pair: its readings by side, and what their differences show; None where `lacking`
    says why they show nothing."""

    metric: str
    a: list[Reading]
    b: list[Reading]
    margin: float
    level: float

    @property
    def is_share(self) -> bool:
        """Whether it is a share of requests, whose changes are differences and not ratios."""
        return self.metric == FAILURES

    @cached_property
    def values(self) -> tuple[list[float], list[float]]:
        """Of either side; infinite where there is none."""
        a, b = ([math.inf if one.value is None else one.value for one in side] for side in (self.a, self.b))
        return a, b

    @cached_property
    def lacking(self) -> str:
        """Why the figure is not assessed; empty where every run has it, be it infinite."""
        if len(self.a) < LEAST_PAIRS:
            return f"{len(self.a)} whole pairs, and an interval takes {LEAST_PAIRS}"
        absent = [one.reason for one in (*self.a, *self.b) if one.value is None and not one.is_infinite]
        return absent[0] if absent else ""

    @cached_property
    def shown(self) -> Shown | None:
        """What the pairs show."""
        if self.lacking:
            return None
        a, b = self.values
        has_infinite = any(math.isinf(value) for value in (*a, *b))
        return shown_by(differences(a, b, self.is_share), self.margin, self.level, has_infinite)

    @property
    def is_exact(self) -> bool:
        """Whether nothing failed on either side: no test is needed to say that both are 0."""
        return self.is_share and not any(one.value for one in (*self.a, *self.b))

    def change(self, p_holm: float | None) -> MetricChange:
        """With its verdict; `p_holm`: of a primary figure that was tested, corrected."""
        (a, b), is_primary, shown = self.values, self.metric in PRIMARY, self.shown
        found = MetricChange(
            self.metric,
            is_primary,
            self.is_share,
            len(self.a),
            tuple(map(_finite, a)),
            tuple(map(_finite, b)),
            sum(one.is_infinite for one in self.a),
            sum(one.is_infinite for one in self.b),
            _mean(a, self.is_share),
            _mean(b, self.is_share),
            verdict=UNDECIDED if is_primary else "",
            outcome=UNDECIDED if is_primary else "",
            reason=self.lacking,
        )
        if shown is None:
            return found
        verdict, reason = self._verdict(shown, p_holm)
        change, low, high = (
            end if self.is_share or end is None else math.expm1(end)
            for end in map(_finite, (shown.centre, shown.low, shown.high))
        )
        found = replace(
            found, change=change, low=low, high=high, p_value=shown.p_value, wilcoxon_p=shown.wilcoxon_p,
            reason=reason,
        )  # fmt: skip
        if not is_primary:
            return found
        is_worse = (shown.centre < 0) == (self.metric == THROUGHPUT)
        direction = "" if verdict != DIFFERENT else WORSE if is_worse else BETTER
        outcome = verdict
        if (
            direction
        ):  # a difference counts where it is larger than the margin; one shown to be smaller is as none
            is_large = abs(shown.centre) > self.margin or direction == BETTER
            outcome = SAME if shown.is_within else direction if is_large else UNDECIDED
        n_more = n_more_pairs(shown, self.margin, self.level, len(PRIMARY)) if verdict == UNDECIDED else None
        return replace(
            found, p_holm=p_holm, verdict=verdict, direction=direction, outcome=outcome, n_more=n_more
        )

    def _verdict(self, shown: Shown, p_holm: float | None) -> tuple[str, str]:
        """With its reason."""
        if self.is_exact:
            return SAME, "no request failed on either side"
        if p_holm is not None and p_holm <= self.level:
            return DIFFERENT, ""
        if shown.is_within:
            return SAME, ""
        return (
            UNDECIDED,
            "it fell on failures: its pairs are compared by their ranks" if shown.by_ranks else "",
        )


def metric_changes(pairs: Sequence[Pair], margin_ratio: float, level: float) -> tuple[MetricChange, ...]:
    """Of all figures, the primary ones first."""
    absent = Reading(None, "the run does not tell")
    found = list[_Figure]()
    for metric in _ALL:
        a, b = ([run.figures.get(metric, absent) for run in side] for side in sides(pairs))
        margin = SHARE_MARGIN if metric == FAILURES else math.log1p(margin_ratio)
        found.append(_Figure(metric, a, b, margin, level))
    p_of = {
        one.metric: one.shown.p_value
        for one in found
        if one.metric in PRIMARY and one.shown is not None and not one.is_exact
    }
    corrected = dict(zip(p_of, holm([*p_of.values()]), strict=True))
    return tuple(one.change(corrected.get(one.metric)) for one in found)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(values: Sequence[float], is_share: bool) -> float | None:
    """Of shares, else the geometric one."""
    if not values or not all(map(math.isfinite, values)):
        return None
    if is_share:
        return math.fsum(values) / len(values)
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if min(values) > 0.0 else None
