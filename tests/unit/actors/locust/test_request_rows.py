"""Locust's request events as rows of `requests`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from squall.actors.locust.request_rows import RequestRows
from squall.actors.locust.row_ring import RowReader, RowWriter, open_ring_file
from squall.actors.locust.row_table import RowTable
from squall.actors.triton_user.handed import SENT_KEY, Sent

MS = 1_000_000
START_NS = 10_000 * MS
PHASES = ["warmup", "measure", "drain"]
ENDS_NS = [100 * MS, 300 * MS, 400 * MS]


class Listened:
    """A listener on a clock that stands, and the rows that come out."""

    def __init__(self, fd: int) -> None:
        self.now_ns = START_NS
        self._reader = RowReader(fd)
        self._table = RowTable("run-1", "node-1", 1, PHASES, ["server-0", "server-1"], ["mlp", "other"])
        targets = {"http://10.0.0.1:8000": 0, "http://10.0.0.2:8000": 1}
        self.rows = RequestRows(RowWriter(fd), 1, 3, ENDS_NS, targets, repr, lambda: self.now_ns)
        self.rows.place_phases(START_NS)

    def hear(self, **event: Any) -> None:
        said: dict[str, Any] = {
            "request_type": "GET",
            "name": "/",
            "response_time": 1.0,
            "response_length": 7,
        }
        self.rows.on_request(**said | event)

    def found(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._table.of(self._reader.take()).to_pylist()
        return rows


@pytest.fixture
def listened() -> Iterator[Listened]:
    fd = open_ring_file()
    one = Listened(fd)
    one.rows.begin()
    yield one
    os.close(fd)


def test_a_row_has_what_the_event_says_and_its_send_is_the_event_less_the_response_time(
    listened: Listened,
) -> None:
    listened.now_ns = START_NS + 150 * MS
    listened.hear(request_type="POST", name="/login", response_time=12.3456789, response_length=99)
    (row,) = listened.found()
    assert row == {
        "run": "run-1", "phase": "measure", "node": "node-1", "request_id": 1, "worker": 1, "target": "",
        "request_kind": "", "scheduled_ns": None, "sent_ns": listened.now_ns - 12_345_679, "first_byte_ns": None,
        "done_ns": listened.now_ns, "rows": 0, "request_bytes": 0, "response_bytes": 99, "outcome": "ok",
        "method": "POST", "name": "/login", "detail": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sent_ms", "phase"),
    [(0, "warmup"), (99, "warmup"), (100, "measure"), (299, "measure"), (300, "drain"), (900, "drain")],
)
def test_the_phase_is_that_of_the_send(listened: Listened, sent_ms: int, phase: str) -> None:
    listened.now_ns = START_NS + (sent_ms + 50) * MS
    listened.hear(response_time=50.0)
    assert [row["phase"] for row in listened.found()] == [phase]


def test_ids_are_those_of_this_worker_alone_and_users_of_triton_take_from_the_same(
    listened: Listened,
) -> None:
    listened.hear()
    taken = listened.rows.next_id()
    listened.hear()
    assert [row["request_id"] for row in listened.found()] == [1, 7]
    assert taken == 4


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://10.0.0.1:8000/v2/models/mlp/infer?x=1", "server-0"),
        ("http://10.0.0.2:8000", "server-1"),
        ("http://10.0.0.2:80001/", ""),
        ("https://example.org/a", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_server_is_known_by_the_url(listened: Listened, url: str | None, target: str) -> None:
    listened.hear(url=url)
    assert [row["target"] for row in listened.found()] == [target]


def test_a_user_of_triton_says_what_the_event_does_not(listened: Listened) -> None:
    listened.now_ns = START_NS + 200 * MS
    sent = Sent(40, 1, 1, 8, 4_096, "rejected", "503 full", START_NS + 190 * MS)
    listened.hear(context={SENT_KEY: sent}, exception=RuntimeError("full"), response_time=20.0)
    (row,) = listened.found()
    assert (row["request_id"], row["target"], row["request_kind"], row["rows"]) == (
        40,
        "server-1",
        "other",
        8,
    )
    assert (row["outcome"], row["detail"], row["request_bytes"]) == ("rejected", "503 full", 4_096)
    assert (row["sent_ns"], row["done_ns"]) == (START_NS + 170 * MS, START_NS + 190 * MS)
    assert listened.rows.n_failures == 1


def test_what_locust_does_not_count_has_no_row(listened: Listened) -> None:
    listened.rows.end()
    listened.hear()
    assert listened.found() == []
    listened.rows.begin()
    listened.hear(response_time=None, response_length=None, name=b"odd", request_type=None)
    (row,) = listened.found()
    assert (row["sent_ns"], row["response_bytes"], row["name"], row["method"]) == (None, 0, "b'odd'", "None")


class CatchResponseError(Exception):
    """As Locust names it."""


def test_the_words_of_a_failure_are_locusts_and_one_line(listened: Listened) -> None:
    listened.hear(exception=CatchResponseError("Got\n  wrong   response"))
    listened.hear(exception=ValueError("x" * 2_000))
    listened.hear(exception="a text")
    first, second, third = listened.found()
    assert (first["outcome"], first["detail"]) == ("bad_reply", "Got wrong response")
    assert len(second["detail"]) == 500
    assert (third["outcome"], third["detail"]) == ("bad_reply", "'a text'")
    assert listened.rows.n_failures == 3


def test_a_length_that_is_no_whole_number_has_a_row_too(listened: Listened) -> None:
    listened.rows.begin()
    listened.hear(response_length=3.5)
    assert [row["response_bytes"] for row in listened.found()] == [3]


@pytest.mark.parametrize("response_time", [-5.0, 1e15, float("inf"), float("nan")])
def test_a_response_time_that_no_clock_shows_is_none(listened: Listened, response_time: float) -> None:
    listened.hear(response_time=response_time)
    (row,) = listened.found()
    assert (row["sent_ns"], row["done_ns"]) == (None, listened.now_ns)
