"""The library that records a server's batches, in a server that says what it likes, and its reader."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import BatchRing, RecordedBatch, rings
from tests.reporting import (
    LATER,
    LEAST_RING_BYTES,
    NATIVE,
    SHARED,
    ReportingServer,
    Told,
    batch,
    compiled,
    member,
    only_ring,
    recorded,
    reporting_server,
)

ID_BYTES = 128
"""Of a request id that the ring holds."""


def test_every_field_of_a_batch_is_recorded(server: ReportingServer, tmp_path: Path) -> None:
    told = server.run(tmp_path, *member(1, "a"), *member(1, "", ok="0"), *member(1, "c" * 36), *batch(1, 7))
    assert told == Told(members=3, failed=1, batches=1, rows=7, errors=0, deleted=0)
    ring = only_ring(tmp_path)
    pid = ring.pid
    ring.close()
    (found,) = recorded(tmp_path)
    assert found == RecordedBatch(
        pid=pid, thread=pid, model="echo", version=3, instance="echo_0_1", device=1,
        start_ns=10, compute_start_ns=20, compute_end_ns=30, end_ns=40,
        rows=7, n_requests=3, n_failed=1, request_ids=(b"a", b"", b"c" * 36),
    )  # fmt: skip


def test_instances_that_are_not_on_a_gpu_have_no_device(server: ReportingServer, tmp_path: Path) -> None:
    server.run(tmp_path, *batch(0, 1), *batch(1, 1), *batch(2, 1))
    assert [(one.instance, one.device) for one in recorded(tmp_path)] == [
        ("echo_0_0", -1),
        ("echo_0_1", 1),
        ("echo_0_2", -1),
    ]


def test_what_the_server_does_not_say_is_empty_and_its_errors_are_given_back(
    server: ReportingServer, tmp_path: Path
) -> None:
    told = server.run(tmp_path, *member(3, "a", ok="1x"), *batch(3, 2), *member(4, "b"), *batch(4, 1))
    silent, nameless = recorded(tmp_path)
    assert (silent.model, silent.version, silent.instance, silent.device) == ("", 0, "silent", -1)
    assert (silent.request_ids, silent.n_requests) == ((b"",), 1)
    assert (nameless.model, nameless.instance, nameless.device) == ("echo", "", 2)
    assert told.errors == told.deleted == 4


def test_long_names_are_cut(server: ReportingServer, tmp_path: Path) -> None:
    server.run(tmp_path, *member(5, "a"), *batch(5, 1))
    (found,) = recorded(tmp_path)
    assert found.model == found.instance == "n" * 256
    assert (found.version, found.request_ids) == (-1, (b"a",))


def test_an_error_of_the_server_is_its_callers(server: ReportingServer, tmp_path: Path) -> None:
    told = server.run(tmp_path, *member(0, "a"), *batch(0, 404))
    assert (told.errors, told.deleted) == (1, 0)
    assert [one.rows for one in recorded(tmp_path)] == [404]


def test_a_server_without_the_calls_that_name_things_still_has_its_batches_recorded(tmp_path: Path) -> None:
    (tmp_path / "rings").mkdir()
    server = reporting_server(tmp_path, "-DONLY_REPORTS")
    server.run(tmp_path / "rings", *member(1, "a"), *member(1, "b", ok="0"), *batch(1, 5))
    (found,) = recorded(tmp_path / "rings")
    assert (found.model, found.version, found.instance, found.device) == ("", 0, "", -1)
    assert (found.rows, found.n_requests, found.n_failed, found.request_ids) == (5, 2, 1, (b"", b""))


def test_a_server_that_a_program_opened_for_itself_alone_is_found(
    server: ReportingServer, tmp_path: Path
) -> None:
    """As Triton inside a Python process: its symbols are not those of the whole process."""
    folder = server.program.parent
    backend = compiled(
        [NATIVE / "reporting_server.c", folder / "libtritonserver.so"],
        tmp_path / "backend.so", *SHARED, f"-Wl,-rpath,{folder}",
    )  # fmt: skip
    script = f"""
import ctypes
words = {["server", *map(str, [*member(0, "a"), *batch(0, 1)])]!r}
arguments = (ctypes.c_char_p * (len(words) + 1))(*(word.encode() for word in words))
ctypes.CDLL({str(backend)!r}).main(len(words), arguments)
"""
    (tmp_path / "rings").mkdir()
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], env=server.environment(tmp_path / "rings"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["told 1 0 1 1 0 0"]
    assert [one.request_ids for one in recorded(tmp_path / "rings")] == [(b"a",)]


def test_a_ring_is_for_its_user_alone_and_has_a_name_nobody_guesses(
    server: ReportingServer, tmp_path: Path
) -> None:
    for _ in range(2):
        server.run(tmp_path, *member(0, "a"), *batch(0, 1))
    first, second = rings(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (first, second)} == {0o600}
    assert first.stem.split("-")[2] != second.stem.split("-")[2]
    assert all(len(path.stem.split("-")[2]) == 32 for path in (first, second))
    assert set(tmp_path.iterdir()) == {first, second}


def test_members_that_all_failed_are_a_batch_though_none_is_told_of(
    server: ReportingServer, tmp_path: Path
) -> None:
    server.run(
        tmp_path,
        *member(0, "a", ok="0"), *member(0, "b", ok="0"),
        *member(0, "c", LATER), *batch(0, 1, LATER),
    )  # fmt: skip
    failed, good = recorded(tmp_path)
    assert (failed.rows, failed.n_requests, failed.n_failed, failed.start_ns) == (0, 2, 2, 10)
    assert failed.request_ids == (b"a", b"b")
    assert (good.rows, good.n_requests, good.n_failed, good.request_ids) == (1, 1, 0, (b"c",))


def test_members_that_all_failed_last_are_told_of_at_the_end_of_their_thread(
    server: ReportingServer, tmp_path: Path
) -> None:
    server.run(tmp_path, "thread", *member(1, "a", ok="0"), "join", *member(0, "b"), *batch(0, 1))
    failed, good = recorded(tmp_path)
    assert (failed.instance, failed.rows, failed.n_failed, failed.request_ids) == ("echo_0_1", 0, 1, (b"a",))
    assert good.request_ids == (b"b",)


def test_a_batch_all_of_whose_members_failed_may_be_told_of_all_the_same(
    server: ReportingServer, tmp_path: Path
) -> None:
    """As the Python backend does."""
    server.run(tmp_path, *member(0, "a", ok="0"), *member(0, "b", ok="0"), *batch(0, 2))
    (found,) = recorded(tmp_path)
    assert (found.rows, found.n_requests, found.n_failed) == (2, 2, 2)


def test_members_that_ran_one_after_another_are_one_batch(server: ReportingServer, tmp_path: Path) -> None:
    """As in a backend that executes each request of a batch by itself: every member has a start of its own."""
    server.run(
        tmp_path, *member(0, "a", (1, 2, 3, 4)), *member(0, "b", (5, 6, 7, 8)), *batch(0, 2, (1, 2, 7, 8))
    )
    (found,) = recorded(tmp_path)
    assert (found.request_ids, found.start_ns, found.end_ns) == ((b"a", b"b"), 1, 8)


def test_members_of_another_instance_end_a_batch(server: ReportingServer, tmp_path: Path) -> None:
    server.run(tmp_path, *member(0, "a"), *member(1, "b"), *batch(1, 1), *member(0, "c"), *batch(1, 0))
    found = [(one.instance, one.rows, one.request_ids) for one in recorded(tmp_path)]
    assert found == [
        ("echo_0_0", 0, (b"a",)), ("echo_0_1", 1, (b"b",)), ("echo_0_0", 0, (b"c",)), ("echo_0_1", 0, ()),
    ]  # fmt: skip


def test_members_of_which_no_batch_is_told_are_a_record_at_last(
    server: ReportingServer, tmp_path: Path
) -> None:
    """A backend that tells of members alone would have them wait, and be lost, for ever."""
    server.run(tmp_path, "load", 1, 1, 20_000)
    first, rest = recorded(tmp_path)
    assert (first.rows, first.n_requests, rest.rows, rest.n_requests) == (0, 16_384, 20_000, 20_000 - 16_384)


def test_hostile_ids_are_bytes_like_any_other(server: ReportingServer, tmp_path: Path) -> None:
    every_byte = bytes(range(1, 256))
    ids: list[bytes] = [
        every_byte[:100],
        every_byte[100:200],
        every_byte[200:],
        b"",
        b"\n" * 64,
        b"x" * 65_536,
    ]
    script = [part for one in ids for part in member(0, one)]
    server.run(tmp_path, *script, *batch(0, 6), *member(0, "after"), *batch(0, 1))
    first, after = recorded(tmp_path)
    assert first.request_ids == tuple(one[:ID_BYTES] for one in ids)
    assert after.request_ids == (b"after",)


def test_ids_that_find_no_room_are_counted(server: ReportingServer, tmp_path: Path) -> None:
    n = 3000
    script = [part for _ in range(n // 300) for part in member(0, b"i" * ID_BYTES) * 300]
    server.run(tmp_path, *script, *batch(0, n), *member(0, "after"), *batch(0, 1))
    large, after = recorded(tmp_path)
    assert large.n_requests == n
    assert 900 < len(large.request_ids) < n
    assert set(large.request_ids) == {b"i" * ID_BYTES}
    assert after.request_ids == (b"after",)


def test_a_server_that_is_not_told_where_leaves_nothing(server: ReportingServer, tmp_path: Path) -> None:
    environment = {"TMPDIR": str(tmp_path), "SQUALL_BATCHES": ""}
    told, words = server.run_and_hear(None, *member(0, "a"), *batch(0, 1), **environment)
    assert (told.members, told.batches, words) == (1, 1, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["/bin/true"], [sys.executable, "-c", "import ctypes, threading"]])
def test_a_process_without_a_server_leaves_nothing(
    server: ReportingServer, tmp_path: Path, command: list[str]
) -> None:
    done = subprocess.run(command, env=server.environment(tmp_path), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert not list(tmp_path.iterdir())


def test_a_symlink_that_stands_where_rings_do_is_neither_followed_nor_read(
    server: ReportingServer, tmp_path: Path
) -> None:
    victim, where = tmp_path / "victim", tmp_path / "rings"
    victim.write_bytes(b"mine")
    where.mkdir()
    planted = where / f"batches-1-{'0' * 32}.ring"
    planted.symlink_to(victim)
    server.run(where, *member(0, "a"), *batch(0, 1))
    (ring,) = rings(where)
    assert ring != planted
    assert victim.read_bytes() == b"mine"
    with pytest.raises(OSError, match="symbolic link"):
        BatchRing(planted)


def test_the_library_needs_nothing_of_python_and_shows_two_names(server: ReportingServer) -> None:
    try:
        symbols = subprocess.run(["nm", "-D", server.library], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no nm is here (Debian: binutils)")
    lines = [line.split() for line in symbols.stdout.splitlines()]
    assert {line[-1] for line in lines if line[-2] in "TDB"} == {
        "TRITONBACKEND_ModelInstanceReportStatistics",
        "TRITONBACKEND_ModelInstanceReportBatchStatistics",
    }
    needed = [line[-1] for line in lines if line[-2] == "U"]
    assert not [name for name in needed if "Py" in name or "TRITON" in name]
    versions = [name.split("GLIBC_")[1] for name in needed if "GLIBC_" in name]
    assert max(tuple(map(int, version.split("."))) for version in versions) <= (
        2,
        34,
    )  # Ubuntu 22.04 has 2.35


def test_a_server_makes_its_ring_when_it_starts(server: ReportingServer, tmp_path: Path) -> None:
    """So no request waits for it; and a ring that is not there tells that the library is not preloaded."""
    server.run(tmp_path)
    assert recorded(tmp_path) == []


def test_a_ring_has_the_size_that_is_asked_for(server: ReportingServer, tmp_path: Path) -> None:
    for asked in ("", "nonsense", "1", "100000", str(16 << 20)):
        server.run(tmp_path, *batch(0, 1), SQUALL_BATCHES_BYTES=asked)
    sizes = sorted(path.stat().st_size - 4096 for path in rings(tmp_path))
    assert sizes == [LEAST_RING_BYTES, 102_400, 8 << 20, 8 << 20, 16 << 20]
    assert all(os.stat(path).st_blocks * 512 >= path.stat().st_size for path in rings(tmp_path))
