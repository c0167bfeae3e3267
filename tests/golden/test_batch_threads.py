"""Batches that many threads tell of, a reader beside them, and processes that fork or are killed meanwhile."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from squall.actors.inject.batch_ring import BatchRing, RecordedBatch, rings
from tests.reporting import (
    LEAST_RING_BYTES,
    ReportingServer,
    batch,
    batches_of,
    by_thread,
    member,
    numbers,
    only_ring,
    recorded,
)


def test_batches_of_threads_are_all_recorded_each_threads_in_its_order(
    server: ReportingServer, tmp_path: Path
) -> None:
    server.run(tmp_path, "load", 8, 300, 5)
    found = by_thread(recorded(tmp_path))
    assert len(found) == 8
    assert {one.instance for own in found for one in own} == {"echo_0_0", "echo_0_1", "echo_0_2"}
    for own in found:
        assert numbers(own, 5) == list(range(300))
        assert all(one.end_ns > later.start_ns for one, later in pairwise(own))


def test_the_thread_of_a_batch_is_the_one_that_tells_of_it(server: ReportingServer, tmp_path: Path) -> None:
    server.run(
        tmp_path, *member(0, "a"), *batch(0, 1), "thread", *member(0, "b"), *batch(0, 1), "join",
        *member(0, "c"), *batch(0, 1),
    )  # fmt: skip
    first, other, last = recorded(tmp_path)
    assert first.thread == last.thread == first.pid == other.pid
    assert other.thread != other.pid


def test_a_full_ring_counts_what_it_loses_and_goes_on_when_there_is_room(
    server: ReportingServer, tmp_path: Path
) -> None:
    environment = {"SQUALL_BATCHES_BYTES": str(LEAST_RING_BYTES)}
    script = ["load", 1, 5000, 2, "say", "full", "wait", "load", 1, 3, 2]
    with server.started(tmp_path, *script, **environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"full\n"
        ring = only_ring(tmp_path)
        kept, lost = batches_of(ring.drain(), tmp_path), ring.lost()
        process.communicate(b"\n", timeout=60)
    after = batches_of(ring.drain(), tmp_path)
    assert lost == ring.lost() == 5000 - len(kept) > 0
    ring.close()
    before = [one for one in kept if isinstance(one, RecordedBatch)]
    assert numbers(before, 2) == list(range(len(kept)))
    assert numbers([one for one in after if isinstance(one, RecordedBatch)], 2) == [0, 1, 2]


def test_a_ring_that_is_drained_in_time_goes_round_and_loses_nothing(
    server: ReportingServer, tmp_path: Path
) -> None:
    n_rounds, n_batches, n_members = 40, 50, 9
    script = ["load", 1, n_batches, n_members, "say", "written", "wait"] * n_rounds
    drained = b""
    environment = {"SQUALL_BATCHES_BYTES": str(LEAST_RING_BYTES)}
    with server.started(tmp_path, *script, **environment) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        while not rings(tmp_path):
            assert process.poll() is None
        ring = only_ring(tmp_path)
        for _ in range(n_rounds):
            assert process.stdout.readline() == b"written\n"
            drained += ring.drain()
            process.stdin.write(b"\n")
            process.stdin.flush()
    assert ring.lost() == 0
    ring.close()
    assert len(drained) > 5 * LEAST_RING_BYTES
    found = [one for one in batches_of(drained, tmp_path) if isinstance(one, RecordedBatch)]
    assert numbers(found, n_members) == list(range(n_batches)) * n_rounds


def test_what_is_drained_while_threads_write_is_whole_in_order_and_complete(
    server: ReportingServer, tmp_path: Path
) -> None:
    """What the reader was too slow for is counted: each batch was drained or lost."""
    n_threads, n_batches = 4, 20_000
    pieces: list[bytes] = []
    with server.started(tmp_path, *batch(0, 0), "wait", "load", n_threads, n_batches, 3) as process:
        assert process.stdin is not None
        while not rings(tmp_path):
            assert process.poll() is None
        ring = only_ring(tmp_path)
        process.stdin.write(b"\n")
        process.stdin.flush()
        while process.poll() is None:
            pieces.append(ring.drain())
    pieces.append(ring.drain())
    lost = ring.lost()
    ring.close()
    found = batches_of(b"".join(pieces), tmp_path)
    whole = [one for one in found if isinstance(one, RecordedBatch) and one.n_requests]
    assert len(found) == len(whole) + 1
    assert len(whole) + lost == n_threads * n_batches
    assert sum(map(bool, pieces)) > 1
    for own in by_thread(whole):
        assert all(one < later for one, later in pairwise(numbers(own, 3)))


def test_a_reader_goes_on_where_the_one_before_stopped(server: ReportingServer, tmp_path: Path) -> None:
    with server.started(tmp_path, *batch(0, 1), "say", "one", "wait", *batch(0, 2)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        assert [one.rows for one in recorded(tmp_path)] == [1]
        process.communicate(b"\n", timeout=60)
    assert [one.rows for one in recorded(tmp_path)] == [2]


@pytest.mark.parametrize("n_drains", [1, 2, 4, 10, 30])
def test_a_server_killed_at_any_instant_leaves_whole_batches(
    server: ReportingServer, tmp_path: Path, n_drains: int
) -> None:
    for i in range(5):
        folder = tmp_path / str(i)
        folder.mkdir()
        with server.started(folder, "forever", 4, 7, "wait") as process:
            while not rings(folder):
                assert process.poll() is None
            ring = only_ring(folder)
            pieces = [ring.drain() for _ in range(n_drains)]
            process.kill()
        pieces.append(ring.drain())
        assert ring.drain() == b""
        ring.close()
        found = batches_of(b"".join(pieces), tmp_path)
        whole = [one for one in found if isinstance(one, RecordedBatch)]
        assert whole == found
        for own in by_thread(whole):
            assert all(one < later for one, later in pairwise(numbers(own, 7)))


def test_a_child_of_the_server_writes_into_a_ring_of_its_own(server: ReportingServer, tmp_path: Path) -> None:
    server.run(
        tmp_path, *member(0, "before"), *batch(0, 1), *member(0, "open"),
        "fork", *member(0, "child"), *batch(0, 2), "end",
        *member(0, "after"), *batch(0, 3),
    )  # fmt: skip
    found: dict[int, list[tuple[bytes, ...]]] = {}
    for path in rings(tmp_path):
        ring = BatchRing(path)
        batches = batches_of(ring.drain(), tmp_path)
        assert all(isinstance(one, RecordedBatch) and one.pid == one.thread == ring.pid for one in batches)
        found[ring.pid] = [one.request_ids for one in batches if isinstance(one, RecordedBatch)]
        ring.close()
    assert sorted(found.values()) == [[(b"before",), (b"open", b"after")], [(b"child",)]]


def test_children_of_a_server_whose_threads_write_meanwhile_write_too(
    server: ReportingServer, tmp_path: Path
) -> None:
    script = ["fork", *member(0, "child"), *batch(0, 1), "end"] * 20
    server.run(tmp_path, *batch(0, 0), "forever", 3, 5, *script)
    pids = set()
    for path in rings(tmp_path):
        ring = BatchRing(path)
        found = batches_of(ring.drain(), tmp_path)
        if len(found) == 1:
            (only,) = found
            assert isinstance(only, RecordedBatch)
            assert (only.request_ids, only.pid) == ((b"child",), ring.pid)
            pids.add(ring.pid)
        ring.close()
    assert len(pids) == 20


def test_a_batch_that_is_told_of_when_the_server_exits_is_recorded(
    server: ReportingServer, tmp_path: Path
) -> None:
    server.run(tmp_path, "late", *batch(0, 5))
    assert [one.rows for one in recorded(tmp_path)] == [5, 1]
