"""Nsight Systems around a server: launch it under a session or join one, record while a phase is measured, export.

What is fixed at launch (traces, thresholds) and what at start (sampling) differs by version and is read from its
`--help`; see `docs/profiling.md`. Sampling, context switches and backtraces are off: they cost more than they tell.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import squall.actors.nsys.marker
from squall.actors.nsys.step import SessionProcesses, SessionState, Step, run_step, sessions_in
from squall.actors.nsys.tools import MEND, NsysTools, find_nsys
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen

__all__ = ["MEND", "NsysSession", "NsysTools", "SessionLost", "StepCost", "Timeouts", "find_nsys"]

_NEVER_NS = 2**31 - 1
_FLUSH_INTERVAL_MS = 10_000  # the User Guide advises 10 s for longer recordings; stop flushes in any case
_SHORTEST_MARK_NS = 200_000
_RECORDING_STATES = ("Started", "Collection")
_REPORTS = (".nsys-rep", ".qdstrm")
_POLL_S = 0.1
AGENT_LOST = re.compile(
    "Connection to the Agent lost|^End of file$|Local Endpoint is not available", re.MULTILINE
)
"""What nsys's launcher (2022.4.2) says, seldom, while it launches: it then waits for ever, and nothing runs."""
_NO_SEMAPHORE = r"api_function_\*\] = sem_open"
"""Seldom as well: nsys opened a semaphore that it had not made yet, and the launch ended."""
PASSING = re.compile(f"{AGENT_LOST.pattern}|{_NO_SEMAPHORE}", re.MULTILINE)
"""What a launch says that is worth making again at once."""
_AGENT_ENDED = "the nsys session is gone: its agent has ended"
_AGAIN_S = 0.3


class SessionLost(ClusterError):
    """The session is gone: the server, if it lives, can no longer be profiled in it."""


class Timeouts(Frozen):
    """Longest time of each step, in seconds."""

    list_s: float = 20.0
    start_s: float = 30.0
    stop_s: float = 180.0
    export_s: float = 300.0
    shutdown_s: float = 30.0


class StepCost(Frozen):
    """What a step took: wall seconds, and CPU seconds of it and of the session's own processes meanwhile."""

    phase: str
    step: str
    seconds: float
    cpu_s: float


class NsysSession:
    """One server's profiler: `launch_prefix` before the server starts, then `start` and `stop` once a measured phase.

    `folder` (made with mode 0700) takes what nsys writes. Blocking, each step with a deadline and killed at it. Raises
    ClusterError with nsys's own words when a step fails, SessionLost when the session is gone. Not thread-safe, but for
    `export`, which may run beside the others.
    """

    def __init__(
        self,
        tools: NsysTools,
        name: str,
        folder: Path,
        profile: ProfileConfig,
        is_ours: bool = True,
        timeouts: Timeouts | None = None,
    ) -> None:
        """`is_ours` False: `name` is of a session that somebody else launched; see `attach`."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self.tools = tools
        self.name = name
        self.is_ours = is_ours
        self.lost = ""
        self.costs: list[StepCost] = []
        self.notes: list[str] = []
        self.export_type = "parquetdir" if "parquetdir" in tools.export_types else "sqlite"
        self.marks = folder / "clock-marks"
        self._folder = folder
        self._profile = profile
        self.timeouts = timeouts or Timeouts()
        self._processes = SessionProcesses(name)
        self._tmp = folder if is_ours else Path(tempfile.gettempdir())
        self._env = {
            **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
            **tools.env, "TMPDIR": str(self._tmp),
        }  # fmt: skip
        self._recording = ""
        self._has_left_one = False
        self._on_since = (0.0, 0.0)

    @property
    def is_recording(self) -> bool:
        """True between `start` and `stop`."""
        return bool(self._recording)

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of nsys's own programs."""
        return self._env

    def attach(self) -> None:
        """Checks that somebody else's session is there. Raises ClusterError that lists those that are."""
        sessions = self._sessions()
        if not any(one.name == self.name for one in sessions):
            known = ", ".join(repr(one.name) for one in sessions) or "none"
            raise ClusterError(
                f"profile.nsys_session: nsys has no session {self.name!r} here, its sessions: {known}; start the "
                f"server with `nsys launch --session-new={self.name} tritonserver …`"
            )

    def traces(self, has_gpu: bool) -> tuple[str, ...]:
        """The scenario's choice, without cuda where there is no GPU. Raises ClusterError where nothing is left."""
        kept = tuple(name for name in self._profile.trace if has_gpu or name != "cuda")
        if not kept:
            raise ClusterError("profile.trace asks for cuda alone, and the node has no GPU: add osrt or nvtx")
        return kept

    def launch_prefix(self, has_gpu: bool, output: Path) -> list[str]:
        """What goes before the server's command to start it inside the session, with clock marks beside it. Its output
        goes to the end of the file `output`.

        Not through nsys: where nsys passes it on, its launcher starts a process between the fork of the command and the
        making of the semaphore that nsys's agent opens as soon as that fork has said its pid. On a host that held the
        launcher up meanwhile the agent found none, and the launch failed ("sem_open", 2022.4.2).
        """
        assert self.is_ours, "somebody else launched it"
        traces = self.traces(has_gpu)
        wanted = {
            "--sample": "none", "--cpuctxsw": "none", "--backtrace": "none", "--wait": "all", "--show-output": "false",
        }  # fmt: skip
        if "osrt" in traces:
            wanted |= {
                "--osrt-threshold": str(self._profile.osrt_threshold_ns),
                "--osrt-backtrace-threshold": str(_NEVER_NS),
            }
        if "cuda" in traces:
            wanted |= {
                "--cuda-graph-trace": self._profile.cuda_graph_trace,
                "--cuda-flush-interval": str(_FLUSH_INTERVAL_MS),
                "--cuda-event-trace": "false",  # device-side event records, which may tie streams together
            }
        options = [f"{key}={value}" for key, value in wanted.items() if key in self.tools.launch_options]
        # nsys finds a session only with the TMPDIR that it was launched with (2022.4.2)
        launch = [
            "env",
            f"TMPDIR={self._tmp}",
            str(self.tools.nsys),
            "launch",
            f"--trace={','.join(traces)}",
            f"--session-new={self.name}",
        ]
        return [*launch, *options, *self._marker(output)]

    def _marker(self, output: Path) -> list[str]:
        sleep_ns = max(_SHORTEST_MARK_NS, 2 * self._profile.osrt_threshold_ns)
        return [
            sys.executable, "-I", "-S", squall.actors.nsys.marker.__file__, str(self.marks), str(sleep_ns),
            _nvtx_library(), str(output), "--",
        ]  # fmt: skip

    def state(self) -> str:
        """What `nsys sessions list` says of it. Raises SessionLost if it is not there or nothing runs in it.

        `nsys start` would quietly make a new, empty session of that name.
        """
        if self.lost:
            raise SessionLost(self.lost)
        found = self._own()
        if (
            found is None
        ):  # 2022.4.2 was seen to list nothing while a server started: gone is what is gone twice
            time.sleep(_AGAIN_S)
            found = self._own()
        if found is None or not found.n_launched:
            self.lost = _AGENT_ENDED if found is None else (
                "no server runs in the nsys session any more"
            )  # fmt: skip
            raise SessionLost(self.lost)
        return found.state

    def start(self, phase: str) -> None:
        """Begins to record; when it returns, recording is on. A recording that a failed `stop` left is ended first.

        Raises ClusterError where somebody else records in their own session: that recording is left alone.
        """
        if self.state() in _RECORDING_STATES:
            if not self.is_ours and not self._has_left_one:
                raise ClusterError(f"somebody else records in the nsys session {self.name!r} already")
            self._step("", "stop", self.timeouts.stop_s, f"--session={self.name}")
        self._has_left_one = False
        flags = {"--sample": "none", "--cpuctxsw": "none", "--backtrace": "none"}
        options = [f"{key}={value}" for key, value in flags.items() if key in self.tools.start_options]
        where = ("-o", str(self._folder / phase), "-f", "true")
        self._step(phase, "start", self.timeouts.start_s, f"--session={self.name}", *options, *where)
        self.state()
        self._recording = phase
        self._on_since = (time.monotonic(), self._processes.cpu_s())

    def stop(self) -> None:
        """Ends the recording; the server goes on."""
        assert self.is_recording, "stop follows start"
        phase, self._recording = self._recording, ""
        self._has_left_one = True
        seconds, used_s = time.monotonic() - self._on_since[0], self._processes.cpu_s() - self._on_since[1]
        self.costs.append(StepCost(phase, "record", seconds, max(0.0, used_s)))
        if not self._ended_by_itself(phase):
            try:
                self._step(phase, "stop", self.timeouts.stop_s, f"--session={self.name}")
                self._has_left_one = False
                return
            except ClusterError:  # the server's end and the stop may cross
                if not self._ended_by_itself(phase):
                    raise
        self.notes.append(f"the server ended while phase {phase} was recorded: its report ends there")

    def _ended_by_itself(self, phase: str) -> bool:
        """True where nsys ended the recording because its server did, and the report is there.

        Then the session goes on for a while (state Generation) to write the report. Raises SessionLost where there is
        no session and no report.
        """
        deadline = time.monotonic() + self.timeouts.stop_s
        try:
            while self.state() == "Generation" and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        except SessionLost:
            if self.has_report(phase):
                return True
            raise
        return False

    def has_report(self, phase: str) -> bool:
        """True if nsys left a recording of `phase`, imported or not."""
        return any((self._folder / f"{phase}{end}").exists() for end in _REPORTS)

    def export(self, phase: str) -> Path:
        """The recording of `phase` after `stop`: a folder of Parquet files where that works, else an SQLite file.

        Needs neither session nor server. The report stays until `discard` or `keep`.
        """
        report = self.report(phase)
        if self.export_type == "parquetdir":
            folder = self._folder / f"{phase}-parquet"
            try:
                self._export(phase, report, folder)
                if not any(folder.glob("*.parquet")):
                    raise ClusterError("nsys export wrote no Parquet file")
                return folder
            except ClusterError as error:
                shutil.rmtree(folder, ignore_errors=True)
                self.export_type = "sqlite"
                self.notes.append(f"nsys cannot export Parquet here, SQLite is used: {error}")
        export = self._folder / f"{phase}.sqlite"
        self._export(phase, report, export)
        return export

    def _export(self, phase: str, report: Path, export: Path) -> None:
        options = (f"--type={self.export_type}", "-f", "true", "-o", str(export), str(report))
        self._step(phase, "export", self.timeouts.export_s, *options)

    def report(self, phase: str) -> Path:
        """The finished report of `phase`; made by the importer where nsys left only the recording."""
        report, raw = (self._folder / f"{phase}{suffix}" for suffix in (".nsys-rep", ".qdstrm"))
        if report.exists():
            raw.unlink(missing_ok=True)
        elif not raw.exists():
            raise ClusterError("nsys stop left no report")
        else:
            if self.tools.importer is None:
                raise ClusterError(
                    "nsys left a recording without a report, and its QdstrmImporter was not found"
                )
            importer = [str(self.tools.importer), "-i", str(raw), "-o", str(report)]
            self._note(phase, "import", run_step(importer, self._env, self.timeouts.export_s), 0.0)
            raw.unlink()
        report.chmod(0o600)
        return report

    def discard(self, phase: str) -> None:
        """Deletes recording, report and export of `phase`."""
        for path in self._folder.glob(f"{phase}.*"):
            if path.suffix in (*_REPORTS, ".sqlite"):
                path.unlink(missing_ok=True)
        shutil.rmtree(self._folder / f"{phase}-parquet", ignore_errors=True)

    def keep(self, phase: str, path: Path) -> Path | None:
        """Moves the report of `phase`, unscrubbed, to `path`, mode 0600 in a folder of mode 0700; None without one.

        A recording that was never imported keeps its own suffix; what is given back is where it lies.
        """
        kept = next((self._folder / f"{phase}{end}" for end in _REPORTS
                     if (self._folder / f"{phase}{end}").exists()), None)  # fmt: skip
        if kept is None:
            return None
        path = path.with_suffix(kept.suffix)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept.chmod(0o600)
        shutil.move(kept, path)
        return path

    def shutdown(self) -> None:
        """Ends a session that is ours, whatever state it is in; the server is left to its owner to stop."""
        self._recording = ""
        if not self.is_ours:
            return
        try:
            if self._own() is not None:
                self._step("", "shutdown", self.timeouts.shutdown_s, f"--session={self.name}", "--kill=none")
        finally:
            self._processes.kill()

    def agent_pids(self) -> list[int]:
        """Process ids of the session's agent."""
        return self._processes.agent_pids()

    def _own(self) -> SessionState | None:
        return next((one for one in self._sessions() if one.name == self.name), None)

    def _sessions(self) -> tuple[SessionState, ...]:
        return sessions_in(
            run_step([str(self.tools.nsys), "sessions", "list"], self._env, self.timeouts.list_s).text
        )

    def _step(self, phase: str, step: str, timeout_s: float, *arguments: str) -> None:
        before_s = self._processes.cpu_s() if step in ("start", "stop") else 0.0
        try:
            done = run_step([str(self.tools.nsys), step, *arguments], self._env, timeout_s)
        except ClusterError as error:
            # nsys lists a killed agent for a while; an export needs none
            if step != "export" and self._processes.have_ended():
                self.lost = _AGENT_ENDED
                raise SessionLost(self.lost) from error
            raise
        after_s = self._processes.cpu_s() if step in ("start", "stop") else 0.0
        self._note(phase, step, done, max(0.0, after_s - before_s))

    def _note(self, phase: str, step: str, done: Step, agent_cpu_s: float) -> None:
        if phase:
            self.costs.append(StepCost(phase, step, done.seconds, done.cpu_s + agent_cpu_s))


def _nvtx_library() -> str:
    """The library of the Python package nvidia-nvtx or of a CUDA toolkit; empty where there is neither."""
    package = importlib.util.find_spec("nvidia")
    folders = (package.submodule_search_locations or ()) if package is not None else ()
    for name in ("libnvtx3interop.so*", "libnvToolsExt.so.1"):
        for folder in folders:
            found = sorted(Path(folder).glob(f"*/lib/{name}"))
            if found:
                return str(found[0])
    return ctypes.util.find_library("nvToolsExt") or ""
