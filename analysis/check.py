"""A figure held to its limit, with a sentence where it is not met."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.wording import figure_text


@dataclass(frozen=True)
class Check:
    """One figure against its limit. `value` is None if not assessed; `reason` is set if not met."""

    name: str
    value: float | None
    limit: float
    unit: str
    is_met: bool
    meaning: str
    reason: str = ""


def held_to(name: str, value: float | None, limit: float, unit: str, meaning: str, advice: str) -> Check:
    """A check that holds while `value` is at most `limit`; None is not met."""
    if value is not None and value <= limit:
        return Check(name, value, limit, unit, True, meaning)
    if value is None:
        reason = f"{meaning} was not recorded, so that nobody knows whether the tool kept up."
    else:
        found = f"is {figure_text(value, unit)}, where {figure_text(limit, unit)} is the limit"
        reason = f"{meaning} {found}: {advice}."
    return Check(name, value, limit, unit, False, meaning, reason[0].upper() + reason[1:])
