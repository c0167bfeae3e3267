"""A rule of the diagnosis, as data: conditions on measures, what it claims, what it could give back, what to do next.

Measures are a flat mapping of names to figures, None where not assessed; names and units stand in docs/metrics.md and
`squall.analysis.findings.rules.facts`. A rule holds where every one of its clauses does, a clause where any of its
conditions does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Measures = Mapping[str, float | None]
Level = Literal["window", "body"]
Comparison = Literal["at least", "at most", "below"]

QUOTIENTS = (
    "issue_to_op_ratio", "copy_to_kernel_ratio", "queue_to_exec_ratio", "load_of_ceiling_ratio",
    "cpu_of_exec_ratio", "cpu_or_wait_of_exec_ratio",
)  # fmt: skip
"""Ratios of two figures of which neither is a part of the other: they may exceed 1."""


def is_share(measure: str) -> bool:
    """Whether the measure lies between 0 and 1: a share of a whole, or a claim that is true (1) or not (0)."""
    return (measure.endswith("_ratio") and measure not in QUOTIENTS) or "is_" in measure


@dataclass(frozen=True)
class Condition:
    """A measure against its threshold; `reason` says why the threshold stands where it stands."""

    measure: str
    comparison: Comparison
    threshold: float
    reason: str

    def __post_init__(self) -> None:
        if not self.threshold > 0 or (is_share(self.measure) and self.threshold >= 1 and self.is_lower):
            raise ValueError(f"{self.measure}: a threshold of {self.threshold} leaves no margin to state")

    @property
    def is_lower(self) -> bool:
        """Whether the threshold is a lower bound."""
        return self.comparison == "at least"

    def holds(self, measures: Measures) -> bool | None:
        """Whether it holds; None where its measure is not assessed."""
        value = measures.get(self.measure)
        if value is None:
            return None
        if self.comparison == "below":
            return value < self.threshold
        return value >= self.threshold if self.is_lower else value <= self.threshold

    def margin(self, measures: Measures) -> float | None:
        """How far the measure lies on the holding side of its threshold (negative: on the other); None as `holds`.

        In units of the threshold t; of a share in units of min(t, 1 - t), so that both ends of its scale lie at least
        1 away. 0 at the threshold.
        """
        value = measures.get(self.measure)
        if value is None:
            return None
        scale = self.threshold
        if is_share(self.measure) and self.threshold < 1:
            scale = min(self.threshold, 1.0 - self.threshold)
        beyond = (value - self.threshold) / scale
        return beyond if self.is_lower else -beyond


def at_least(measure: str, threshold: float, reason: str) -> Condition:
    """`measure` must reach `threshold`."""
    return Condition(measure, "at least", threshold, reason)


def at_most(measure: str, threshold: float, reason: str) -> Condition:
    """`measure` must not exceed `threshold`."""
    return Condition(measure, "at most", threshold, reason)


def below(measure: str, threshold: float, reason: str) -> Condition:
    """`measure` must lie below `threshold`."""
    return Condition(measure, "below", threshold, reason)


Clause = tuple[Condition, ...]
"""Conditions of which one suffices."""


@dataclass(frozen=True)
class GiveBack:
    """Measures whose sum bounds what removing the cause could save, of the wall and of the mean latency.

    Empty: it gives back none of that. `feeds_queue`: what it saves a batch, the requests behind that batch save too.
    `beside_queue`: what stands for `response` beside all of the queue, where that overlaps the queue; empty: the same.
    """

    wall: tuple[str, ...] = ()
    response: tuple[str, ...] = ()
    feeds_queue: bool = False
    beside_queue: tuple[str, ...] = ()


BATCH_KEY = ("instance", "instance_device", "batch_id")
"""Names a batch among those of its server."""


@dataclass(frozen=True)
class RowLink:
    """Where the rows of a finding are: a table, and the SQL expression over it by which the worst come first."""

    table: Literal["batch_costs", "joined"]
    order: str
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Detail:
    """A closer name within a rule that holds: `claim` is a clause of a sentence with measures in braces."""

    name: str
    clauses: tuple[Clause, ...]
    claim: str
    next_step: str


@dataclass(frozen=True)
class Rule:
    """One regime. `claim` has measures in braces; `next_step`: what to do first; `not_shown`: what it does not tell."""

    name: str
    level: Level
    clauses: tuple[Clause, ...]
    claim: str
    next_step: str
    not_shown: str
    give_back: GiveBack
    rows: RowLink
    evidence: tuple[str, ...] = ()
    details: tuple[Detail, ...] = ()
    asked_where: str = ""
    """A measure: where it is not assessed the rule is not tried at all, and nothing is said of it."""
    needs_report: bool = False
    """Its measures are of the nsys report: kernels that are tied to no batch weaken it."""
    counted: str = "n_batches"
    """What its measures are figures over: with few of them it is of low confidence."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions, in order."""
        return tuple(one for clause in self.clauses for one in clause)

    @property
    def measures(self) -> tuple[str, ...]:
        """Measures of its conditions, then those it states beside them, each once."""
        names = [*(one.measure for one in self.conditions), *self.evidence]
        return tuple(dict.fromkeys(names))
