"""A run of an experiment as a row: what was run, how it ended, its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from squall.analysis.record import from_json
from squall.scenarios.errors import AnalysisError
from squall.scenarios.foreign_text import is_component
from squall.scenarios.records import Frozen

DONE, INVALID, FAILED = "done", "invalid", "failed"
"""Outcomes: a VALID run; one that is not; one that raised."""
MOST_ATTEMPTS = 2
"""Of a run that is INVALID."""
CELL, REFERENCE, CONFIRM = "cell", "reference", "confirm"
LATENCIES = {"p50": "p50_ns", "p95": "p95_ns", "p99": "p99_ns"}
COLUMNS = {**LATENCIES, "throughput": "throughput_hz"}
"""Column of each objective."""


class Figures(Frozen):
    """Of the measured requests of a run: `n` scheduled, `n_failed` of them not ok, quantiles of response time (closed
    loop: service time) with failures infinite, requests that ended ok per second of the measured phases, and the load:
    None where there is none. `infinite`: quantiles that fell on failures. `promises`: verdict by promise."""

    n: int = 0
    n_failed: int = 0
    p50_ns: float | None = None
    p95_ns: float | None = None
    p99_ns: float | None = None
    throughput_hz: float | None = None
    offered_hz: float | None = None
    infinite: tuple[str, ...] = ()
    promises: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed_ratio(self) -> float | None:
        """Share of requests that did not end ok."""
        return self.n_failed / self.n if self.n else None

    def value(self, objective: str) -> float | None:
        """The figure of an objective; infinity where it fell on failures."""
        column = COLUMNS[objective]
        found: float | None = math.inf if column in self.infinite else getattr(self, column)
        return found


class SweepRow(Frozen):
    """One run. `position`: in the plan of its site; `block`: of its seed, -1 of a reference run; `attempt`: from 1,
    more where it is run once more; `is_replaced`: another counts in its place. `site`: digest of squall's version and
    the hardware, `host` in words. `wall_s`: start and end of the server included. `gpu_c`: hottest GPU before it."""

    key: str
    position: int
    block: int
    role: str
    cell: int
    label: str
    seed: int
    attempt: int
    outcome: str
    status: str
    reason: str
    run: str
    site: str
    host: str
    wall_s: float
    gpu_c: float | None = None
    is_replaced: bool = False
    figures: Figures = field(default_factory=Figures)

    @property
    def is_ended(self) -> bool:
        """Whether it stands, and nothing is to be run in its place."""
        return not self.is_replaced and not (self.outcome == INVALID and self.attempt < MOST_ATTEMPTS)

    @property
    def is_counted(self) -> bool:
        """Whether figures of cells take it in."""
        return self.outcome == DONE and not self.is_replaced


def row_from_json(found: object) -> SweepRow:
    """The row that `to_json` made a mapping of. Raises AnalysisError for anything else, and for a run that is no name
    of a folder."""
    row = from_json(SweepRow, found)
    if row.run and not is_component(row.run):
        raise AnalysisError("run: is no name of a folder")
    return row
