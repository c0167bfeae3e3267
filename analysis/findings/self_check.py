"""A figure of a run that must agree with another figure of the same run, whatever the run is about."""

from __future__ import annotations

from squall.analysis.record import Number
from squall.scenarios.records import Frozen

MET, UNMET, UNASSESSED = "met", "unmet", "not assessed"


class SelfCheck(Frozen):
    """`status` is met, unmet or not assessed, for which `value` is None. `where`: whose the worst value is."""

    name: str
    value: Number | None
    limit: Number
    unit: str
    status: str
    meaning: str
    where: str = ""
