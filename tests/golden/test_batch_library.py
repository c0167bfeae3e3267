"""The library that records a server's batches, in a server that says what it likes, and its reader."""

from __future__ import annotations

import stat
from itertools import pairwise
from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import RecordedBatch, rings
from tests.reporting import ReportingServer, Told, only_ring, recorded, reporting_server

AT = (10, 20, 30, 40)
LATER = (50, 60, 70, 80)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ReportingServer:
    return reporting_server(tmp_path_factory.mktemp("server"))


def member(instance: int, request_id: object, at: tuple[int, ...] = AT, ok: str = "1") -> list[object]:
    return ["member", instance, ok, *at, request_id]


def batch(instance: int, rows: int, at: tuple[int, ...] = AT) -> list[object]:
    return ["batch", instance, rows, *at]


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


def test_batches_of_threads_are_all_recorded_each_threads_in_its_order(
    server: ReportingServer, tmp_path: Path
) -> None:
    server.run(tmp_path, "load", 8, 300, 5)
    found = recorded(tmp_path)
    assert len(found) == 2400
    by_thread: dict[int, list[RecordedBatch]] = {}
    for one in found:
        by_thread.setdefault(one.thread, []).append(one)
    assert len(by_thread) == 8
    for of_one in by_thread.values():
        number = of_one[0].request_ids[0].split(b":")[0]
        expected = [tuple(b"%s:%d:%d" % (number, i, k) for k in range(5)) for i in range(300)]
        assert [one.request_ids for one in of_one] == expected
        assert all(one.end_ns > later.start_ns for one, later in pairwise(of_one))


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


def test_a_server_that_is_not_told_where_leaves_nothing(server: ReportingServer, tmp_path: Path) -> None:
    told = server.run(None, *member(0, "a"), *batch(0, 1))
    assert (told.members, told.batches) == (1, 1)
    assert not list(tmp_path.iterdir())
