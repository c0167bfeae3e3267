"""A figure held to its limit, with a sentence where it is not met."""

from __future__ import annotations

from dataclasses import dataclass, replace

from squall.analysis.record import Number
from squall.analysis.wording import figure_text


@dataclass(frozen=True)
class Check:
    """One figure against its limit. `value` is None if it is not known; `reason` is set if it makes the run INVALID.

    `not_assessed` says why the figure decides nothing: too few samples, or no consequence. Such a check is neither
    met nor unmet.
    """

    name: str
    value: Number | None
    limit: Number
    unit: str
    is_met: bool
    meaning: str
    reason: str = ""
    not_assessed: str = ""

    @property
    def is_unmet(self) -> bool:
        """It makes the run INVALID."""
        return not self.is_met and not self.not_assessed

    def unless(self, excuse: str) -> Check:
        """The same, but not assessed with that excuse, if there is one and it is not met."""
        return replace(self, reason="", not_assessed=excuse) if excuse and self.is_unmet else self


def held_to(name: str, value: Number | None, limit: Number, unit: str, meaning: str, advice: str) -> Check:
    """A check that holds while `value` is at most `limit`; None is not met."""
    if value is not None and value <= limit:
        return Check(name, value, limit, unit, True, meaning)
    if value is None:
        reason = f"{meaning} was not recorded, so that nobody knows whether the tool kept up."
    else:
        found = f"is {figure_text(value, unit)}, where {figure_text(limit, unit)} is the limit"
        reason = f"{meaning} {found}: {advice}."
    return Check(name, value, limit, unit, False, meaning, reason[0].upper() + reason[1:])


def not_assessed(name: str, value: Number | None, limit: Number, unit: str, meaning: str, why: str) -> Check:
    """A check of which `why` says that its figure decides nothing."""
    return Check(name, value, limit, unit, False, meaning, not_assessed=why)
