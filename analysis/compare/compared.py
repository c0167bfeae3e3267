"""Two sides compared: every figure with its verdict, and of all together whether B is no worse than A."""

from __future__ import annotations

import math
from collections.abc import Sequence

from squall.analysis.compare.change import SAME, UNDECIDED
from squall.analysis.compare.corrections import nominal_level
from squall.analysis.compare.differing import Differing
from squall.analysis.compare.kernels_change import GpuChange, gpu_change
from squall.analysis.compare.metric_changes import BETTER, WORSE, MetricChange, metric_changes
from squall.analysis.compare.pairing import Pair, Paired, sides
from squall.analysis.compare.run_row import RunRow
from squall.analysis.compare.settings import marks, what_differs
from squall.analysis.compare.shift import Shift, shift
from squall.analysis.compare.why import BatchChange, PartsChange, batch_change, parts_change
from squall.scenarios.records import Frozen

SCHEMA_VERSION = 1
INVALID, UNFINISHED = "invalid", "unfinished"
DEFAULT_MARGIN = 0.03
LEFT_OUT_ONE_IN = 5
"""One pair in so many may be left out, for a run that is not VALID or ended early: of more the rest is a selection."""


class PairRow(Frozen):
    """A pair as a file tells of it: names of its runs, which began first, and why it is left out."""

    seed: int | None
    run_a: str
    run_b: str
    first: str
    left_out: str


class AnswersCompared(Frozen):
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


class Comparison(Frozen):
    """Its fields are the keys of `compare.json`. `level`: of each test, what looks leave of 5 %; `margin_ratio`: within
    it two sides are the same. `verdict`: invalid, worse, undecided, better, same; unfinished while pairs are still to
    run, whatever those before them show."""

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
        marks=(*marks(whole), *_left_out(paired)),
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


def _verdict(paired: Paired, changes: Sequence[MetricChange], answers: AnswersCompared) -> str:
    """What outranks what: a run that measured nothing, a regression, what is not decided. Nothing is better that
    answers otherwise."""
    if LEFT_OUT_ONE_IN * (len(paired.pairs) - len(paired.whole)) > len(paired.pairs):
        return INVALID
    outcomes = [one.outcome for one in changes if one.is_primary]
    for one in (WORSE, UNDECIDED):
        if one in outcomes:
            return one
    if BETTER in outcomes:
        return UNDECIDED if answers.has_differences else BETTER
    return SAME


def _left_out(paired: Paired) -> list[str]:
    """Of pairs that do not count: on which side, since what makes a run INVALID may be what is compared."""
    bad = [pair for pair in paired.pairs if not pair.is_whole]
    if not bad:
        return []
    of_a, of_b = (sum(not run.is_valid for run in side) for side in sides(bad))
    return [
        f"{len(bad)} of {len(paired.pairs)} pairs left out, with a run that is not VALID or ended early:"
        f" {of_a} of A, {of_b} of B"
    ]


def _row(pair: Pair) -> PairRow:
    left_out = [f"{run.name}: {run.why_left_out}" for run in (pair.a, pair.b) if not run.is_valid]
    first = "A" if pair.a.started_ns <= pair.b.started_ns else "B"
    return PairRow(pair.seed, pair.a.name, pair.b.name, first, "; ".join(left_out))


def _unpaired(run: RunRow) -> str:
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
        for side in sides(pairs)
        for name in ("n_checked", "n_wrong")
    ]
    return AnswersCompared(all(sizes) if sizes else None, *counts)


def _sum(counts: Sequence[int | None]) -> int | None:
    told = [one for one in counts if one is not None]
    return sum(told) if told else None
