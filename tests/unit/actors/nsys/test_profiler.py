"""What is asked of nsys, by what its version takes, and what is understood of its answers; no nsys runs here."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, cast

import pytest

from squall.actors.nsys import marker as nsys_marker
from squall.actors.nsys.session import NsysSession, NsysTools, SessionLost
from squall.actors.nsys.step import SessionProcesses, SessionState, sessions_in, without_folders
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.errors import ClusterError

OF_2022 = frozenset(
    (
        "--trace",
        "--session-new",
        "--osrt-threshold",
        "--osrt-backtrace-threshold",
        "--cuda-graph-trace",
        "--wait",
        "--show-output",
    )
)
OF_2025 = OF_2022 | {"--cuda-event-trace", "--cuda-flush-interval"}
OF_2023 = OF_2022 | {"--sample", "--cpuctxsw", "--backtrace"}
LIST = """              ID         TIME                       STATE LAUNCH NAME
         1022512        00:10                  Generation      1 squall-1
          123045        01:01                     Started      0 two words
"""


def session_of(folder: Path, options: frozenset[str] = OF_2022, **profile: Any) -> NsysSession:
    tools = NsysTools(Path("/opt/nsys"), (2025, 3, 1), "PATH", None, ("sqlite",), options)
    return NsysSession(tools, "squall-1", folder / "nsys-0", ProfileConfig.model_validate(profile))


def options_of(session: NsysSession, has_gpu: bool = True) -> dict[str, str]:
    """nsys's own options in the launch prefix."""
    prefix = session.launch_prefix(has_gpu, Path("server.log"))
    own = prefix[prefix.index("launch") + 1 : prefix.index("-I") - 1]
    return dict(option.split("=", 1) for option in own)


def test_the_scenario_says_what_is_traced_and_how_finely(tmp_path: Path) -> None:
    profile = {"trace": ["cuda", "osrt"], "cuda_graph_trace": "graph", "osrt_threshold": "50us"}
    options = options_of(session_of(tmp_path, OF_2025, **profile))
    assert options["--trace"] == "cuda,osrt"
    assert options["--cuda-graph-trace"] == "graph"
    assert options["--osrt-threshold"] == "50000"
    assert options["--cuda-event-trace"] == "false"


def test_cuda_is_left_out_where_there_is_no_gpu(tmp_path: Path) -> None:
    options = options_of(session_of(tmp_path, OF_2025), has_gpu=False)
    assert options["--trace"] == "nvtx,osrt"
    assert not [name for name in options if name.startswith("--cuda")]
    with pytest.raises(ClusterError, match="asks for cuda alone"):
        session_of(tmp_path, trace=["cuda"]).launch_prefix(has_gpu=False, output=tmp_path / "log")


def test_thresholds_of_os_runtime_calls_go_with_their_trace(tmp_path: Path) -> None:
    options = options_of(session_of(tmp_path, trace=["nvtx"]))
    assert not [name for name in options if name.startswith("--osrt")]


def test_options_that_a_version_does_not_take_are_left_out(tmp_path: Path) -> None:
    assert "--cuda-event-trace" not in options_of(session_of(tmp_path, OF_2022))
    assert "--sample" not in options_of(session_of(tmp_path, OF_2022))
    assert options_of(session_of(tmp_path, OF_2023))["--sample"] == "none"


def test_the_output_of_the_server_does_not_go_through_nsys(tmp_path: Path) -> None:
    """Its launcher would start a process before it makes the semaphore that its agent opens."""
    assert options_of(session_of(tmp_path))["--show-output"] == "false"


@pytest.mark.parametrize(
    ("threshold", "sleep_ns"), [("1us", 200_000), ("100us", 200_000), ("1ms", 2_000_000)]
)
def test_clock_marks_sleep_longer_than_the_threshold(tmp_path: Path, threshold: str, sleep_ns: int) -> None:
    session = session_of(tmp_path, osrt_threshold=threshold)
    prefix = session.launch_prefix(has_gpu=False, output=tmp_path / "log")
    marker = prefix[prefix.index(nsys_marker.__file__) :]
    assert marker[1:3] == [str(session.marks), str(sleep_ns)]
    assert marker[-2:] == [str(tmp_path / "log"), "--"]


def test_what_nsys_writes_lies_in_a_folder_of_its_owner(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    assert stat.S_IMODE((tmp_path / "nsys-0").stat().st_mode) == 0o700
    assert session.env["TMPDIR"] == str(tmp_path / "nsys-0")
    assert f"TMPDIR={tmp_path / 'nsys-0'}" in session.launch_prefix(has_gpu=False, output=tmp_path / "log")


def test_nothing_of_our_environment_but_paths_reaches_nsys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    assert set(session_of(tmp_path).env) <= {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH"}


def test_sessions_are_read_with_state_and_what_runs_in_them() -> None:
    assert sessions_in(LIST) == (
        SessionState("squall-1", "Generation", 1),
        SessionState("two words", "Started", 0),
    )
    assert sessions_in(LIST.splitlines()[0]) == ()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("cannot open /home/me/x/burst.nsys-rep: no space", "cannot open burst.nsys-rep: no space"),
        ('"/opt/nvidia/bin/nsys" failed', '"nsys" failed'),
        ("see http://host/page, or a/b", "see http://host/page, or a/b"),
        ("/burst.nsys-rep", "/burst.nsys-rep"),
    ],
)
def test_what_nsys_says_is_told_without_the_folders_of_its_node(said: str, kept: str) -> None:
    assert without_folders(said) == kept


def test_a_row_in_another_form_still_names_its_session() -> None:
    assert sessions_in("ID NAME\nabc squall-1\n") == (SessionState("squall-1", "", 1),)


def test_a_report_is_kept_for_its_owner_alone_and_nothing_else_stays(tmp_path: Path) -> None:
    session, folder = session_of(tmp_path), tmp_path / "nsys-0"
    for name in ("one.nsys-rep", "one.sqlite", "two.qdstrm", "clock-marks"):
        (folder / name).write_text(name)
    kept = tmp_path / "kept" / "server-0-one.nsys-rep"
    assert session.keep("one", kept) == kept
    assert session.keep("three", tmp_path / "kept" / "three") is None
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    session.discard("one")
    assert sorted(path.name for path in folder.iterdir()) == ["clock-marks", "two.qdstrm"]


def test_a_recording_that_was_never_imported_is_kept_under_its_own_suffix(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    (tmp_path / "nsys-0" / "one.qdstrm").write_text("raw")
    kept = session.keep("one", tmp_path / "kept" / "server-0-one.nsys-rep")
    assert kept == tmp_path / "kept" / "server-0-one.qdstrm"
    assert kept.read_text() == "raw"


class _EndedAgent:
    """Processes of a session whose agent has ended, as after `shutdown`."""

    def cpu_s(self) -> float:
        return 0.0

    def have_ended(self) -> bool:
        return True


@pytest.mark.parametrize(("step", "error"), [("export", "disk is full"), ("start", "its agent has ended")])
def test_an_export_that_fails_says_why_and_a_step_without_agent_that_it_is_gone(
    tmp_path: Path, step: str, error: str
) -> None:
    program = tmp_path / "nsys"
    program.write_text("#!/bin/sh\necho the disk is full >&2\nexit 1\n")
    program.chmod(0o700)
    tools = NsysTools(program, (2025, 3, 1), "PATH", None, ("sqlite",), OF_2025)
    session = NsysSession(tools, "squall-1", tmp_path / "nsys-0", ProfileConfig())
    session._processes = cast(SessionProcesses, _EndedAgent())
    with pytest.raises(ClusterError, match=error) as raised:
        session._step("one", step, 10.0)
    assert isinstance(raised.value, SessionLost) == bool(session.lost) == (step == "start")


def test_a_recording_without_report_or_importer_is_told(tmp_path: Path) -> None:
    session = session_of(tmp_path)
    with pytest.raises(ClusterError, match="left no report"):
        session.report("one")
    (tmp_path / "nsys-0" / "one.qdstrm").write_text("raw")
    with pytest.raises(ClusterError, match="QdstrmImporter was not found"):
        session.report("one")


_RECORDS = """#!/bin/sh
echo "$@" >> {log}
[ "$1" = sessions ] && echo "  1  00:10  Collection  1 theirs"
[ "$1" = stop ] && exit {stop_code}
exit 0
"""


def _theirs(folder: Path, stop_code: int = 0) -> tuple[NsysSession, Path]:
    """A session of somebody else's, that records; and the log of what nsys is asked."""
    nsys, log = folder / "nsys", folder / "log"
    nsys.write_text(_RECORDS.format(log=log, stop_code=stop_code))
    nsys.chmod(0o755)
    tools = NsysTools(nsys, (2022, 4, 2), "PATH", None)
    return NsysSession(tools, "theirs", folder / "nsys-0", ProfileConfig(), is_ours=False), log


def test_a_recording_that_somebody_else_makes_in_their_session_is_left_alone(tmp_path: Path) -> None:
    session, log = _theirs(tmp_path)
    with pytest.raises(ClusterError, match="somebody else records in the nsys session 'theirs'"):
        session.start("one")
    assert "stop" not in log.read_text()
    assert not session.is_recording


def test_a_recording_that_our_own_failed_stop_left_is_ended(tmp_path: Path) -> None:
    session, log = _theirs(tmp_path, stop_code=1)
    session._recording = "one"
    with pytest.raises(ClusterError, match="stop failed"):
        session.stop()
    with pytest.raises(ClusterError, match="stop failed"):
        session.start("two")
    assert log.read_text().count("stop") == 2
