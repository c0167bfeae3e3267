"""The profiler of one server on its node: recordings by phase, and what leaves the node of them.

    start(phase) … stop(phase)   in step with the load
    spill(phase)                 after the load: export, scrub, tables on the node's monotonic clock, delete the report

The unscrubbed report holds environments, arguments and output of every process that nsys saw. It stays in a folder of
mode 0700 and is deleted once it is exported, unless the scenario keeps it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pyarrow as pa

from squall.actors.clock import Clock, utc_minus_monotonic_ns
from squall.actors.nsys.session import NsysSession, NsysTools, StepCost, Timeouts
from squall.analysis.nsys.batches import attribution
from squall.analysis.nsys.clock import ReportClock, parse_lines, read_clock
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import scrub
from squall.analysis.nsys.tables import EventLabels, event_tables
from squall.analysis.storage.collected import NsysFacts, NsysProblem, NsysStep, ReportFacts
from squall.cluster.node.triton_home import cache_dir
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.errors import ClusterError

Spill = Callable[[str, str, Iterator[pa.Table]], list[str]]
"""Writes tables of one kind, part of one phase, to a spill file: (table, phase, tables) -> losses."""


class NodeProfiler:
    """Records a server in step with phases. `start` and `stop` exclude each other; `spill` may run beside them.

    `folder` is scratch that the owner removes. `profile.nsys_session` names a session to join instead of one of ours.
    """

    def __init__(
        self,
        tools: NsysTools,
        profile: ProfileConfig,
        folder: Path,
        clock: Clock,
        timeouts: Timeouts | None = None,
    ) -> None:
        """Raises ClusterError where the session to join is not there."""
        self._tools = tools
        self._profile = profile
        self._folder = folder
        self._clock = clock
        self._timeouts = timeouts
        self._lock = threading.Lock()
        self._sessions: list[NsysSession] = []
        self._recorded: dict[str, NsysSession] = {}
        self._utc_offsets_ns: dict[str, list[int]] = {}
        self._reports: dict[str, ReportFacts] = {}
        if profile.nsys_session is None:
            self.renew()
        else:
            session = self._add(profile.nsys_session, is_ours=False)
            session.attach()

    @property
    def session(self) -> NsysSession:
        """The session that the server runs in, or is to be launched in."""
        return self._sessions[-1]

    def renew(self) -> NsysSession:
        """A new session, for a server that is started or started again; reports of the one before are still spilled."""
        return self._add(f"squall-{os.getpid()}-{secrets.token_hex(4)}", is_ours=True)

    def _add(self, name: str, is_ours: bool) -> NsysSession:
        folder = self._folder / f"nsys-{len(self._sessions)}"
        session = NsysSession(self._tools, name, folder, self._profile, is_ours, self._timeouts)
        self._sessions.append(session)
        return session

    def start(self, phase: str) -> int:
        """Begins to record; the instant (node's monotonic ns) at which it was on. Raises what `NsysSession` raises."""
        with self._lock:
            self.session.start(phase)
            self._recorded[phase] = self.session
            self._utc_offsets_ns[phase] = [utc_minus_monotonic_ns()]
            return self._clock.monotonic_ns()

    def stop(self, phase: str) -> None:
        """Ends the recording of `phase`; its report waits for `spill`."""
        with self._lock:
            self._recorded[phase].stop()
            self._utc_offsets_ns[phase].append(utc_minus_monotonic_ns())

    def adopt(self, phase: str) -> None:
        """Takes on a recording of `phase` that another process, now dead, left in the same folder.

        Raises ClusterError where none is there: one under way ended with its server.
        """
        for folder in sorted(self._folder.glob("nsys-*")):
            session = NsysSession(self._tools, folder.name, folder, self._profile, is_ours=False)
            if session.has_report(phase):
                self._recorded[phase] = session
                self._utc_offsets_ns[phase] = [utc_minus_monotonic_ns()]
                return
        raise ClusterError(f"nsys left no report of phase {phase}")

    def spill(self, phase: str, labels: EventLabels, reports_dir: Path, spill: Spill) -> list[str]:
        """Scrubs the report of `phase` to `reports_dir / phase` and spills its tables; returns losses and notes.

        Raises ClusterError or AnalysisError where the report cannot be had or read. Whatever happens, no unscrubbed
        export is left, and no report but one that the scenario keeps.
        """
        if phase not in self._recorded:
            self.adopt(phase)
        session = self._recorded[phase]
        said: list[str] = []
        folder = reports_dir / phase
        try:
            export = session.export(phase)
            n_bytes, exported_as = session.report(phase).stat().st_size, session.export_type
            scrubbed = scrub(export, folder)
        finally:
            if self._profile.keep_raw_report:
                said += self._keep(session, phase, labels)
            session.discard(phase)
        report = NsysReport(folder)
        clock = self._clock_of(phase, report, session)
        threshold_ns = self._profile.osrt_threshold_ns
        tables = event_tables(report, labels, clock.track, clock.marks, threshold_ns)
        for table, pieces in groupby(tables, key=itemgetter(0)):
            said += spill(table, phase, (piece for _, piece in pieces))
        self._reports[phase] = ReportFacts(
            report_bytes=n_bytes,
            exported_as=exported_as,
            scrub=scrubbed,
            clock=clock.facts,
            attribution=attribution(report),
        )
        while session.notes:  # in the manifest while it is open; `close` comes after its seal
            said.append(session.notes.pop(0))
        return said

    def _clock_of(self, phase: str, report: NsysReport, session: NsysSession) -> ReportClock:
        """The report's clock on the node's, by the marks of its session where there are any."""
        try:
            lines = parse_lines(session.marks.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError):
            lines = parse_lines("")
        offsets_ns = self._utc_offsets_ns[phase]
        return read_clock(report, lines, sum(offsets_ns) // len(offsets_ns))

    def _keep(self, session: NsysSession, phase: str, labels: EventLabels) -> list[str]:
        """Keeps the unscrubbed report on this node and says where."""
        wanted = cache_dir() / "raw-reports" / labels.run / f"{labels.server}-{phase}.nsys-rep"
        try:
            kept = session.keep(phase, wanted)
        except OSError as error:
            return [f"the raw report of phase {phase} could not be kept: {error.strerror}"]
        if kept is None:
            return []
        where = kept.relative_to(cache_dir())
        return [
            f"the raw report of phase {phase}, not scrubbed, is in squall's cache on {labels.node}: {where}"
        ]

    def facts(self) -> NsysFacts:
        """For the manifest: version, where nsys was found (no path), what each step and report took and gave."""
        return NsysFacts(
            version=self._tools.version_text,
            found=self._tools.found,
            is_importer_repaired=self._tools.is_repaired,
            is_attached=self._profile.nsys_session is not None,
            n_sessions=len(self._sessions),
            lost=tuple(session.lost for session in self._sessions if session.lost),
            problems=tuple(
                NsysProblem(what=one.what, mend=one.mend, is_fatal=one.is_fatal)
                for one in self._tools.problems
            ),
            steps=tuple(
                NsysStep(phase=one.phase, step=one.step, seconds=one.seconds, cpu_s=one.cpu_s)
                for one in self.costs()
            ),
            reports=dict(self._reports),
        )

    def costs(self) -> list[StepCost]:
        """What each step took, in order."""
        return [cost for session in self._sessions for cost in session.costs]

    def close(self) -> list[str]:
        """Ends the sessions that are ours and removes what nsys left; returns notes, and what did not go well."""
        notes: list[str] = []
        for session in self._sessions:
            notes += session.notes
            try:
                session.shutdown()
            except ClusterError as error:
                notes.append(f"nsys: {error}")
        return notes

    def remove(self) -> None:
        """Deletes all that nsys wrote, after `close` and the last `spill`."""
        for folder in self._folder.glob("nsys-*"):
            shutil.rmtree(folder, ignore_errors=True)
