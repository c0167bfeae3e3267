"""A rule of the diagnosis as `rules.yaml` states it, and how rules are tried on measures: pure, never raising on any.

Measures are a flat mapping of names to figures, None where not assessed; names and units stand in docs/metrics.md and
`squall.analysis.findings.facts`. A rule holds where every one of its clauses does, a clause where any of its
conditions does, as in Kleene's logic of three values: one clause that fails settles that the rule does not hold,
whatever else is not assessed. Its margin is that of its weakest clause, a clause's that of its strongest condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, model_validator

from squall.scenarios.records import Frozen

Measures = Mapping[str, float | None]
Level = Literal["window", "body"]

QUOTIENTS = (
    "issue_to_op_ratio", "copy_to_kernel_ratio", "queue_to_exec_ratio", "load_of_ceiling_ratio",
    "cpu_of_exec_ratio", "cpu_or_wait_of_exec_ratio",
)  # fmt: skip
"""Ratios of two figures of which neither is a part of the other: they may exceed 1."""


def is_share(measure: str) -> bool:
    """Whether the measure lies between 0 and 1: a share of a whole, or a claim that is true (1) or not (0)."""
    return (measure.endswith("_ratio") and measure not in QUOTIENTS) or "is_" in measure


class _Stated(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A part of `rules.yaml`."""


class Condition(_Stated):
    """A measure against its threshold; `reason` says why the threshold stands where it stands."""

    measure: str
    comparison: Literal["at least", "at most", "below"]
    threshold: float
    reason: str

    @model_validator(mode="after")
    def _leaves_a_margin(self) -> Condition:
        is_end = is_share(self.measure) and self.threshold >= 1 and self.comparison == "at least"
        if not self.threshold > 0 or is_end:
            raise ValueError(f"{self.measure}: a threshold of {self.threshold} leaves no margin to state")
        return self

    def holds(self, measures: Measures) -> bool | None:
        """Whether it holds; None where its measure is not assessed."""
        margin = self.margin(measures)
        if margin is None:
            return None
        return margin > 0 if self.comparison == "below" else margin >= 0

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
        return beyond if self.comparison == "at least" else -beyond


Clause = tuple[Condition, ...]
"""Conditions of which one suffices."""


class GiveBack(_Stated):
    """Measures whose sum bounds what removing the cause could save, of the wall and of the mean latency.

    Empty: it gives back none of that. `feeds_queue`: what it saves a batch, the requests behind that batch save too.
    `beside_queue`: what stands for `response` beside all of the queue, where that overlaps the queue; empty: the same.
    """

    wall: tuple[str, ...] = ()
    response: tuple[str, ...] = ()
    feeds_queue: bool = False
    beside_queue: tuple[str, ...] = ()


class RowLink(_Stated):
    """Where the rows of a finding are: a table, and the SQL expression over it by which the worst come first."""

    table: Literal["batch_costs", "joined"]
    order: str
    shown: tuple[str, ...]


class Detail(_Stated):
    """A closer name within a rule that holds: `claim` is a clause of a sentence with measures in braces."""

    name: str
    clauses: tuple[Clause, ...]
    claim: str
    next_step: str


class Rule(_Stated):
    """One regime. `claim` has measures in braces; `next_step`: what to do first; `not_shown`: what it does not tell."""

    name: str
    level: Level
    clauses: tuple[Clause, ...]
    claim: str
    next_step: str
    not_shown: str
    give_back: GiveBack = GiveBack()
    rows: RowLink
    evidence: tuple[str, ...] = ()
    """Measures that are stated beside its conditions."""
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
    def stated(self) -> tuple[str, ...]:
        """Measures that it states beside its conditions, each once."""
        return tuple(dict.fromkeys(name for name in self.evidence if name not in self.tried))

    @property
    def tried(self) -> set[str]:
        """Measures of its conditions."""
        return {one.measure for one in self.conditions}


class Assessment(Frozen):
    """A rule tried: `holds` is None if not assessed, for want of the measures `missing`.

    `margin`: how far from its thresholds (`Condition.margin`), of what could be assessed; None if nothing could.
    `is_partial`: of some clause nothing could.
    """

    rule: Rule
    holds: bool | None
    margin: float | None
    missing: tuple[str, ...]
    is_partial: bool


class Classification(Frozen):
    """All rules of a level tried. `named` is the first that holds, None if none does.

    `runner_up` is the next that holds, else the one that misses by least, of those tried in every clause if there are
    any; None where no other could be tried.
    """

    assessments: tuple[Assessment, ...]
    named: Assessment | None
    runner_up: Assessment | None

    @property
    def unassessed(self) -> tuple[Assessment, ...]:
        """Rules that could not be tried; of a level with a name, those that come before it."""
        found = self.assessments
        if self.named is not None:
            found = found[: found.index(self.named)]
        return tuple(one for one in found if one.holds is None)

    @property
    def status(self) -> str:
        """Name of the rule; none: every rule was tried and none holds; not assessed: some could not be tried, no other
        holds."""
        if self.named is not None:
            return self.named.rule.name
        return "not assessed" if self.unassessed else "none"


def classify(rules: Sequence[Rule], measures: Measures) -> Classification:
    """`rules` tried in their order on `measures`, which may lack names: those are not assessed."""
    tried = tuple(assess(rule, measures) for rule in rules)
    holding = [one for one in tried if one.holds]
    misses = [one for one in tried if one.holds is False]
    nearest = sorted(
        misses, key=lambda one: (one.is_partial, float("inf") if one.margin is None else -one.margin)
    )
    runners = holding[1:] or nearest
    return Classification(tried, holding[0] if holding else None, runners[0] if runners else None)


def assess(rule: Rule, measures: Measures) -> Assessment:
    """`rule` tried on `measures`."""
    margins = [
        max((margin for one in clause if (margin := one.margin(measures)) is not None), default=None)
        for clause in rule.clauses
    ]
    holds = clauses_hold(rule.clauses, measures)
    missing = dict.fromkeys(
        one.measure
        for clause in rule.clauses
        if _any_holds(clause, measures) is None
        for one in clause
        if measures.get(one.measure) is None
    )
    return Assessment(
        rule,
        holds,
        min((one for one in margins if one is not None), default=None),
        tuple(missing) if holds is None else (),
        None in margins,
    )


def clauses_hold(clauses: Iterable[Clause], measures: Measures) -> bool | None:
    """Whether every clause holds; None where that is not assessed."""
    found = {_any_holds(clause, measures) for clause in clauses}
    return False if False in found else None if None in found else True


def _any_holds(clause: Clause, measures: Measures) -> bool | None:
    found = {one.holds(measures) for one in clause}
    return True if True in found else None if None in found else False
