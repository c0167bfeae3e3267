"""Turns nsys on and off in step with the measured phases, without ever making the driver wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analysis.timeline import ClockMap
from cluster.spawn import Handle
from scenarios.errors import ClusterError, SquallError
from scenarios.plan import PhaseSpan
from scenarios.units import NS_PER_S

LEAD_NS = 2 * NS_PER_S
"""nsys is asked to record this long before a measured phase: it needs 0.1-0.2 s, more on a busy node."""
_STOP_TIMEOUT_S = 600.0


@dataclass
class _Phase:
    span: PhaseSpan
    starting: Any = None
    stopping: Any = None
    spilling: Any = None
    is_closed: bool = False
    on_ns: int | None = None
    reason: str = ""


class PhaseProfiler:
    """One recording per measured phase, one after another. `agent` is that of the server's node.

    The recording runs a little before and after its phase; `losses` says which phase is not, or not wholly,
    profiled.
    """

    def __init__(self, agent: Handle, spans: tuple[PhaseSpan, ...], clock: ClockMap) -> None:
        self._agent = agent
        self._clock = clock
        self._phases = [_Phase(span) for span in spans if span.kind == "measure"]
        self.losses: list[str] = []

    def start_first(self, first: PhaseSpan) -> None:
        """Before the start instant: begins at once if the run opens with a measured phase. Waits for it."""
        phase = next((phase for phase in self._phases if phase.span is first), None)
        if phase is not None:
            phase.starting = self._agent.begin("start_profiler", phase.span.name)
            self._note_start(phase)

    def drive(self, at_ns: int) -> None:
        """Call about once a second with the time since the start instant."""
        for phase in self._phases:
            if phase.is_closed:
                continue
            if phase.starting is None:
                if phase.span.start_ns - LEAD_NS <= at_ns < phase.span.end_ns:
                    phase.starting = self._agent.begin("start_profiler", phase.span.name)
                return  # one recording at a time: later phases wait
            if phase.on_ns is None:
                if self._agent.is_done(phase.starting):
                    self._note_start(phase)
                return
            if at_ns >= phase.span.end_ns and phase.stopping is None:
                phase.stopping = self._agent.begin("stop_profiler", phase.span.name)
            if phase.stopping is not None and self._agent.is_done(phase.stopping):
                self._note_stop(phase)
                continue
            return

    def begin_finish(self) -> None:
        """After the load: asks the recording under way to end, without waiting for it."""
        for phase in self._phases:
            if phase.on_ns is not None and not phase.is_closed and phase.stopping is None:
                phase.stopping = self._agent.begin("stop_profiler", phase.span.name)

    def finish(self) -> None:
        """After the load: ends what still records and waits for that, not for the import of the reports."""
        for phase in self._phases:
            if phase.is_closed:
                continue
            if phase.starting is None:
                self._close(phase, "nsys was not started for it")
                continue
            if phase.on_ns is None:
                self._note_start(phase)
            if not phase.is_closed:
                if phase.stopping is None:
                    phase.stopping = self._agent.begin("stop_profiler", phase.span.name)
                self._note_stop(phase)

    def collect(self) -> None:
        """After `finish`: waits until every recording lies in a spill file."""
        for phase in self._phases:
            if phase.spilling is not None:
                try:
                    self.losses += self._agent.wait(phase.spilling, _STOP_TIMEOUT_S)
                except SquallError as error:
                    self._close(phase, str(error))

    def coverage(self, start_ns: int) -> dict[str, dict[str, Any]]:
        """By phase: whether it is profiled, from when (ns after the phase's start; 0 or less: wholly), or why
        not.

        `start_ns`: the start instant on the run clock.
        """
        found = {}
        for phase in self._phases:
            late_ns = None
            if phase.on_ns is not None:
                late_ns = self._clock.run_ns(phase.on_ns) - start_ns - phase.span.start_ns
            found[phase.span.name] = {
                "is_profiled": phase.on_ns is not None and not phase.reason,
                "profiled_after_ns": late_ns, "reason": phase.reason,
            }  # fmt: skip
        return found

    def _note_start(self, phase: _Phase) -> None:
        try:
            phase.on_ns = self._agent.wait(phase.starting)
        except ClusterError as error:
            self._close(phase, str(error))

    def _note_stop(self, phase: _Phase) -> None:
        try:
            self._agent.wait(phase.stopping, _STOP_TIMEOUT_S)
            phase.spilling = self._agent.begin("spill_profile", phase.span.name)
            phase.is_closed = True
        except ClusterError as error:
            self._close(phase, str(error))

    def _close(self, phase: _Phase, reason: str) -> None:
        phase.is_closed, phase.reason = True, reason
        self.losses.append(f"phase {phase.span.name} is not profiled: {reason}")
