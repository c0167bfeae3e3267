"""What a check is: a figure of a run, the limit that it is held to, and what a reader is told where it is not met.

All checks are rows of `squall.analysis.verdict.checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from squall.analysis.record import Number
from squall.analysis.storage.sealed import CheckResult
from squall.analysis.wording import figure_text
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    from squall.analysis.verdict.run_view import RunView

SENDS, CLIENT = "sends", "client"


class Figure(Frozen):
    """What a run shows of a check; `value` None where it was not recorded, which is not met.

    `limit`, `meaning` and `advice` stand in place of the check's own where they depend on the run. `sentence`: the
    whole reason; a figure that has one is not met. `excuse`: why a figure beyond its limit decides nothing.
    `not_assessed`: why it decides nothing, whatever it is.
    """

    value: Number | None
    limit: Number | None = None
    meaning: str = ""
    advice: str = ""
    sentence: str = ""
    excuse: str = ""
    not_assessed: str = ""


class Check(Frozen):
    """One check: its figure may be at most `limit`; `reason` says why the limit stands where it stands.

    `figure` returns None where the run has nothing to hold to the limit. `where`: the runs that are asked.
    `shows`: `SENDS` where an unmet figure was done to the sends, which is the client's too; `CLIENT` where it shows
    that the client was the limit without saying so of the sends.
    """

    name: str
    figure: Callable[[RunView], Figure | None]
    limit: Number
    unit: str
    meaning: str
    reason: str
    advice: str = ""
    where: Callable[[RunView], bool] = lambda _: True
    shows: str = ""

    def held(self, figure: Figure) -> CheckResult:
        """The figure held to the limit."""
        value, limit = figure.value, self.limit if figure.limit is None else figure.limit
        meaning = figure.meaning or self.meaning
        is_within = value is not None and bool(value <= limit)  # of a number of numpy's too
        is_met = is_within and not (figure.sentence or figure.not_assessed)
        not_assessed = figure.not_assessed or ("" if is_met or figure.sentence else figure.excuse)
        reason = figure.sentence
        if not reason and value is None:
            reason = f"{meaning} was not recorded, so that nobody knows whether the tool kept up."
        elif not reason:
            beyond = f"is {figure_text(value, self.unit)}, where {figure_text(limit, self.unit)} is the limit"
            reason = f"{meaning} {beyond}: {figure.advice or self.advice}."
        return CheckResult(
            name=self.name,
            value=value,
            limit=limit,
            unit=self.unit,
            is_met=is_met,
            meaning=meaning,
            reason="" if is_met or not_assessed else reason[0].upper() + reason[1:],
            not_assessed=not_assessed,
        )
