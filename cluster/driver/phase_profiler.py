"""Turns nsys on and off in step with the measured phases, without ever making the driver wait inside one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from squall.actors.nsys.session import SessionLost
from squall.analysis.storage.collected import NsysStep, ProfiledPhase
from squall.cluster.node.agent import NodeAgent
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import LostActor, SquallError
from squall.scenarios.plan.plan import PhaseSpan
from squall.scenarios.units import NS_PER_S

LEAD_NS = 2 * NS_PER_S
"""nsys is asked to record this long before a measured phase: it needs 0.1-0.2 s, more on a busy node."""
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 600.0
_SPILL_TIMEOUT_S = 1800.0
_NOT_STARTED = "nsys was not started for it"
TOO_LATE = "nsys was on only after its end"


@dataclass
class _Phase:
    span: PhaseSpan
    starting: Future[int] | None = None
    stopping: Future[None] | None = None
    is_closed: bool = False
    has_report: bool = False
    on_ns: int | None = None
    reason: str = ""


class PhaseProfiler:
    """One recording per measured phase, one after another. `agent` is that of the server's node.

    A recording runs from a little before to a little after its phase; its report is taken after the load. A step that
    fails costs its own phase only, as long as the session lives. `losses` says what is not profiled, and when the
    server was started again for it.
    """

    def __init__(
        self,
        agent: Handle[NodeAgent],
        spans: Sequence[PhaseSpan],
        on_failure: Literal["keep", "restart"],
        after_restart: Callable[[], list[str]],
    ) -> None:
        """`on_failure`: what becomes of the server when its session is lost; see `profile.on_nsys_failure`.
        `after_restart`: has the processes of one that was started again observed; what does not go on, as sentences."""
        self._agent = agent
        self._phases = [_Phase(span) for span in spans if span.kind == "measure"]
        self._on_failure = on_failure
        self._after_restart = after_restart
        self._restarting: Future[list[str]] | None = None
        self._spilling: tuple[_Phase, Future[list[str]]] | None = None
        self._lost = ""
        self._untold: list[str] = []
        self._at_ns = 0
        self.losses: list[str] = []

    def start_first(self, first: PhaseSpan) -> None:
        """Before the start instant: begins at once if the run opens with a measured phase. Waits for it."""
        phase = next((phase for phase in self._phases if phase.span is first), None)
        if phase is not None and self._begin_start(phase):
            self._note_start(phase)

    def drive(self, at_ns: int) -> None:
        """Call about once a second with the time since the start instant. Waits for what follows a restart alone."""
        self._at_ns = at_ns
        if self._restarting is not None:
            if not self._is_done(self._restarting):
                return
            self._note_restart()
        for phase in self._phases:
            if not phase.is_closed and not self._drive_phase(phase, at_ns):
                return  # one recording at a time: later phases wait

    def _drive_phase(self, phase: _Phase, at_ns: int) -> bool:
        """One step of an open phase; True if the next phase may have its turn."""
        if phase.starting is None:
            if at_ns >= phase.span.end_ns:
                self._close(phase, self._lost or self._why_not_started(phase))
                return True
            if at_ns >= phase.span.start_ns - LEAD_NS and not self._lost and self._restarting is None:
                self._begin_start(phase)
            return False
        if phase.on_ns is None:
            if not self._is_done(phase.starting):
                return False
            self._note_start(phase)
        elif phase.stopping is None:
            if at_ns >= phase.span.end_ns:
                self._begin_stop(phase)
        elif self._is_done(phase.stopping):
            self._note_stop(phase)
        return phase.is_closed and self._restarting is None

    def begin_finish(self) -> None:
        """After the load: asks the recording under way to end, without waiting for it."""
        for phase in self._phases:
            if phase.on_ns is not None and not phase.is_closed and phase.stopping is None:
                self._begin_stop(phase)

    def finish(self) -> None:
        """After the load: ends what still records, waits for that, and begins to take the reports."""
        self._on_failure = "keep"  # no server is needed any more
        for phase in self._phases:
            if phase.is_closed:
                continue
            if phase.starting is None:
                self._close(phase, self._lost or self._why_not_started(phase))
                continue
            if phase.on_ns is None:
                self._note_start(phase)
            if not phase.is_closed and phase.stopping is None:
                self._begin_stop(phase)
            if not phase.is_closed:
                self._note_stop(phase)
        if self._restarting is not None:
            self._note_restart()
        self._tell_lost()
        self._spill_next()

    def collect(self) -> None:
        """After `finish`: waits until every report lies in spill files, one after another."""
        while self._spilling is not None:
            phase, reference = self._spilling
            try:
                losses = self._agent.wait(reference, _SPILL_TIMEOUT_S)
                self.losses += losses
            except SquallError as error:
                self._fail(phase, str(error))
            self._spill_next()

    def coverage(
        self, start_ns: int, to_run_ns: Callable[[int], int], steps: Sequence[NsysStep] = ()
    ) -> dict[str, ProfiledPhase]:
        """By phase: whether it is profiled, from when (ns after the phase's start; 0 or less: wholly), or why not.

        `start_ns`: the start instant on the run clock; `to_run_ns` takes the clock of the server's node there. `steps`:
        those of `NodeProfiler.facts`, for the seconds of start and stop and nsys's CPU time while it recorded.
        """
        took = {(step.phase, step.step): step for step in steps}
        found = {}
        for phase in self._phases:
            name, late_ns, reason = phase.span.name, None, phase.reason
            if phase.on_ns is not None:
                late_ns = to_run_ns(phase.on_ns) - start_ns - phase.span.start_ns
                if not reason and late_ns >= phase.span.end_ns - phase.span.start_ns:
                    reason = TOO_LATE
            start, stop, record = (took.get((name, step)) for step in ("start", "stop", "record"))
            found[name] = ProfiledPhase(
                is_profiled=phase.on_ns is not None and not reason,
                profiled_after_ns=late_ns,
                reason=reason,
                start_s=start.seconds if start is not None else None,
                stop_s=stop.seconds if stop is not None else None,
                record_cpu_s=record.cpu_s if record is not None else None,
            )
        return found

    def _is_done(self, reference: Future[Any]) -> bool:
        """True where a call has ended, well or not: what it raises comes out of `wait`."""
        try:
            return self._agent.is_done(reference)
        except SquallError:
            return True

    def _why_not_started(self, phase: _Phase) -> str:
        """A recording takes seconds to end: phases that follow one another closely are over by then."""
        before = [
            one for one in self._phases if one.span.end_ns <= phase.span.start_ns and one.on_ns is not None
        ]
        if self._at_ns < phase.span.start_ns:
            return "the load ended before it"
        if not before:
            return _NOT_STARTED
        return (
            f"nsys was still ending its recording of phase {before[-1].span.name}; a warmup phase of some seconds "
            "between the two helps"
        )

    def _begin_start(self, phase: _Phase) -> bool:
        try:
            phase.starting = self._agent.begin(NodeAgent.start_profiler, phase.span.name)
        except SquallError as error:
            self._fail(phase, str(error), error)
        return phase.starting is not None

    def _note_start(self, phase: _Phase) -> None:
        assert phase.starting is not None
        try:
            phase.on_ns = self._agent.wait(phase.starting, _START_TIMEOUT_S)
        except SquallError as error:
            self._fail(phase, str(error), error)

    def _begin_stop(self, phase: _Phase) -> None:
        try:
            phase.stopping = self._agent.begin(NodeAgent.stop_profiler, phase.span.name)
        except SquallError as error:
            self._fail(phase, str(error), error)

    def _note_stop(self, phase: _Phase) -> None:
        assert phase.stopping is not None
        try:
            self._agent.wait(phase.stopping, _STOP_TIMEOUT_S)
            phase.is_closed = phase.has_report = True
        except SquallError as error:
            self._fail(phase, str(error), error)

    def _close(self, phase: _Phase, reason: str) -> None:
        phase.is_closed, phase.reason = True, reason
        if reason == self._lost:  # what is lost once is told once
            self._untold.append(phase.span.name)
        else:
            self.losses.append(f"phase {phase.span.name} is not profiled: {reason}")

    def _fail(self, phase: _Phase, reason: str, error: SquallError | None = None) -> None:
        """Closes a phase whose step failed; where the session or the agent is gone, decides what comes next."""
        self._close(phase, reason)
        if not isinstance(error, SessionLost | LostActor) or self._lost:
            return
        self._lost = reason
        if self._on_failure == "restart" and isinstance(error, SessionLost):
            try:
                self._restarting = self._agent.begin(NodeAgent.restart_server)
            except SquallError as refused:
                self._lost = str(refused)

    def _note_restart(self) -> None:
        reference, self._restarting = self._restarting, None
        assert reference is not None
        try:
            notes = self._agent.wait(reference, _STOP_TIMEOUT_S)
        except SquallError as error:
            self._lost = f"the server could not be started again in a new nsys session: {error}"
            self.losses.append(self._lost)
            return
        self.losses.append(
            f"the server was started again in a new nsys session ({self._lost}): requests meanwhile failed"
        )
        self.losses += [*notes, *self._after_restart()]
        self._lost = ""

    def _tell_lost(self) -> None:
        if self._untold:
            self.losses.append(f"not profiled for that reason either: phase {', '.join(self._untold)}")

    def _spill_next(self) -> None:
        self._spilling = None
        for phase in self._phases:
            if phase.has_report:
                phase.has_report = False
                try:
                    self._spilling = (phase, self._agent.begin(NodeAgent.spill_profile, phase.span.name))
                    return
                except SquallError as error:
                    self._fail(phase, str(error))
