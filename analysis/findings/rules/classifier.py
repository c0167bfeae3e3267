"""Which rules hold, which do not and which cannot be tried, on one mapping of measures. Pure, and never raises on one.

A rule's clauses are combined as in Kleene's logic of three values: one clause that fails settles that the rule does
not hold, whatever else is not assessed. Its margin is that of its weakest clause, a clause's that of its strongest
condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squall.analysis.findings.rules.rule import Clause, Measures, Rule


@dataclass(frozen=True)
class Assessment:
    """A rule tried: `holds` is None if not assessed, for want of the measures `missing`.

    `margin`: how far from its thresholds (`Condition.margin`), of what could be assessed; None if nothing could.
    """

    rule: Rule
    holds: bool | None
    margin: float | None
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Classification:
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
        """named; none: every rule was tried and none holds; not assessed: some could not be tried, no other holds."""
        if self.named is not None:
            return "named"
        return "not assessed" if self.unassessed else "none"


def classify(rules: Sequence[Rule], measures: Measures) -> Classification:
    """`rules` tried in their order on `measures`, which may lack names: those are not assessed."""
    tried = tuple(assess(rule, measures) for rule in rules)
    holding = [one for one in tried if one.holds]
    misses = sorted((one for one in tried if one.holds is False), key=lambda one: _miss(one, measures))
    named = holding[0] if holding else None
    runners = holding[1:] or misses
    return Classification(tried, named, runners[0] if runners else None)


def assess(rule: Rule, measures: Measures) -> Assessment:
    """`rule` tried on `measures`."""
    verdicts = [_clause_holds(clause, measures) for clause in rule.clauses]
    margins = [margin for clause in rule.clauses if (margin := _clause_margin(clause, measures)) is not None]
    holds: bool | None = None if None in verdicts else True
    if False in verdicts:
        holds = False
    missing = dict.fromkeys(
        one.measure
        for clause, verdict in zip(rule.clauses, verdicts, strict=True)
        if verdict is None
        for one in clause
        if measures.get(one.measure) is None
    )
    return Assessment(rule, holds, min(margins, default=None), tuple(missing) if holds is None else ())


def clauses_hold(clauses: Sequence[Clause], measures: Measures) -> bool | None:
    """Whether every clause holds; None where that is not assessed."""
    verdicts = [_clause_holds(clause, measures) for clause in clauses]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _clause_holds(clause: Clause, measures: Measures) -> bool | None:
    verdicts = [one.holds(measures) for one in clause]
    if True in verdicts:
        return True
    return None if None in verdicts else False


def _clause_margin(clause: Clause, measures: Measures) -> float | None:
    margins = [margin for one in clause if (margin := one.margin(measures)) is not None]
    return max(margins, default=None)


def _miss(one: Assessment, measures: Measures) -> tuple[bool, float]:
    """Of a rule that does not hold: whether a clause was not even tried, and by how much the tried ones miss."""
    is_partial = any(_clause_margin(clause, measures) is None for clause in one.rule.clauses)
    return is_partial, -one.margin if one.margin is not None else float("inf")
