"""The page of a comparison: pairs, the whole distribution, parts, kernels. Only what to draw."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from squall.analysis.compare.change import SAME
from squall.analysis.compare.compared import Comparison
from squall.analysis.compare.intervals import MeanChange
from squall.analysis.compare.metric_changes import BETTER, WORSE, MetricChange
from squall.analysis.report.compare_words import (
    LABELS,
    answer,
    answers_text,
    aside,
    causes,
    metric_row,
)
from squall.analysis.report.decision_page import DecisionPage
from squall.analysis.report.plots import Plot, Trace, band, curve, points
from squall.analysis.wording import share_text
from squall.scenarios.units import NS_PER_MS

_MOST_PARTS = 8


def compare_page(found: Comparison, commands: Sequence[str]) -> DecisionPage:
    """`commands`: what makes it again."""
    is_good = {WORSE: False, BETTER: True, SAME: True}.get(found.verdict)
    return DecisionPage(
        title=f"{found.side_b} against {found.side_a}",
        answer=answer(found),
        is_good=is_good,
        facts=(
            f"A: {found.side_a}; B: {found.side_b}",
            f"{found.n_pairs} pairs of {found.n_pairs_planned}, each of one schedule and seed; margin"
            f" {100.0 * found.margin_ratio:g} %; intervals at {share_text(1.0 - found.level)}",
            *(f"differs: {one.text}" for one in found.differs),
        ),
        notes=(*causes(found), answers_text(found), *found.marks, *aside(found)),
        plots=tuple(_plots(found)),
        tables=(),
        commands=tuple(commands),
        template="compare.html.j2",
        values={"found": found, "metric_row": metric_row},
    )


def _plots(found: Comparison) -> list[Plot]:
    return [
        *(_dots(found, found.change_of(metric)) for metric in ("p50_ns", "p95_ns")),
        _shift(found),
        *(
            _waterfall(f"Where the change comes from: {part.requests}", part.latency, part.parts)
            for part in (found.every, found.tail)
            if part is not None
        ),
    ]


def _dots(found: Comparison, change: MetricChange) -> Plot:
    """Both sides of each pair, one place a seed."""
    label = f"{LABELS[change.metric]} of the {found.latency_name} time"
    seeds = [one.seed for one in found.pairs if not one.left_out]
    if not seeds:
        return Plot(label, "seed", "ms", "line", absent="no pair is whole")
    sides = [
        points(
            name,
            [place + shift for place in range(len(values))],
            [None if value is None else value / NS_PER_MS for value in values],
        )
        for name, values, shift in (("A", change.a, -0.08), ("B", change.b, 0.08))
    ]
    note = "A pair is of one seed; what is infinite is not drawn."
    return Plot(f"{label} by seed", "seed", "ms", "line", tuple(sides), note, x_ticks=tuple(map(str, seeds)))


def _shift(found: Comparison) -> Plot:
    shift = found.shift
    title, x_label, y_label = "The whole distribution", "quantile, %", "B over A, % change"
    if not any(one is not None for one in shift.change):
        return Plot(title, x_label, y_label, "line", absent="no quantile is known of every run")
    x = [float(percent) for percent in shift.percents]
    series: list[Trace] = []
    if any(one is not None for one in shift.low):
        series.append(band("band", x, _percent(shift.high), _percent(shift.low)))
    series.append(curve("mean of the pairs", x, _percent(shift.change), "solid"))
    series.append(curve("no change", [x[0], x[-1]], [0.0, 0.0], "reference"))
    note = "The band holds the whole curve at once; pairs were drawn anew, never requests."
    return Plot(title, x_label, y_label, "line", tuple(series), note)


def _percent(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else 100.0 * value for value in values]


def _waterfall(title: str, whole: MeanChange, parts: Sequence[MeanChange]) -> Plot:
    """Steps from the mean of A to that of B: whiskers from where the one before ended."""
    steps = [(one.what, one.change) for one in parts[:_MOST_PARTS]]
    if rest := parts[_MOST_PARTS:]:
        steps.append(("others", sum(one.change for one in rest)))
    names = ("A", *(name for name, _ in steps), "B")
    x = [float(place) for place in range(len(names))]
    path = [one / NS_PER_MS for one in accumulate((change for _, change in steps), initial=whole.a)]
    low, high = ([None, *map(end, pairwise(path)), None] for end in (min, max))
    ends = points("mean", [x[0], x[-1]], [whole.a / NS_PER_MS, whole.b / NS_PER_MS])
    after = points("after the part", x, [None, *path[1:], None], low, high)
    note = "From the mean of A to that of B, part by part: each whisker is the change of one part."
    return Plot(title, "part", "mean, ms", "line", (ends, after), note, x_ticks=names)
