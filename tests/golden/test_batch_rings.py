"""What a node takes from the rings of a server while that runs, and after it ended in whatever way."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from squall.actors.inject.batch_ring import rings
from squall.cluster.node.batches import read_recorded
from squall.cluster.node.injected.batch_recording import BatchRecording
from squall.cluster.node.injected.batch_rings import BatchRings, taken_files
from squall.cluster.node.injected.effect import injected
from squall.cluster.node.injected.ring_folder import hold_all, make_ring_folder, rings_of
from squall.scenarios.errors import ClusterError
from tests.reporting import ReportingServer, reporting_server

LABELS = {"run": "r", "node": "node-0", "server": "server-0"}
Row = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ReportingServer:
    return reporting_server(tmp_path_factory.mktemp("server"))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Of the rings, and of the server."""
    for name in ("rings", "server"):
        (tmp_path / name).mkdir()
    return tmp_path / "rings", tmp_path / "server"


def batch(request_id: str, at_ns: int, rows: int = 1) -> list[object]:
    times = [at_ns, at_ns + 10, at_ns + 20, at_ns + 30]
    return ["member", 0, 1, *times, request_id, "batch", 0, rows, *times]


def rows_in(folder: Path, from_ns: int = 0) -> tuple[list[Row], list[str], list[str]]:
    """Rows of the table, losses and notes, of what was taken into a server's folder."""
    losses: list[str] = []
    notes: list[str] = []
    tables = read_recorded(taken_files(folder), LABELS, from_ns, losses, notes)
    return [row for table in tables for row in table.to_pylist()], losses, notes


def wait_until(is_so: Any) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def waiting(server: ReportingServer, folders: tuple[Path, Path]) -> Iterator[subprocess.Popen[bytes]]:
    """A server that has reported one batch, and reports another once a byte comes on its stdin."""
    script = [*batch("000000000001", 100), "say", "begun", "wait", *batch("000000000002", 200), "wait"]
    with server.started(folders[0], *script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield process
        process.kill()


def say(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"x")
    process.stdin.flush()


def test_batches_become_rows_with_the_computation_as_their_span(
    server: ReportingServer, folders: tuple[Path, Path]
) -> None:
    server.run(folders[0], *batch("000000000007", 100, rows=3))
    assert BatchRings(hold_all(folders[:1], "batches"), folders[1]).stop() == []
    ((row,), losses, notes) = rows_in(folders[1])
    assert (losses, notes) == ([], [])
    assert row == {
        "run": "r", "phase": "", "node": "node-0", "server": "server-0", "model": "echo", "version": "3",
        "recorded_by": "library", "instance": row["instance"], "instance_device": row["instance_device"], "batch_id": 0,
        "exec_start_ns": 100, "start_ns": 110, "end_ns": 120, "exec_end_ns": 130, "rows": 3, "n_requests": 1,
        "request_ids": [7], "n_foreign": 0, "n_failed": 0,
    }  # fmt: skip


def test_batches_are_taken_while_the_server_runs_and_after_it_was_killed(
    waiting: subprocess.Popen[bytes], folders: tuple[Path, Path]
) -> None:
    taking = BatchRings(hold_all(folders[:1], "batches"), folders[1])
    wait_until(lambda: len(rows_in(folders[1])[0]) == 1)
    say(waiting)
    wait_until(lambda: len(rows_in(folders[1])[0]) == 2)
    waiting.kill()
    assert taking.stop() == []
    assert [row["request_ids"] for row in rows_in(folders[1])[0]] == [[1], [2]]
    assert taking.stop() == []


def test_of_a_server_that_ran_before_only_what_follows_is_taken(
    waiting: subprocess.Popen[bytes], folders: tuple[Path, Path]
) -> None:
    taking = BatchRings(hold_all(folders[:1], "batches"), folders[1], begins_anew=True)
    say(waiting)
    wait_until(lambda: rows_in(folders[1])[0])
    assert taking.stop() == []
    assert [row["request_ids"] for row in rows_in(folders[1])[0]] == [[2]]


def test_batches_that_found_no_room_are_a_loss_but_not_those_from_before(
    server: ReportingServer, folders: tuple[Path, Path]
) -> None:
    server.run(folders[0], "load", 1, 3000, 1, SQUALL_BATCHES_BYTES="65536")
    taking = BatchRings(hold_all(folders[:1], "batches"), folders[1], begins_anew=True)
    told = server.run(folders[0], "load", 1, 200_000, 1, SQUALL_BATCHES_BYTES="65536")
    (loss,) = taking.stop()
    n_lost = int(loss.split(": ")[2].split()[0])
    assert loss.endswith("found no room in its ring")
    assert n_lost == told.batches - len(rows_in(folders[1])[0]) > 0


def test_a_folder_of_rings_has_one_reader(folders: tuple[Path, Path]) -> None:
    first = BatchRings(hold_all(folders[:1], "batches"), folders[1])
    with pytest.raises(ClusterError, match="another run reads the batches in"):
        BatchRings(hold_all(folders[:1], "batches"), folders[1])
    first.stop()
    BatchRings(hold_all(folders[:1], "batches"), folders[1]).stop()


def test_a_file_that_somebody_removed_is_put_back_whole(
    waiting: subprocess.Popen[bytes], folders: tuple[Path, Path]
) -> None:
    taking = BatchRings(hold_all(folders[:1], "batches"), folders[1])
    wait_until(lambda: taken_files(folders[1]))
    shutil.rmtree(folders[1])
    say(waiting)
    assert waiting.stdout is not None
    wait_until(lambda: len(rows_in(folders[1])[0]) == 2)
    assert taking.stop() == []


def test_what_is_no_ring_is_a_loss_and_hinders_no_other(
    server: ReportingServer, folders: tuple[Path, Path]
) -> None:
    server.run(folders[0], *batch("000000000007", 100))
    (folders[0] / f"batches-1-{'0' * 32}.ring").write_text("no ring")
    (loss,) = BatchRings(hold_all(folders[:1], "batches"), folders[1]).stop()
    assert loss.endswith(": not a ring")
    assert len(rows_in(folders[1])[0]) == 1


def test_what_a_dead_agent_had_not_taken_is_taken_by_who_comes_after(
    server: ReportingServer, tmp_path: Path
) -> None:
    held = make_ring_folder(tmp_path, "batches")
    rings_folder = held.path
    assert rings_of(tmp_path, "batches") == rings_folder
    server.run(rings_folder, *batch("000000000001", 100))
    BatchRings([held], tmp_path).stop()
    server.run(rings_folder, *batch("000000000002", 200))
    recording = BatchRecording(tmp_path)
    spills = _Spills()
    assert recording.spill(spills, LABELS, 0) == ([], [])  # type: ignore[arg-type]
    assert [row["request_ids"] for row in rows_in(tmp_path)[0]] == [[1], [2]]
    recording.close(keeps_files=True)
    assert len(rings(rings_folder)) == 2
    recording.close(keeps_files=False)
    assert rings_of(tmp_path, "batches") is None


def test_rings_that_cannot_be_read_are_no_loss_but_a_reason(tmp_path: Path) -> None:
    recording = BatchRecording(tmp_path)
    folder = Path(recording.begin()["SQUALL_BATCHES"])
    (folder / f"batches-1-{'0' * 32}.ring").write_text("no ring")
    assert "not a ring" in str(recording.silence("its log"))
    assert not folder.exists()
    assert recording.silence("its log") is None, "it is told once"
    assert recording.spill(_Spills(), LABELS, 0) == ([], [])  # type: ignore[arg-type]
    recording.close(keeps_files=False)


class _Spills:
    """Writes nothing."""

    def write_recorded(self, *_: object) -> tuple[list[str], list[str]]:
        return [], []


def test_a_server_with_the_library_says_where_it_records(
    waiting: subprocess.Popen[bytes], folders: tuple[Path, Path]
) -> None:
    found = injected([waiting.pid])
    assert (found.folder, found.reason) == (folders[0], "")
    shutil.rmtree(folders[0])
    assert "which is no folder here" in injected([waiting.pid]).reason


def test_a_server_without_the_library_says_why_nothing_is_recorded(
    server: ReportingServer, folders: tuple[Path, Path]
) -> None:
    for folder, preload, reason in (
        (None, str(server.library), "the server was started without SQUALL_BATCHES"),
        (folders[0], "", "the library of LD_PRELOAD is not in it"),
    ):
        script = ["say", "begun", "wait"]
        with server.started(folder, *script, LD_PRELOAD=preload) as process:
            assert process.stdout is not None
            process.stdout.readline()
            found = injected([process.pid])
            process.kill()
        assert found.folder is None
        assert reason in found.reason
    assert injected([]).reason == "no process of the server can be seen from this user's session on its node"
