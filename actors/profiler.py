"""Nsight Systems around a server: launch it under a session, record while a phase is measured, export.

What is fixed at launch (traces, thresholds) and what at start (sampling) is as in the User Guide of 2022.4 to 2025;
see `docs/profiling.md`. Sampling, context switches and backtraces are off: they cost more than they tell here.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from scenarios.errors import ClusterError

_START_TIMEOUT_S = 30
_STOP_TIMEOUT_S = 180
_NEVER_NS = 2**31 - 1
MEND = "install Nsight Systems and put nsys on the PATH (Debian: package nsight-systems, component non-free)"


@dataclass(frozen=True)
class NsysTools:
    """Paths of nsys and of its importer; `importer` None: nsys imports by itself."""

    nsys: Path
    importer: Path | None


def find_nsys() -> NsysTools | None:
    """nsys on the PATH, with the importer where the package splits them (Debian); None if there is none."""
    found = shutil.which("nsys")
    if found is None:
        return None
    nsys = Path(found)
    importers = [
        folder / "host-linux-x64" / "QdstrmImporter"
        for folder in (nsys.resolve().parent.parent, Path("/usr/lib/nsight-systems"))
    ]
    return NsysTools(nsys, next((path for path in importers if path.is_file()), None))


class NsysSession:
    """One server's profiler. `launch_prefix` first, then `start` and `stop` once a measured phase.

    Blocking, each step with a deadline. Raises ClusterError with nsys's own words when a step fails.
    """

    def __init__(
        self, tools: NsysTools, name: str, folder: Path, env: dict[str, str], osrt_threshold_ns: int
    ) -> None:
        self._tools = tools
        self._name = name
        self._folder = folder
        self._env = env
        self._osrt_threshold_ns = osrt_threshold_ns
        self._is_recording = False

    @property
    def is_recording(self) -> bool:
        """True between `start` and `stop`."""
        return self._is_recording

    def launch_prefix(self, has_gpu: bool) -> list[str]:
        """What goes before the server's command to start it inside the session."""
        return [
            str(self._tools.nsys), "launch", f"--trace={'cuda,' if has_gpu else ''}nvtx,osrt",
            f"--session-new={self._name}", f"--osrt-threshold={self._osrt_threshold_ns}",
            f"--osrt-backtrace-threshold={_NEVER_NS}", "--wait=all",
        ]  # fmt: skip

    def start(self, phase: str) -> None:
        """Begins to record; when it returns, recording is on."""
        self._run(
            _START_TIMEOUT_S, "start", f"--session={self._name}", "--sample=none", "--cpuctxsw=none",
            "--backtrace=none", "-o", str(self._folder / phase), "-f", "true",
        )  # fmt: skip
        self._is_recording = True

    def stop(self) -> None:
        """Ends the recording; the server goes on. With OS-runtime calls traced this took 6 s (2022.4.2, 2 cores)."""
        assert self.is_recording, "stop follows start"
        self._is_recording = False
        self._run(_STOP_TIMEOUT_S, "stop", f"--session={self._name}")

    def export(self, phase: str) -> Path:
        """The recording of `phase` as SQLite, after `stop`; deletes the report. Needs neither session nor server."""
        finished, raw = (self._folder / f"{phase}{suffix}" for suffix in (".nsys-rep", ".qdstrm"))
        if not finished.exists() and raw.exists():
            if self._tools.importer is None:
                raise ClusterError(
                    f"nsys left {raw.name} without a report, and its QdstrmImporter was not found"
                )
            self._call(_STOP_TIMEOUT_S, [str(self._tools.importer), "-i", str(raw), "-o", str(finished)])
        raw.unlink(missing_ok=True)
        export = self._folder / f"{phase}.sqlite"
        self._run(_STOP_TIMEOUT_S, "export", "--type=sqlite", "-f", "true", "-o", str(export), str(finished))
        finished.unlink()
        return export

    def shutdown(self) -> None:
        """Ends the session; the server is left to its owner to stop."""
        self._is_recording = False
        self._run(_START_TIMEOUT_S, "shutdown", f"--session={self._name}", "--kill=none")

    def _run(self, timeout_s: float, *arguments: str) -> None:
        self._call(timeout_s, [str(self._tools.nsys), *arguments])

    def _call(self, timeout_s: float, command: list[str]) -> None:
        step = f"{Path(command[0]).name} {command[1]}"
        try:
            done = subprocess.run(
                command, env=self._env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{step} did not end within {timeout_s:.0f} s") from error
        if done.returncode:
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise ClusterError(f"{step} failed: {words[-1] if words else f'exit code {done.returncode}'}")
