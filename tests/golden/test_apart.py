"""A run apart: what its process says and comes to is what the caller hears, and nothing outlives an interruption."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from squall.cluster.apart import run_apart
from squall.scenarios.config.loader import make_scenario
from squall.scenarios.errors import ClusterError, SquallError, TargetError
from tests.integration.live_runs import scenario_mapping


def come_to(name: str, out: Path, lines: list[str] | None = None) -> Path:
    told = lines if lines is not None else []
    return run_apart(
        make_scenario(scenario_mapping(name=name)), out, None, told.append, "tests.golden.stand_in_run"
    )


def notes_of(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def test_a_run_that_ends_gives_its_directory_and_its_lines_in_order(tmp_path: Path) -> None:
    lines: list[str] = []
    assert come_to("end", tmp_path, lines) == tmp_path / "run"
    assert lines == ["squall begins", "squall ends"]


def test_a_relative_folder_is_taken_from_the_callers_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert come_to("end", Path("out")) == tmp_path / "out" / "run"


@pytest.mark.parametrize("name", ["fail", "refuse"])
def test_what_stopped_a_run_is_raised_with_where_it_is(tmp_path: Path, name: str) -> None:
    with pytest.raises(TargetError) as raised:
        come_to(name, tmp_path)
    assert str(raised.value) == "the server is not there"
    assert notes_of(raised.value) == ([f"the run: {tmp_path / 'run'}"] if name == "fail" else [])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("die", "no answer from Ray"),
        ("die-silently", "the process of the run ended with SIGKILL"),
        ("signalled", "the run was interrupted by SIGTERM"),
    ],
)
def test_a_process_that_is_gone_or_was_signalled_says_so(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ClusterError) as raised:
        come_to(name, tmp_path)
    assert str(raised.value) == why
    assert notes_of(raised.value) == [f"the run: {tmp_path / 'run'}"]


def test_nobody_waits_for_what_a_run_left_with_an_end_of_its_stderr(tmp_path: Path) -> None:
    lines: list[str] = []
    assert come_to("leave-a-child", tmp_path, lines) == tmp_path / "run"
    pid = int(lines[-1].removeprefix("child "))
    os.kill(pid, 0)  # it is still there
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("fault", [BrokenPipeError("gone"), ValueError("I/O operation on closed file")])
def test_a_screen_that_goes_away_does_not_end_a_run(tmp_path: Path, fault: Exception) -> None:
    class Gone(list[str]):
        def append(self, _line: str) -> None:
            raise fault

    assert come_to("end", tmp_path, Gone()) == tmp_path / "run"


def test_each_interruption_is_passed_on_and_raised_once_the_run_has_ended(tmp_path: Path) -> None:
    class Impatient(list[str]):
        """Presses Ctrl-C whenever the process waits for one."""

        def append(self, line: str) -> None:
            super().append(line)
            if "ready" in line:
                raise KeyboardInterrupt

    lines = Impatient()
    with pytest.raises(KeyboardInterrupt) as raised:
        come_to("wait", tmp_path, lines)
    assert lines == ["squall begins", "squall ready 0", "squall ready 1"]
    assert (tmp_path / "sealed").exists()
    assert notes_of(raised.value) == [f"the run: {tmp_path / 'run'}"]


def test_any_thread_may_ask_for_a_run_also_one_with_an_event_loop(tmp_path: Path) -> None:
    got: list[Path | SquallError] = []

    async def ask() -> None:
        got.append(come_to("end", tmp_path))

    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    thread.join()
    assert got == [tmp_path / "run"]
