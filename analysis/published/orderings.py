"""Which of two rows is faster: what the article says, and what our runs show. Pure.

Ours is the test of `squall compare`: the logarithms of the ratios of runs of the same seed, Student's t of their mean,
corrected by Holm over all pairs and figures of the experiment that the article tells apart, so that with 95 % no two
rows that are alike are told apart in any of them. With one seed nothing can be told apart. Only directions and ratios
are compared with the article, never absolutes: the GPU and the backend are others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from squall.analysis.compare.pairs.change import Shown, differences, shown_by
from squall.analysis.published.values import RunFigures, counting, gives, last_attempts, number_of
from squall.analysis.statistics.holm import holm
from squall.analysis.statistics.paired import LEAST_PAIRS
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.published.file import PublishedFile, Stated

AGREES, CONTRADICTS = "agrees", "contradicts"
UNDECIDED, EQUAL, UNMEASURED = "cannot be told apart here", "published values equal", "not measured"
WORDS = (AGREES, CONTRADICTS, UNDECIDED, EQUAL, UNMEASURED)
LEVEL = 0.05
MARGIN = math.log(1.05)
"""What `squall compare` calls the same; of no consequence here, where nothing is called the same."""
ORDERED = ("throughput_hz", "mean_ns", "p50_ns", "p95_ns", "p99_ns")
"""Figures by which rows are ordered."""


@dataclass(frozen=True)
class Ordering:
    """`other` over `one` by a figure: the published ratio, and ours over `n_pairs` seeds of `part` with its 95 %
    interval by itself. `p`: after Holm. `word`: of `WORDS`."""

    figure: str
    one: str
    other: str
    published_ratio: float
    word: str
    part: str = ""
    n_pairs: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def orderings_of(file: PublishedFile, runs: Sequence[RunFigures]) -> tuple[Ordering, ...]:
    """Every pair of rows and figure that the article states for both, in the order of the file."""
    last = last_attempts(runs)
    found: list[Ordering] = []
    tested: list[tuple[int, Shown]] = []
    for figure in ORDERED:
        for one, other in itertools.combinations(file.rows, 2):
            values = [middle(row.published.get(figure)) for row in (one, other)]
            if values[0] is None or values[1] is None:
                continue
            ratio = values[1] / values[0]
            ordering, shown = _measured(file, last, Ordering(figure, one.name, other.name, ratio, UNMEASURED))
            if ratio == 1.0:
                ordering = replace(ordering, word=EQUAL)
            elif shown is not None:
                tested.append((len(found), shown))
            found.append(ordering)
    for (place, shown), p in zip(tested, holm([shown.p_value for _, shown in tested]), strict=True):
        found[place] = _decided(found[place], shown, p)
    return tuple(found)


def middle(value: Stated | None) -> float | None:
    """A stated number as it is, a range by its geometric middle; None of what is not positive, and of a text."""
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, tuple):
        return float(value) if value > 0 else None
    if any(end <= 0 for end in value):
        return None
    return math.exp(math.fsum(math.log(end) for end in value) / len(value))


def _measured(
    file: PublishedFile, last: Sequence[RunFigures], ordering: Ordering
) -> tuple[Ordering, Shown | None]:
    """Ours, of the part with most common seeds; nothing is shown by fewer than two."""
    part, pairs = max_common(file, last, ordering.figure, ordering.one, ordering.other)
    if not pairs:
        return ordering, None
    d = differences([one for one, _ in pairs], [other for _, other in pairs])
    if len(pairs) < LEAST_PAIRS:
        ratio = math.exp(float(d[0])) if math.isfinite(d[0]) else None
        return replace(ordering, part=part, n_pairs=1, ratio=ratio, word=UNDECIDED), None
    has_infinite = any(math.isinf(value) for pair in pairs for value in pair)
    shown = shown_by(d, MARGIN, LEVEL, has_infinite)
    ends = [math.exp(end) if math.isfinite(end) else None for end in (shown.centre, shown.low, shown.high)]
    return replace(
        ordering, part=part, n_pairs=len(pairs), ratio=ends[0], low=ends[1], high=ends[2], word=UNDECIDED
    ), shown


def max_common(
    file: PublishedFile, last: Sequence[RunFigures], figure: str, one: str, other: str
) -> tuple[str, list[tuple[float, float]]]:
    """The part that has most seeds in common of both rows, and the figures of these, `one` first. Positive figures of
    runs that count."""
    best: tuple[str, list[tuple[float, float]]] = ("", [])
    for part in dict.fromkeys([*file.parts, *(run.part for run in last)]):
        of_row = [
            {
                run.seed: value
                for run in counting(last, figure)
                if run.part == part and run.row == row and gives(file, part, row, figure)
                if (value := number_of(run, figure)) is not None and value > 0
            }
            for row in (one, other)
        ]
        pairs = [(value, of_row[1][seed]) for seed, value in sorted(of_row[0].items()) if seed in of_row[1]]
        if len(pairs) > len(best[1]):
            best = part, pairs
    return best


def _decided(ordering: Ordering, shown: Shown, p: float) -> Ordering:
    if p > LEVEL or shown.centre == 0.0:
        return replace(ordering, p=p)
    is_alike = (shown.centre > 0) == (ordering.published_ratio > 1.0)
    return replace(ordering, p=p, word=AGREES if is_alike else CONTRADICTS)


def better_of(ordering: Ordering, ratio: float | None) -> str | None:
    """The row that is better by that ratio of other to one; None where neither is."""
    if ratio is None or ratio == 1.0:
        return None
    is_other = (ratio < 1.0) == bool(FIGURES[ordering.figure].is_better_low)
    return ordering.other if is_other else ordering.one
