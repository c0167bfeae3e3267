"""The minutes that runs which are still to come take, told before the first and once some were measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from squall.analysis.wording import counted_text
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S


class Beside(Frozen):
    """What a run takes beside its phases (start, server, join): the mean over `n_runs`, 0 s before any."""

    seconds: float = 0.0
    n_runs: int = 0

    @classmethod
    def of(cls, took: Iterable[tuple[float, float]]) -> Self:
        """`took`: of each run its whole time and that of its phases, in seconds."""
        beside = [whole_s - phases_s for whole_s, phases_s in took]
        return cls(max(0.0, sum(beside) / len(beside)), len(beside)) if beside else cls()

    def to_come_text(self, n_runs: int, noun: str, phases_s: float) -> str:
        """The runs to come, whose phases are so long each, in seconds, and their minutes."""
        left_s = n_runs * (phases_s + self.seconds)
        return f"{counted_text(n_runs, noun)} to come, {self.minutes_text(left_s)}"

    def minutes_text(self, seconds: float, how: str = "") -> str:
        """What `seconds`, of the runs to come and of what they take beside their phases, are for a screen. Before any
        run was measured they are the least that it can be; `how` it is asked for again then."""
        minutes = f"{seconds / 60:.1f} minutes are left: the phases"
        if not self.n_runs:
            return f"at least {minutes}; what a run takes beside them is known once one has run{how}"
        measured = f"measured over {counted_text(self.n_runs, 'run')}"
        return f"{minutes}, and {self.seconds:.0f} s a run beside them ({measured})"


def phases_s(scenario: Scenario) -> float:
    """How long the phases of a run are together, in seconds."""
    return sum(phase.duration_ns for phase in scenario.phases) / NS_PER_S
