"""Our runs of a published experiment as the figures of its rows: what counts, means over seeds, ranges of the article.

What counts (`WHAT_COUNTS`): of each part, row and seed the last attempt, if it is VALID. What INVALID runs gave is
shown where a row has no other, marked, and counts in no mean, ordering or claim. `regime`, `bound_by` and
`outside_ratio` tell why a run is INVALID, a client that is the limit, and are taken from all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from squall.analysis.experiments.cell_figures import MeanFigure, log_mean, mean
from squall.analysis.published.figures import INFINITE
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.published.file import PublishedFile

VALID = "VALID"
LOST = "LOST"
"""Of a run that was VALID, and whose directory is gone or damaged since."""
OF_THE_CLIENT = ("regime", "bound_by", "outside_ratio")
"""Figures that are also taken from runs whose load generator was the limit, since they say so."""
WHAT_COUNTS = (
    "Of each part, row and seed the last attempt counts, if it is VALID. Figures marked INVALID are shown and count"
    " nowhere, but for the regime and the time outside requests, which say why a run is INVALID."
)


@dataclass(frozen=True)
class RunFigures:
    """One run of ours. `part`: of the file, or `probe`. `status`: VALID, INVALID, ABORTED, LOST, or what raised.
    `under`: the collectors that were on. `run`: name of its directory. `figures`: by name of `FIGURES`, a number or a
    text."""

    part: str
    row: str
    seed: int
    attempt: int
    status: str
    reason: str
    under: str
    run: str
    figures: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def is_valid(self) -> bool:
        """Whether its figures may count."""
        return self.status == VALID


@dataclass(frozen=True)
class Value:
    """A figure of a row in one part: over `n` runs that count its mean with a 95 % interval (geometric; of shares, and
    where a value is 0 or less, arithmetic), or what the runs say where it is a text. `marked`: the mean of runs that do
    not count, where none does. `note`: why there is no mean."""

    row: str
    figure: str
    part: str
    under: str
    n: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    marked: float | None = None
    note: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether runs that count tell of it."""
        return self.mean is not None or bool(self.text)


def rows_of(file: PublishedFile, runs: Sequence[RunFigures]) -> tuple[str, ...]:
    """Names of the rows: those of the file, then what else was run, in the order of the runs."""
    return tuple(dict.fromkeys([*(row.name for row in file.rows), *(run.row for run in runs if run.row)]))


def last_attempts(runs: Sequence[RunFigures]) -> list[RunFigures]:
    """Of each part, row and seed the run that comes last, in the order of the runs."""
    last: dict[tuple[str, str, int], RunFigures] = {}
    for run in runs:
        last[run.part, run.row, run.seed] = run
    return list(last.values())


def gives(file: PublishedFile, part: str, row: str, figure: str) -> bool:
    """Whether the part is where the figure of that row is taken from. What the file does not name gives all."""
    stated = file.parts.get(part)
    if stated is None:
        return True
    return figure in stated.gives and (stated.rows is None or row in stated.rows)


def counting(runs: Iterable[RunFigures], figure: str) -> list[RunFigures]:
    """Those whose figure counts."""
    return [run for run in runs if figure in run.figures and (run.is_valid or figure in OF_THE_CLIENT)]


def values_of(file: PublishedFile, runs: Sequence[RunFigures]) -> tuple[Value, ...]:
    """Every figure of every row in every part that gives it; of a row and figure the one that leads first: of the part
    with most runs that count, of these the first in the file."""
    last = last_attempts(runs)
    parts = list(dict.fromkeys([*file.parts, *(run.part for run in runs)]))
    found: list[Value] = []
    for row in rows_of(file, runs):
        for figure in FIGURES:
            own = []
            for part in parts:
                seen = [run for run in last if run.part == part and run.row == row and figure in run.figures]
                if seen and gives(file, part, row, figure):
                    own.append(_value(row, figure, part, seen))
            found += sorted(own, key=lambda one: -one.n)
    return tuple(found)


def _value(row: str, figure: str, part: str, seen: Sequence[RunFigures]) -> Value:
    own = counting(seen, figure)
    under = "; ".join(dict.fromkeys(run.under for run in own or seen if run.under))
    if FIGURES[figure].unit == "text":
        return Value(
            row, figure, part, under, len(own), text=_texts([str(run.figures[figure]) for run in own])
        )
    if not own:
        statuses = ", ".join(dict.fromkeys(run.status for run in seen))
        reason = next((run.reason for run in seen if run.reason), "")
        note = f"{statuses}: {reason}" if reason else statuses
        return Value(
            row, figure, part, under, 0, marked=_mean(figure, _numbers(seen, figure)).mean, note=note
        )
    numbers = _numbers(own, figure)
    n_infinite = len(own) - len(numbers)
    if n_infinite:
        note = f"infinite in {n_infinite} of {len(own)} runs: the quantile fell on failed requests"
        return Value(row, figure, part, under, len(own), note=note)
    one = _mean(figure, numbers)
    return Value(row, figure, part, under, len(own), one.mean, one.low, one.high)


def number_of(run: RunFigures, figure: str) -> float | None:
    """The figure of a run; infinity where it fell on failures, None where there is none."""
    value = run.figures.get(figure)
    if isinstance(value, str):
        return math.inf if value == INFINITE else None
    return value


def _numbers(runs: Sequence[RunFigures], figure: str) -> list[float]:
    found = [number_of(run, figure) for run in runs]
    return [value for value in found if value is not None and math.isfinite(value)]


def _mean(figure: str, numbers: Sequence[float]) -> MeanFigure:
    """Geometric; arithmetic of shares, which may be 0, and of what is not all positive. One value is itself."""
    if FIGURES[figure].unit == "ratio" or len(numbers) == 1 or any(value <= 0 for value in numbers):
        return mean(numbers)
    return log_mean(numbers)


def _texts(texts: Sequence[str]) -> str:
    """What they say, commonest first; how many of them where they do not agree."""
    counted = Counter(texts).most_common()
    if len(counted) < 2:
        return "".join(text for text, _ in counted)
    return "; ".join(f"{text} ({n} of {len(texts)})" for text, n in counted)
