"""The plan of windows, and the file that keeps what became of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from squall.cluster.node.injected.kernel_process import TakenProcess
from squall.cluster.node.injected.kernel_switch import LEAD_NS, planned
from squall.cluster.node.injected.kernel_windows import (
    Recorded,
    Window,
    WindowFile,
    read_windows,
    window_table,
)
from squall.scenarios.config.duty import Duty

S = 1_000_000_000
ONE = Window(begun_ns=1, start_ns=2, end_ns=8, done_ns=9, n_processes=2, kinds="kernels,copies")
TWO = Window(begun_ns=11, start_ns=12, end_ns=18, done_ns=19, n_processes=1, kinds="kernels")


def test_whole_phases_are_recorded_from_before_each_and_phases_that_meet_at_once() -> None:
    spans = [(10 * S, 20 * S), (20 * S, 25 * S), (40 * S, 50 * S)]
    assert planned(spans, "whole") == [(10 * S - LEAD_NS, 25 * S), (40 * S - LEAD_NS, 50 * S)]


def test_a_duty_gives_each_phase_its_windows_in_the_order_of_time() -> None:
    duty = Duty(S, 4 * S)
    assert planned([(20 * S, 24 * S), (0, 8 * S)], duty) == [
        *duty.windows(0, 8 * S),
        *duty.windows(20 * S, 24 * S),
    ]
    assert planned([], duty) == planned([], "whole") == []


def test_what_is_written_is_read_again_and_the_last_line_of_a_process_counts(tmp_path: Path) -> None:
    into = WindowFile(tmp_path)
    early = TakenProcess(path=tmp_path / "0000-a.records", pid=7, gpus=("GPU-1",), status="ready")
    late = replace(early, status="recording")
    into.note_process(early)
    into.note_open(ONE)
    into.note_process(late)
    assert read_windows(tmp_path) == Recorded((late,), (), ONE)
    into.note_windows([ONE, TWO])
    into.close()
    assert into.trouble is None
    assert read_windows(tmp_path) == Recorded((late,), (ONE, TWO), None)


def test_a_line_that_was_cut_off_takes_nothing_along(tmp_path: Path) -> None:
    for window in (ONE, TWO):
        into = WindowFile(tmp_path)
        into.note_windows([window])
        into.close()
        with (tmp_path / "windows.jsonl").open("a") as file:
            file.write('{"windows": [{"begun')
    assert read_windows(tmp_path).windows == (ONE, TWO)
    assert read_windows(tmp_path / "nowhere") == Recorded()


def test_what_the_disk_does_not_take_is_told(tmp_path: Path) -> None:
    into = WindowFile(tmp_path / "nowhere")
    into.note_windows([ONE])
    assert into.trouble == "kernels: windows of recording were not kept: No such file or directory"


def test_windows_are_rows_of_recordings() -> None:
    labels = {"run": "r", "node": "n", "server": "s", "model": "m"}
    assert window_table([ONE], labels).to_pylist() == [
        {
            "run": "r", "phase": "", "node": "n", "server": "s", "begun_ns": 1, "start_ns": 2, "end_ns": 8,
            "done_ns": 9, "n_processes": 2, "kinds": "kernels,copies",
        }
    ]  # fmt: skip


def test_lines_that_are_none_of_ours_are_left_out(tmp_path: Path) -> None:
    into = WindowFile(tmp_path)
    into.note_windows([ONE])
    into.close()
    path = tmp_path / "windows.jsonl"
    for line in (
        "[" * 100_000, "[]", "7", '{"process":7}', '{"process":{"path":"../x","pid":1,"gpus":[],"status":""}}',
        '{"process":{"path":"a","pid":"1","gpus":[],"status":""}}', '{"open":{"begun_ns":1}}', '{"windows":[7]}',
        '{"windows":7}', '{"open":{"begun_ns":"1","start_ns":2,"end_ns":3,"done_ns":4,"n_processes":1,"kinds":""}}',
    ):  # fmt: skip
        with path.open("a") as file:
            file.write(f"{line}\n")
    assert read_windows(tmp_path) == Recorded((), (ONE,), None)
    path.rename(tmp_path / "aside")
    path.symlink_to(tmp_path / "aside")
    assert read_windows(tmp_path) == Recorded()
