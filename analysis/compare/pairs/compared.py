"""Two sides compared: every figure with its verdict, and of all together whether B is no worse than A.

The primary figures decide: p50 and p95 of the latency, the share of failures, throughput. The others are shown with
their intervals to explore, and nothing is claimed of them: of many figures some always stray.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from squall.analysis.compare.pairs.change import (
    DIFFERENT,
    SAME,
    SHARE_MARGIN,
    UNDECIDED,
    Shown,
    differences,
    n_more_pairs,
    shown_by,
)
from squall.analysis.compare.pairs.corrections import holm, nominal_level
from squall.analysis.compare.pairs.differing import Differing
from squall.analysis.compare.pairs.kernels_change import GpuChange, gpu_change
from squall.analysis.compare.pairs.pairing import LEAST_PAIRS, Pair, Paired
from squall.analysis.compare.pairs.settings import marks, what_differs
from squall.analysis.compare.pairs.shift import Shift, shift
from squall.analysis.compare.pairs.side_run import FAILURES, SideRun
from squall.analysis.compare.pairs.why import BatchChange, PartsChange, batch_change, parts_change
from squall.analysis.compare.run_figures import METRICS, THROUGHPUT, Reading
from squall.analysis.tables.document import to_json

SCHEMA_VERSION = 1
PRIMARY = ("p50_ns", "p95_ns", FAILURES, THROUGHPUT)
WORSE, BETTER, INVALID = "worse", "better", "invalid"
DEFAULT_MARGIN = 0.03
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
    change: float | None
    low: float | None
    high: float | None
    p_value: float | None
    p_holm: float | None
    wilcoxon_p: float | None
    verdict: str
    direction: str
    outcome: str
    n_more: int | None
    reason: str


@dataclass(frozen=True)
class PairRow:
    """A pair as a file tells of it: names of its runs, which began first, and why it is left out."""

    seed: int | None
    run_a: str
    run_b: str
    first: str
    left_out: str


@dataclass(frozen=True)
class AnswersCompared:
    """Whether both sides answered alike. `is_same_sizes`: each reply had the same size in both runs of every pair;
    None: not known. Of compared values, how many were and how many were wrong, None where none were."""

    is_same_sizes: bool | None
    n_checked_a: int | None
    n_wrong_a: int | None
    n_checked_b: int | None
    n_wrong_b: int | None

    @property
    def has_differences(self) -> bool:
        """Whether something speaks against equal answers."""
        return self.is_same_sizes is False or (self.n_wrong_a or 0) != (self.n_wrong_b or 0)


@dataclass(frozen=True)
class Comparison:
    """Its fields are the keys of `compare.json`. `level`: of each test, what looks leave of 5 %; `margin_ratio`: within
    it two sides are the same. `verdict`: invalid, worse, undecided, better, same."""

    schema_version: int
    side_a: str
    side_b: str
    latency_name: str
    verdict: str
    margin_ratio: float
    level: float
    n_looks: int
    n_pairs: int
    n_pairs_planned: int
    changes: tuple[MetricChange, ...]
    differs: tuple[Differing, ...]
    marks: tuple[str, ...]
    pairs: tuple[PairRow, ...]
    unpaired: tuple[str, ...]
    replaced: tuple[str, ...]
    every: PartsChange | None
    tail: PartsChange | None
    batches: BatchChange | None
    gpu: GpuChange | None
    answers: AnswersCompared
    shift: Shift

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        found: dict[str, Any] = to_json(self)
        return found

    def change_of(self, metric: str) -> MetricChange:
        """Of one figure."""
        return next(one for one in self.changes if one.metric == metric)


def evaluate(
    side_a: str,
    side_b: str,
    paired: Paired,
    margin_ratio: float = DEFAULT_MARGIN,
    n_looks: int = 1,
    n_pairs_planned: int | None = None,
) -> Comparison:
    """What the pairs show, however few there are. `n_looks`: how often is looked in all, this one among them."""
    level, whole = nominal_level(n_looks), paired.whole
    changes = metric_changes(whole, margin_ratio, level)
    answers = _answers(whole)
    margin = math.log1p(margin_ratio)
    n_planned = len(paired.pairs) if n_pairs_planned is None else n_pairs_planned
    return Comparison(
        schema_version=SCHEMA_VERSION,
        side_a=side_a,
        side_b=side_b,
        latency_name="response" if all(pair.a.is_open for pair in whole) else "service",
        verdict=_verdict(paired, changes, answers),
        margin_ratio=margin_ratio,
        level=level,
        n_looks=n_looks,
        n_pairs=len(whole),
        n_pairs_planned=n_planned,
        changes=changes,
        differs=what_differs(whole or paired.pairs),
        marks=tuple(marks(whole)),
        pairs=tuple(_row(pair) for pair in paired.pairs),
        unpaired=tuple(_unpaired(one) for one in paired.unpaired),
        replaced=tuple(f"{one.name}: {one.why_left_out}" for one in paired.replaced),
        every=parts_change(whole, False, level) if whole else None,
        tail=parts_change(whole, True, level) if whole else None,
        batches=batch_change(whole, margin, level),
        gpu=gpu_change(whole, margin, level),
        answers=answers,
        shift=shift(whole, level),
    )


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


def _reading(run: SideRun, metric: str) -> Reading:
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
    reason, verdict = lacking, UNDECIDED
    n_more = None
    if shown is not None:
        verdict, reason = _metric_verdict(metric, rows, shown, p_holm, level)
        if verdict == UNDECIDED:
            n_more = n_more_pairs(shown, _margin(metric, margin_ratio), level, len(PRIMARY))
    is_worse = shown is not None and (shown.centre < 0) == (metric == THROUGHPUT)
    direction = "" if verdict != DIFFERENT else WORSE if is_worse else BETTER
    return MetricChange(
        metric=metric,
        is_primary=is_primary,
        is_share=is_share,
        n_pairs=len(rows),
        a=tuple(map(_finite, a)),
        b=tuple(map(_finite, b)),
        n_infinite_a=sum(one.is_infinite for one, _ in rows),
        n_infinite_b=sum(one.is_infinite for _, one in rows),
        mean_a=_mean(a, is_share),
        mean_b=_mean(b, is_share),
        change=_told(shown.centre, is_share) if shown else None,
        low=_told(shown.low, is_share) if shown else None,
        high=_told(shown.high, is_share) if shown else None,
        p_value=shown.p_value if shown else None,
        p_holm=p_holm,
        wilcoxon_p=shown.wilcoxon_p if shown else None,
        verdict=verdict if is_primary else "",
        direction=direction if is_primary else "",
        outcome=_outcome(verdict, direction, shown, _margin(metric, margin_ratio)) if is_primary else "",
        n_more=n_more if is_primary else None,
        reason=reason,
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


def _outcome(verdict: str, direction: str, shown: Shown | None, margin: float) -> str:
    """A difference counts where it is larger than the margin; one that is shown to be smaller is as none."""
    if verdict != DIFFERENT or shown is None:
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


def _verdict(paired: Paired, changes: Sequence[MetricChange], answers: AnswersCompared) -> str:
    """What outranks what: a run that measured nothing, a regression, what is not decided. Nothing is better that
    answers otherwise."""
    if len(paired.whole) < len(paired.pairs):
        return INVALID
    outcomes = [one.outcome for one in changes if one.is_primary]
    for one in (WORSE, UNDECIDED):
        if one in outcomes:
            return one
    if BETTER in outcomes:
        return UNDECIDED if answers.has_differences else BETTER
    return SAME


def _row(pair: Pair) -> PairRow:
    left_out = [f"{run.name}: {run.why_left_out}" for run in (pair.a, pair.b) if not run.is_valid]
    first = "A" if pair.a.started_ns <= pair.b.started_ns else "B"
    return PairRow(pair.seed, pair.a.name, pair.b.name, first, "; ".join(left_out))


def _unpaired(run: SideRun) -> str:
    return run.name if run.is_valid else f"{run.name}: {run.why_left_out}"


def _answers(pairs: Sequence[Pair]) -> AnswersCompared:
    """Sizes are compared where all requests of both runs ended ok."""
    sizes = [
        pair.a.answers.sha256 == pair.b.answers.sha256
        for pair in pairs
        if pair.a.answers.sha256 is not None and pair.b.answers.sha256 is not None
    ]
    counts = [
        _sum([getattr(run.answers, name) for run in side])
        for side in ([p.a for p in pairs], [p.b for p in pairs])
        for name in ("n_checked", "n_wrong")
    ]
    return AnswersCompared(all(sizes) if sizes else None, *counts)


def _sum(counts: Sequence[int | None]) -> int | None:
    told = [one for one in counts if one is not None]
    return sum(told) if told else None
