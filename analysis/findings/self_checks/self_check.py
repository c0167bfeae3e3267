"""A figure of a run that must agree with another figure of the same run, whatever the run is about."""

from __future__ import annotations

from dataclasses import dataclass

from squall.analysis.record import Number

MET, UNMET, UNASSESSED = "met", "unmet", "not assessed"


@dataclass(frozen=True)
class SelfCheck:
    """`status` is met, unmet or not assessed, for which `value` is None. `where`: whose the worst value is."""

    name: str
    value: Number | None
    limit: Number
    unit: str
    status: str
    meaning: str
    where: str = ""


def at_most(
    name: str, value: Number | None, limit: Number, unit: str, meaning: str, where: str = ""
) -> SelfCheck:
    """A check that is met while `value` is at most `limit`."""
    status = UNASSESSED if value is None else MET if value <= limit else UNMET
    return SelfCheck(name, value, limit, unit, status, meaning, where)


def at_least(
    name: str, value: Number | None, limit: Number, unit: str, meaning: str, where: str = ""
) -> SelfCheck:
    """A check that is met while `value` is at least `limit`."""
    status = UNASSESSED if value is None else MET if value >= limit else UNMET
    return SelfCheck(name, value, limit, unit, status, meaning, where)
