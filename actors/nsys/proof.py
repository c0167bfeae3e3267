"""A real recording by nsys of a process that does nothing but sleep: the proof that launch, record and export work.

The clock marks that run beside every profiled server (`squall.actors.nsys.marker`) run beside it too: their NVTX
ranges prove that ranges reach a report here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import squall.actors.process.supervisor
from squall.actors.nsys.session import PASSING, NsysSession, Timeouts
from squall.actors.nsys.tools import NsysTools
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.errors import ClusterError

RECORD_S = 0.6  # two or three of the clock marks
_TIMEOUTS = Timeouts(list_s=10, start_s=20, stop_s=60, export_s=60, shutdown_s=15)
_LAUNCH_TIMEOUT_S = 20.0
_END_TIMEOUT_S = 15.0
_POLL_S = 0.1
_PHASE = "proof"
_Counts = TypeVar("_Counts")
_SLEEPER = "import time\nend = time.monotonic() + 300\nwhile time.monotonic() < end: time.sleep(0.01)"


def prove_nsys(tools: NsysTools, folder: Path, count: Callable[[Path], _Counts]) -> _Counts:
    """`count` of the export of a recording of 0.6 s, made as a run makes it; `folder` takes its files.

    Raises ClusterError that names the step which failed or did not end in time. Leaves no process.
    """
    try:
        return _proof(tools, folder, count)
    except _LaunchFailed:  # as a run does
        (folder / "again").mkdir()
        return _proof(tools, folder / "again", count)


class _LaunchFailed(ClusterError):
    """Of a launch that is worth making again at once."""


def _proof(tools: NsysTools, folder: Path, count: Callable[[Path], _Counts]) -> _Counts:
    profile = ProfileConfig.model_validate({"trace": ("osrt", "nvtx"), "osrt_threshold": "1us"})
    session = NsysSession(tools, f"squall-doctor-{secrets.token_hex(4)}", folder, profile, timeouts=_TIMEOUTS)
    # the supervisor ends whatever is left when its pipe closes; no descendant bears the name
    supervised = [sys.executable, "-I", "-S", squall.actors.process.supervisor.__file__, "1", "none", "-"]
    log_file = folder / "launch.log"
    launch = session.launch_prefix(has_gpu=False, output=log_file)
    command = [*supervised, *launch, sys.executable, "-I", "-S", "-c", _SLEEPER]
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            env={**env, **tools.env, "TMPDIR": str(folder)},
        )  # fmt: skip
    try:
        _wait_for(session, process, log_file)
        session.start(_PHASE)
        time.sleep(RECORD_S)
        session.stop()
        return count(session.export(_PHASE))
    finally:
        with contextlib.suppress(ClusterError):
            session.shutdown()
        _end(process)


def _wait_for(session: NsysSession, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until something runs in the session."""
    deadline = time.monotonic() + _LAUNCH_TIMEOUT_S
    while True:
        try:
            session.state()
            return
        except ClusterError as error:
            session.lost = ""
            words = log.read_text(errors="replace").strip()
            passing = PASSING.search(words)
            if passing or process.poll() is not None or time.monotonic() > deadline:
                kind = _LaunchFailed if passing else ClusterError
                raise kind(f"nsys launch: {words.splitlines()[-1] if words else error}") from error
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
