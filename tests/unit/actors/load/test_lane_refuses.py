"""The C lane looks at what it is told of sequences: each entry point refuses what would lead it out of bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from squall.actors.load.lane import IS_BUILT
from tests.unit.actors.load.test_lane_refusals import HEAD, N_BYTES, NEVER_NS, TAIL, Bench

pytestmark = pytest.mark.skipif(
    not IS_BUILT, reason="the lane is not built: no C compiler was there at the install"
)
LEAST_ID = 10**18
N_BETWEEN = 30
FOUR_TEXTS = bytes(4 * N_BETWEEN)
USERS = (LEAST_ID, lambda _, first: np.full(64, 2 + first % 2, np.int32).tobytes())


def columns(*changes: tuple[int, Any]) -> tuple[Any, ...]:
    """Two arrivals of one sequence."""
    values = [np.array([LEAST_ID]), np.zeros(2, np.int32), np.array([1, 2], np.uint8)]
    for place, value in changes:
        values[place] = value
    return tuple(values)


class SequenceBench(Bench):
    """A lane whose requests are of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.lane.close()
        self.lane = self.made()
        self.set_sequences()
        assert self.lane.add_template(HEAD, TAIL, 1, N_BYTES + N_BETWEEN, 0, 0, 0) == 0

    def set_sequences(self, *changes: tuple[int, Any]) -> None:
        values: list[Any] = [FOUR_TEXTS, 0, False, True, True, 1]
        for place, value in changes:
            values[place] = value
        self.lane.set_sequences(*values)


@pytest.fixture
def bench() -> Iterator[SequenceBench]:
    bench = SequenceBench()
    yield bench
    bench.lane.close()
    bench.epoll.close()
    for one in bench.sockets:
        one.close()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ((0, bytes(4 * N_BETWEEN + 1)), ValueError, "four texts of one length"),
        ((0, bytes(4 * 18)), ValueError, "bytes behind an id: 18"),
        ((0, b""), ValueError, "bytes behind an id: 0"),
        ((0, "text"), TypeError, "bytes-like"),
        ((1, -1), ValueError, "id stands: -1"),
        ((1, N_BETWEEN - 18), ValueError, "id stands: 12 is not from 0 to 11"),
        ((5, 65_536), ValueError, "code of a detail"),
        ((5, -1), ValueError, "code of a detail: -1"),
    ],
)
def test_requests_are_not_made_of(
    bench: SequenceBench, change: tuple[int, Any], error: Any, words: str
) -> None:
    bench.lane.close()
    bench.lane = bench.made()
    with pytest.raises(error, match=words):
        bench.set_sequences(change)
    bench.set_sequences()  # nothing of it was kept
    with pytest.raises(ValueError, match="given once, before the first template"):
        bench.set_sequences()
    with pytest.raises(ValueError, match="given once"):
        bench.lane.set_between(b"x", bytes(120))


def test_what_stands_behind_an_id_is_told_before_the_first_template(bench: SequenceBench) -> None:
    plain = Bench()
    bench.sockets += plain.sockets
    with pytest.raises(ValueError, match="before the first template"):
        plain.lane.set_sequences(FOUR_TEXTS, 0, False, True, True, 1)
    plain.lane.close()
    plain.epoll.close()


@pytest.mark.parametrize(
    ("sequences", "error", "words"),
    [
        (None, ValueError, "where requests are of any"),
        (5, TypeError, "sequences: not"),
        ((1, 2), TypeError, "exactly 3|takes"),
        (columns((0, np.array([LEAST_ID - 1]))), ValueError, "a sequence's id"),
        (columns((0, np.array([1.5]))), TypeError, "ids: not one column"),
        (columns((0, np.zeros(0, np.int64))), ValueError, "arrival 0: no such sequence"),
        (columns((1, np.zeros(3, np.int32))), ValueError, "sequences differ in length"),
        (columns((1, np.array([0, 1], np.int32))), ValueError, "arrival 1: no such sequence"),
        (columns((1, np.array([-1, 0], np.int32))), ValueError, "arrival 0: no such sequence"),
        (columns((2, np.array([0, 4], np.uint8))), ValueError, "arrival 1: no such mark"),
        (columns((2, np.zeros(1, np.int8))), TypeError, "marks: not one column"),
        (columns((2, np.zeros(1, np.uint8))), ValueError, "sequences differ in length"),
    ],
)
def test_no_plan_begins_with(bench: SequenceBench, sequences: Any, error: Any, words: str) -> None:
    values = [10**18, np.arange(2), np.arange(2), np.zeros(2, np.uint8), np.zeros(2, np.int32)]
    with pytest.raises(error, match=words):
        bench.lane.begin_open(*values, sequences)
    assert bench.lane.next_ns == NEVER_NS
    with pytest.raises(ValueError, match="arrival 1: its token is not above"):
        bench.lane.begin_open(*values[:2], np.zeros(2, np.int64), *values[3:], columns())
    bench.lane.begin_open(*values, columns())  # nothing of it was kept


@pytest.mark.parametrize(
    ("sequences", "error", "words"),
    [
        (None, ValueError, "where requests are of any"),
        (5, TypeError, "sequences: not"),
        ((LEAST_ID,), TypeError, "exactly 2|takes"),
        ((LEAST_ID - 1, USERS[1]), ValueError, "a sequence's id"),
        ((2**63 - 1, USERS[1]), ValueError, "a sequence's id"),
        ((LEAST_ID, None), TypeError, "lengths cannot be called"),
        ((LEAST_ID, lambda *_: None), TypeError, "bytes"),
        ((LEAST_ID, lambda *_: b""), ValueError, "lengths of a user's sequences: not 1 to 64"),
        ((LEAST_ID, lambda *_: bytes(4)), ValueError, "lengths of a user's sequences"),
        ((LEAST_ID, lambda *_: bytes(3)), ValueError, "lengths of a user's sequences"),
        ((LEAST_ID, lambda *_: b"\1\0\0\0" * 65), ValueError, "lengths of a user's sequences"),
        ((LEAST_ID, lambda *_: b"\xff" * 4), ValueError, "lengths of a user's sequences"),
        ((LEAST_ID, lambda *_: 1 / 0), ZeroDivisionError, "division"),
    ],
)
def test_no_users_begin_with(bench: SequenceBench, sequences: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        bench.begin_closed((5, sequences))


def test_plain_requests_are_of_no_sequence() -> None:
    plain = Bench()
    values = [10**18, np.arange(2), np.arange(2), np.zeros(2, np.uint8), np.zeros(2, np.int32)]
    with pytest.raises(ValueError, match="and only there"):
        plain.lane.begin_open(*values, columns())
    with pytest.raises(ValueError, match="and only there"):
        plain.begin_closed((5, USERS))
    plain.begin_closed()
    for ask in (plain.lane.turn_of, lambda token: plain.lane.passed(token, True)):
        with pytest.raises(ValueError, match="request 0 is of no sequence here"):
            ask(0)
    assert plain.lane.held_back() == []
    with pytest.raises(ValueError, match="no such user of sequences"):
        plain.lane.left_out(0, 1)
    plain.lane.close()
    plain.epoll.close()


def test_only_requests_of_the_plan_are_asked_for_and_end(bench: SequenceBench) -> None:
    values = [10**18, np.arange(2), np.arange(2), np.zeros(2, np.uint8), np.zeros(2, np.int32)]
    with pytest.raises(ValueError, match="is of no sequence here"):
        bench.lane.turn_of(0)
    bench.lane.begin_open(*values, columns())
    for token in (-1, 2, 10**12):
        with pytest.raises(ValueError, match="is of no sequence here"):
            bench.lane.turn_of(token)
        with pytest.raises(ValueError, match="is of no sequence here"):
            bench.lane.passed(token, True)
    with pytest.raises(ValueError, match="request 0: no request of its sequence is in flight"):
        bench.lane.passed(0, True)
    assert bench.lane.take()[2] == 0
    assert bench.lane.passed(0, False) == []
    assert bench.lane.turn_of(1) == (1, 0)
    fd = bench.park_grpc()
    with pytest.raises(ValueError, match="request 7 is of no sequence here"):
        bench.lend(fd)
    assert bench.lane.n_in_flight == 0
    bench.lend(fd, (2, 1))
    assert bench.lane.n_in_flight == 1


def test_only_what_python_has_of_a_user_is_left_out(bench: SequenceBench) -> None:
    bench.begin_closed((5, USERS))
    for user in (-1, 0, 2):
        with pytest.raises(ValueError, match="its request is not Python's"):
            bench.lane.left_out(user, 1)
    at_ns, _, token, *_ = bench.lane.take()
    with pytest.raises(ValueError, match="the instant it was due: -1"):
        bench.lane.left_out(0, -1)
    bench.lane.left_out(0, at_ns)
    assert [bench.lane.take()[2] for _ in range(2)] == [token + 3, 2]
    with pytest.raises(ValueError, match="is of no sequence here"):
        bench.lane.turn_of(1)
    assert bench.lane.turn_of(2) == (0, 0)


def test_nothing_is_asked_of_a_lane_that_is_closed(bench: SequenceBench) -> None:
    bench.lane.close()
    asks: list[Any] = [
        lambda: bench.lane.turn_of(0), lambda: bench.lane.passed(0, True), bench.lane.held_back,
        lambda: bench.lane.left_out(0, 1), bench.set_sequences,
    ]  # fmt: skip
    for ask in asks:
        with pytest.raises(ValueError, match="closed"):
            ask()
