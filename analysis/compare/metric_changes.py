"""Every figure of two sides with its change over the pairs, and what that shows.

The primary figures decide: p50 and p95 of the latency, the share of failures, throughput. The others are shown with
their intervals to explore, and nothing is claimed of them: of many figures some always stray.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from squall.analysis.compare.pairing import LEAST_PAIRS, Pair
from squall.analysis.compare.run_row import FAILURES, RunRow
from squall.analysis.statistics.holm import holm
from squall.analysis.verdict.run_figures import METRICS, THROUGHPUT, Reading

PRIMARY = ("p50_ns", "p95_ns", FAILURES, THROUGHPUT)
WORSE, BETTER = "worse", "better"
_ALL = (*PRIMARY, *(name for name in METRICS if name not in PRIMARY))


@dataclass(frozen=True)
class MetricChange:
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


def metric_changes(pairs: Sequence[Pair], margin_ratio: float, level: float) -> tuple[MetricChange, ...]:
    """Of all figures, the primary ones first."""
    read = {metric: [(_reading(p.a, metric), _reading(p.b, metric)) for p in pairs] for metric in _ALL}
    lacking = {metric: _lacking(rows) for metric, rows in read.items()}
    shown = {
        metric: _shown(metric, read[metric], margin_ratio, level) for metric in _ALL if not lacking[metric]
    }
    tested = [metric for metric in PRIMARY if metric in shown and not _is_exact(metric, read[metric])]
    corrected = dict(zip(tested, holm([shown[metric].p_value for metric in tested]), strict=True))
    return tuple(
        _change(metric, read[metric], shown.get(metric), lacking[metric], corrected.get(metric), margin_ratio, level)
        for metric in _ALL
    )  # fmt: skip


def _reading(run: RunRow, metric: str) -> Reading:
    return run.figures.get(metric, Reading(None, "the run does not tell"))


Readings = Sequence[tuple[Reading, Reading]]


def _lacking(rows: Readings) -> str:
    """Why the figure is not assessed; empty where every run has it, be it infinite."""
    if len(rows) < LEAST_PAIRS:
        return f"{len(rows)} whole pairs, and an interval takes {LEAST_PAIRS}"
    absent = [one for pair in rows for one in pair if one.value is None and not one.is_infinite]
    return absent[0].reason if absent else ""


def _values(rows: Readings) -> tuple[list[float], list[float]]:
    sides = [
        [math.inf if one.value is None else one.value for one in side] for side in zip(*rows, strict=True)
    ]
    return sides[0], sides[1]


def _is_exact(metric: str, rows: Readings) -> bool:
    """Whether nothing failed on either side: no test is needed to say that both are 0."""
    return metric == FAILURES and not any(one.value for pair in rows for one in pair)


def _margin(metric: str, margin_ratio: float) -> float:
    return SHARE_MARGIN if metric == FAILURES else math.log1p(margin_ratio)


def _shown(metric: str, rows: Readings, margin_ratio: float, level: float) -> Shown:
    a, b = _values(rows)
    d = differences(a, b, metric == FAILURES)
    has_infinite = any(math.isinf(value) for value in (*a, *b))
    return shown_by(d, _margin(metric, margin_ratio), level, has_infinite)


def _change(
    metric: str,
    rows: Readings,
    shown: Shown | None,
    lacking: str,
    p_holm: float | None,
    margin_ratio: float,
    level: float,
) -> MetricChange:
    is_share, is_primary = metric == FAILURES, metric in PRIMARY
    a, b = _values(rows) if rows else ([], [])
    found = MetricChange(
        metric,
        is_primary,
        is_share,
        len(rows),
        tuple(map(_finite, a)),
        tuple(map(_finite, b)),
        sum(one.is_infinite for one, _ in rows),
        sum(one.is_infinite for _, one in rows),
        _mean(a, is_share),
        _mean(b, is_share),
        verdict=UNDECIDED if is_primary else "",
        outcome=UNDECIDED if is_primary else "",
        reason=lacking,
    )
    if shown is None:
        return found
    verdict, reason = _metric_verdict(metric, rows, shown, p_holm, level)
    found = replace(
        found,
        change=_told(shown.centre, is_share),
        low=_told(shown.low, is_share),
        high=_told(shown.high, is_share),
        p_value=shown.p_value,
        wilcoxon_p=shown.wilcoxon_p,
        reason=reason,
    )
    if not is_primary:
        return found
    margin = _margin(metric, margin_ratio)
    is_worse = (shown.centre < 0) == (metric == THROUGHPUT)
    direction = "" if verdict != DIFFERENT else WORSE if is_worse else BETTER
    return replace(
        found,
        p_holm=p_holm,
        verdict=verdict,
        direction=direction,
        outcome=_outcome(verdict, direction, shown, margin),
        n_more=n_more_pairs(shown, margin, level, len(PRIMARY)) if verdict == UNDECIDED else None,
    )


def _metric_verdict(
    metric: str, rows: Readings, shown: Shown, p_holm: float | None, level: float
) -> tuple[str, str]:
    if _is_exact(metric, rows):
        return SAME, "no request failed on either side"
    if p_holm is not None and p_holm <= level:
        return DIFFERENT, ""
    if shown.is_within:
        return SAME, ""
    if shown.by_ranks:
        return UNDECIDED, "it fell on failures: its pairs are compared by their ranks"
    return UNDECIDED, ""


def _outcome(verdict: str, direction: str, shown: Shown, margin: float) -> str:
    """A difference counts where it is larger than the margin; one that is shown to be smaller is as none."""
    if verdict != DIFFERENT:
        return verdict
    if shown.is_within:
        return SAME
    return direction if abs(shown.centre) > margin or direction == BETTER else UNDECIDED


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _told(value: float, is_share: bool) -> float | None:
    if not math.isfinite(value):
        return None
    return value if is_share else math.expm1(value)


def _mean(values: Sequence[float], is_share: bool) -> float | None:
    if not values or not all(map(math.isfinite, values)):
        return None
    if is_share:
        return math.fsum(values) / len(values)
    if min(values) <= 0.0:
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))
