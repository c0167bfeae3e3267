"""Records and texts through shared memory: all of them, in order, also around the end and when it is full."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.actors.locust import row_ring
from squall.actors.locust.row_ring import MANY_WORDS, RECORD, RowReader, RowWriter, open_ring_file

N_ROWS = 8
N_FIELDS = len(RECORD.names or ())


@pytest.fixture
def ring_fd() -> Iterator[int]:
    fd = open_ring_file()
    yield fd
    os.close(fd)


def record(writer: RowWriter, number: int, text: str = "") -> None:
    code = writer.code_of(text)
    writer.record(number, 1, 2, 3, 4, 5, code, code, code, 0, 0, 0, 0)


@given(steps=st.lists(st.integers(0, 20), max_size=12))
def test_every_record_arrives_once_and_in_order_however_full_the_ring_is(steps: list[int]) -> None:
    fd = open_ring_file()
    try:
        writer, reader, found, n = RowWriter(fd, N_ROWS), RowReader(fd, N_ROWS), list[int](), 0
        for step in steps:
            for _ in range(step):
                record(writer, n)
                n += 1
            found += reader.take().records["request_id"].tolist()
            writer.retry()
        while writer.n_waiting:
            found += reader.take().records["request_id"].tolist()
            writer.retry()
        found += reader.take().records["request_id"].tolist()
        assert found == list(range(n))
        assert writer.n_recorded == n
    finally:
        os.close(fd)


def test_a_text_has_one_code_and_arrives_with_the_first_record_that_names_it(ring_fd: int) -> None:
    writer, reader = RowWriter(ring_fd), RowReader(ring_fd)
    for number, text in enumerate(["GET", "ä€", "GET", ""]):
        record(writer, number, text)
    rows = reader.take()
    assert [rows.words[code] for code in rows.records["name"].tolist()] == ["GET", "ä€", "GET", ""]
    assert len(rows.words) == 3
    record(writer, 4, "later")
    again = reader.take()
    assert [again.words[code] for code in again.records["detail"].tolist()] == ["later"]


def test_texts_beyond_the_room_for_them_are_named_so_and_no_record_is_lost(
    ring_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_ring, "WORDS_BYTES", 4_096)
    writer, reader = RowWriter(ring_fd, N_ROWS), RowReader(ring_fd, N_ROWS)
    found: list[str] = []
    for number in range(600):
        record(writer, number, f"/item/{number}")
        rows = reader.take()
        found.append(rows.words[rows.records["name"][0]])
    n_known = found.index(MANY_WORDS)
    assert found[:n_known] == [f"/item/{number}" for number in range(n_known)]
    assert set(found[n_known:]) == {MANY_WORDS}
    assert n_known > 200


def test_what_a_killed_process_had_recorded_is_there(ring_fd: int) -> None:
    pid = os.fork()
    if not pid:
        writer = RowWriter(ring_fd)
        for number in range(1_000):
            record(writer, number, f"name {number % 7}")
        os.kill(os.getpid(), 9)
    _, status = os.waitpid(pid, 0)
    rows = RowReader(ring_fd).take()
    assert os.WTERMSIG(status) == 9
    assert np.array_equal(rows.records["request_id"], np.arange(1_000))
    assert {rows.words[code] for code in rows.records["name"].tolist()} == {f"name {n}" for n in range(7)}


def test_a_record_has_the_fields_that_are_packed() -> None:
    assert N_FIELDS == 13
    assert row_ring._PACK.size == RECORD.itemsize
