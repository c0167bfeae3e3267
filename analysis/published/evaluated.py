"""A published experiment and our runs of it, with what is found: what sentences, page and document are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from squall.analysis.published.claims import Claim
from squall.analysis.published.little import Cycle
from squall.analysis.published.orderings import Ordering
from squall.analysis.published.values import RunFigures, Value, last_attempts, rows_of
from squall.scenarios.published.file import PublishedFile, Stated

MOST_NAMED = 5
"""Rows that plots name."""


@dataclass(frozen=True)
class Evaluated:
    """`published`: the file. `host`: GPU, driver, CPU and squall's version in words; `date`, `command`: of the runs.
    `is_small`: a rehearsal, whose figures mean nothing. `runs`: all, every attempt. What is found: `values`, of each
    row and figure the leading one first; `orderings`; `claims`; `cycles`: Little's law, of the article's rows, then
    ours."""

    published: PublishedFile
    host: str
    date: str
    command: str
    is_small: bool
    runs: tuple[RunFigures, ...]
    values: tuple[Value, ...]
    orderings: tuple[Ordering, ...]
    claims: tuple[Claim, ...]
    cycles: tuple[Cycle, ...]

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows, those of the article first."""
        return rows_of(self.published, self.runs)

    def label(self, row: str) -> str:
        """The row as tables call it: of many with its number, which stands below the axes of plots."""
        return f"{self.rows.index(row) + 1}. {row}" if self.is_numbered else row

    @property
    def is_numbered(self) -> bool:
        """Whether there are too many rows for their names to stand below an axis; sizes are numbers by themselves."""
        return sum(not row.isdigit() for row in self.rows) > MOST_NAMED

    def stated(self, row: str, figure: str) -> Stated | None:
        """What the article states of a row."""
        return next((one.published.get(figure) for one in self.published.rows if one.name == row), None)

    def value(self, row: str, figure: str) -> Value | None:
        """Ours, of the part that leads; None where no run has it."""
        return leading(self.values, row, figure)

    @property
    def is_measured(self) -> bool:
        """Whether any figure of ours counts."""
        return any(one.is_measured for one in self.values)

    @property
    def directories(self) -> tuple[RunFigures, ...]:
        """Of each run one of its rows: a probe measures many rows in one run, a run of a server one."""
        found: dict[tuple[str, ...], RunFigures] = {}
        for run in self.runs:
            key = (run.part, run.run) if run.run else (run.part, run.row, str(run.seed), str(run.attempt))
            found.setdefault(key, run)
        return tuple(found.values())

    def verdicts(self) -> Counter[str]:
        """How many runs ended how, every attempt."""
        return Counter(run.status for run in self.directories)

    @property
    def without_valid_run(self) -> tuple[RunFigures, ...]:
        """Of each row and part that was run and has no VALID run that stands, the last one; a run that told no row
        speaks for its part, where that has no rows."""
        parts_of_rows = {run.part for run in self.runs if run.row}
        told = [run for run in last_attempts(self.runs) if run.row or run.part not in parts_of_rows]
        valid = {(run.part, run.row) for run in told if run.is_valid}
        last = {(run.part, run.row): run for run in told}
        return tuple(run for place, run in last.items() if place not in valid)


def leading(values: Sequence[Value], row: str, figure: str) -> Value | None:
    """Of a row and figure, the value of the part that leads."""
    return next((one for one in values if one.row == row and one.figure == figure), None)
