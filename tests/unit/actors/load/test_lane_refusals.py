"""The C lane looks at what it is given: each entry point refuses, in words, what would lead it out of bounds."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from squall.actors.load.lane import IS_BUILT
from squall.actors.load.recorder import _PACK, _RECORD, RECORD_FIELDS, ROW_BYTES

if IS_BUILT:
    from squall.actors._lane import Lane

pytestmark = pytest.mark.skipif(
    not IS_BUILT, reason="the lane is not built: no C compiler was there at the install"
)
NEVER_NS = 2**63 - 1
HEAD, TAIL = b'{"id":"', b'"}'
N_BYTES = len(HEAD) + 12 + len(TAIL)
NAN = float("nan")


class Bench:
    """A lane with one template, and sockets to park."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.sockets: list[socket.socket] = []
        self.filled: list[tuple[Any, int]] = []
        self.lane = self.made()
        assert self.lane.add_template(HEAD, TAIL, 1, N_BYTES, 0, 0, 0) == 0

    def made(self, *changes: tuple[int, Any], **named: Any) -> Any:
        """A lane, with other arguments at the places that `changes` says."""
        values: list[Any] = [
            self.epoll.fileno(), 0, self.swap, bytearray(4 * ROW_BYTES), ROW_BYTES, RECORD_FIELDS, 0, 2
        ]  # fmt: skip
        for place, value in changes:
            values[place] = value
        return Lane(*values, **named)

    def swap(self, buffer: Any, n_rows: int) -> bytearray:
        self.filled.append((buffer, n_rows))
        return bytearray(4 * ROW_BYTES)

    def fresh(self) -> int:
        ours, theirs = socket.socketpair()
        self.sockets += [ours, theirs]
        self.epoll.register(ours.fileno(), select.EPOLLIN)
        return ours.fileno()

    def peer(self) -> socket.socket:
        """The other end of the last socket."""
        return self.sockets[-1]

    def park_grpc(self, *changes: tuple[int, Any]) -> int:
        fd = self.fresh()
        values: list[Any] = [fd, self, b"block", [b"h"], [b"t"], (5, 65_535, 0, 0), 65_535, 16_384, 100, 0]
        for place, value in changes:
            values[place] = value
        self.lane.park_grpc(*values)
        return fd

    def begin_open(self, n: int = 2, *changes: tuple[int, Any]) -> None:
        """Arrivals long after this test."""
        values: list[Any] = [
            10**18, np.arange(n, dtype=np.int64), np.arange(n, dtype=np.int64), np.zeros(n, np.uint8),
            np.zeros(n, np.int32),
        ]  # fmt: skip
        for place, value in changes:
            values[place] = value
        self.lane.begin_open(*values)

    def begin_closed(self, *changes: tuple[int, Any], think_ns: int = 0) -> None:
        """Users 0 and 2 of 3, who send at once and for ever."""
        values: list[Any] = [
            0, np.array([0, 2], np.int64), 3, lambda _, phase, free_ns: (free_ns, phase, 10**18),
            lambda _: (np.full(2, think_ns).tobytes(), bytes(8)), None,
        ]  # fmt: skip
        for place, value in changes:
            values[place] = value
        self.lane.begin_closed(*values)

    def lend(self, fd: int, *changes: tuple[int, Any]) -> None:
        values: list[Any] = [fd, 1, 7, 100, -1, 0, 0, 0, 110, -1, 0]
        for place, value in changes:
            values[place] = value
        self.lane.lend(*values)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    with suppress(RuntimeError):
        bench.lane.close()
    bench.epoll.close()
    for one in bench.sockets:
        one.close()


def fields(place: int, *field: Any) -> tuple[Any, ...]:
    return RECORD_FIELDS[:place] + field + RECORD_FIELDS[place + 1 :]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ((1, -1), ValueError, "spin_ns: -1"),
        ((2, None), TypeError, "swap cannot be called"),
        ((3, bytes(4 * ROW_BYTES)), BufferError, "not writable"),
        ((3, None), TypeError, "bytes-like"),
        ((3, bytearray()), ValueError, "does not hold whole records"),
        ((3, bytearray(ROW_BYTES - 1)), ValueError, "does not hold whole records"),
        ((3, np.zeros((ROW_BYTES, 2), np.uint8)[:, 0]), ValueError, "contiguous"),
        ((4, ROW_BYTES + 4), ValueError, "in 66 bytes"),
        ((5, None), TypeError, "not a tuple"),
        ((5, RECORD_FIELDS[:-1]), ValueError, "has 12 fields"),
        ((5, fields(3, "first_byte_ns")), TypeError, "not \\(name, type, offset\\)"),
        ((5, fields(3, ("first_ns", "<i8", 24))), ValueError, "first_ns <i8 at byte 24 where .* first_byte_ns"),
        ((5, fields(6, ("rows", "<i8", 48))), ValueError, "rows <i8 at byte 48 where .* rows <i4 at 48"),
        ((5, fields(9, ("outcome", "|u1", 58))), ValueError, "outcome .u1 at byte 58"),
        ((7, 0), ValueError, "targets: 0"),
        ((7, 65), ValueError, "targets: 65"),
        ((6, 256), ValueError, "code of an outcome: 256"),
        ((6, -1), ValueError, "code of an outcome: -1"),
    ],
)  # fmt: skip
def test_a_lane_is_not_made_of(bench: Bench, change: tuple[int, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        bench.made(change)


def test_a_lane_takes_no_names(bench: Bench) -> None:
    with pytest.raises(TypeError, match="named"):
        bench.made(ok_code=1)


def test_what_is_packed_row_by_row_reads_as_the_records_that_both_know() -> None:
    values = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    assert np.frombuffer(_PACK.pack(*values), _RECORD)[0].tolist() == values


def table(*place: int) -> Any:
    """Of one template: number of its head, begin and length of its tail, rows, layout."""
    return np.array([place], np.int64)


NO_PLACE = "the table names heads, tails, rows or layouts that there are not"


@pytest.mark.parametrize(
    ("method", "values", "error", "words"),
    [
        ("add_template", (HEAD, TAIL, 1, N_BYTES + 1, 0, 0, 0), ValueError, "is not of"),
        ("add_template", (HEAD, TAIL, 1, -N_BYTES, 0, 0, 0), ValueError, "is not of"),
        ("add_template", (HEAD, TAIL, -1, N_BYTES, 0, 0, 0), ValueError, "rows of a request: -1"),
        ("add_template", (HEAD, TAIL, 1, N_BYTES, -1, 0, 0), ValueError, "check_every: -1"),
        ("add_template", (HEAD, TAIL, 2**31, N_BYTES, 0, 0, 0), OverflowError, "int|large|greater"),
        ("add_template", ("text", TAIL, 1, N_BYTES, 0, 0, 0), TypeError, "bytes-like"),
        ("add_template", (HEAD, TAIL, 1, N_BYTES, 0, 0, 2), ValueError, "a layout: 2 is not from 0 to 1"),
        ("add_template", (HEAD, TAIL, 1, N_BYTES, 0, 0, -1), ValueError, "a layout: -1 is not from 0 to 1"),
        ("add_templates", (TAIL, [HEAD], table(0, 0, 1, 1, 0), 0, 2, 1), ValueError, "a target: 2"),
        ("add_templates", (TAIL, [HEAD], table(0, 0, 1, 1, 0), -1, 0, 1), ValueError, "check_every: -1"),
        ("add_templates", (TAIL, [HEAD], table(0, 0, 1, 1, 0), 0, 0, -1), ValueError, "layouts: -1"),
        (
            "add_templates",
            (TAIL, [HEAD], table(0, 0, 1, 1, 0), 0, 0, 1, 256),
            ValueError,
            "a kind: 256 is not",
        ),
        ("add_templates", (TAIL, [HEAD], table(0, 0, 1, 1, 0), 0, 0, 1, -1), ValueError, "a kind: -1 is not"),
        (
            "add_templates",
            (TAIL, [HEAD], table(0, 0, 1, 1, 0)[:, :4].tobytes(), 0, 0, 1),
            ValueError,
            NO_PLACE,
        ),
        ("add_templates", (TAIL, [HEAD], table(1, 0, 1, 1, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(-1, 0, 1, 1, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(0, -1, 1, 1, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(0, len(TAIL), 1, 1, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(0, 2**63 - 1, 2, 1, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(0, 0, len(TAIL) + 1, 1, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(0, 0, -1, 1, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(0, 0, 1, -1, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(0, 0, 1, 2**31, 0), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD], table(0, 0, 1, 1, 1), 0, 0, 1), ValueError, NO_PLACE),
        ("add_templates", (TAIL, [HEAD, "x"], table(0, 0, 1, 1, 0), 0, 0, 1), TypeError, "bytes"),
        ("add_templates", (TAIL, (HEAD,), table(0, 0, 1, 1, 0), 0, 0, 1), TypeError, "list"),
        ("add_templates", ("text", [HEAD], table(0, 0, 1, 1, 0), 0, 0, 1), TypeError, "bytes-like"),
        ("know_layout", (1, b"", b"", 12, 0), ValueError, "no such layout"),
        ("know_layout", (-1, b"", b"", 12, 0), ValueError, "no such layout"),
        ("know_layout", (0, b"ab", b"", 13, 0), ValueError, "longer than its reply"),
        ("know_layout", (0, b"", b"", 2**31, 0), ValueError, "bytes of a reply"),
        ("know_layout", (0, b"", b"", -1, 0), ValueError, "bytes of a reply: -1"),
        ("know_layout", (0, b"", b"", 12, 13), ValueError, "bytes of its JSON"),
        ("add_template", (HEAD, TAIL, 1, N_BYTES, 0, 2, 0), ValueError, "a target: 2 is not from 0 to 1"),
        ("know_head", (b"", 0, 12, 0), ValueError, "bytes of a head"),
        ("know_head", (bytes(65_537), 0, 12, 0), ValueError, "bytes of a head"),
        ("know_head", (b"HTTP", 0, -1, 0), ValueError, "bytes of a reply: -1"),
        ("know_head", (b"HTTP", -1, 12, 0), ValueError, "bytes of its JSON: -1"),
        ("know_head", (b"HTTP", 0, 12, -1), ValueError, "a target: -1"),
        ("expire", (0, bytes(9)), ValueError, "9 bytes are no int64"),
        ("n_done_by", (2,), ValueError, "a target: 2"),
        ("landed", (2,), ValueError, "a target: 2"),
        ("landed", (-1,), ValueError, "a target: -1"),
        ("choose_by", (0, 1), ValueError, "a rule: 0"),
        ("choose_by", (3, 1), ValueError, "a rule: 3"),
        ("choose_by", (1, 2), ValueError, "kinds of requests: 2"),
        ("choose_by", (1, -1), ValueError, "kinds of requests: -1"),
        ("choose_by", (1, 1), ValueError, "not the same kinds for each server"),
        ("n_done_by", (-1,), ValueError, "a target: -1"),
        ("set_waiting", (0, 2), ValueError, "a target: 2"),
        ("set_waiting", (-1, 0), ValueError, "requests that wait: -1"),
        ("set_waiting", (2**63, 0), OverflowError, "int|large|greater"),
        ("set_others", (0, -1), ValueError, "a target: -1"),
        ("set_others", (-1, 0), ValueError, "other connections: -1"),
        ("set_others", (2**32, 0), ValueError, "other connections"),
        ("turn", (NAN,), TypeError, "int"),
        ("ended", (0, 1), ValueError, "user 0: no such user"),
        ("take", (), IndexError, "no arrival is left"),
    ],
)
def test_an_entry_point_refuses(
    bench: Bench, method: str, values: tuple[Any, ...], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        getattr(bench.lane, method)(*values)


@pytest.mark.parametrize("fd", [-1, 2**31 - 1, "pipe", "epoll", "datagram"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_only_stream_sockets_are_parked(bench: Bench, protocol: str, fd: int | str) -> None:
    if fd == "datagram":
        bench.sockets += socket.socketpair(type=socket.SOCK_DGRAM)
        fd = bench.sockets[-1].fileno()
    elif fd == "epoll":
        fd = bench.epoll.fileno()
    elif fd == "pipe":
        fd = 0
    with pytest.raises(ValueError, match="it is no stream socket"):
        bench.lane.park_http(fd, bench, 0) if protocol == "http" else bench.park_grpc((0, fd))


def test_no_connection_is_parked_twice(bench: Bench) -> None:
    fd = bench.fresh()
    bench.lane.park_http(fd, bench, 0)
    with pytest.raises(ValueError, match="parked already"):
        bench.lane.park_http(fd, bench, 0)
    assert [stray[0] for stray in bench.lane.reclaim(fd)] == [bench]


@pytest.mark.parametrize("first", ["http", "grpc"])
def test_a_lane_has_connections_of_one_protocol(bench: Bench, first: str) -> None:
    def park_http() -> None:
        bench.lane.park_http(bench.fresh(), bench, 0)

    ways: list[Callable[[], Any]] = [park_http, bench.park_grpc]
    for way in ways if first == "http" else ways[::-1]:
        if way is (ways[0] if first == "http" else ways[1]):
            way()
        else:
            with pytest.raises(ValueError, match="the other protocol"):
                way()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ((2, b""), ValueError, "header block"),
        ((2, bytes(16_385)), ValueError, "header block"),
        ((3, (b"h",)), TypeError, "heads: not a list of bytes"),
        ((3, ["h"]), TypeError, "heads: not a list of bytes"),
        ((4, [b"t", None]), TypeError, "trailers: not a list of bytes"),
        ((5, (0, 0, 0, 0)), ValueError, "next stream: 0"),
        ((5, (2, 0, 0, 0)), ValueError, "2 is even"),
        ((5, (2**31 + 1, 0, 0, 0)), ValueError, "next stream"),
        ((5, (1, -1, 0, 0)), ValueError, "connection's window: -1"),
        ((5, (1, 2**31, 0, 0)), ValueError, "connection's window"),
        ((5, (1, 0, -1, 0)), ValueError, "bytes received: -1"),
        ((5, (1, 0, 0, 1_001)), ValueError, "frames without use: 1001"),
        ((6, -1), ValueError, "stream's window: -1"),
        ((7, 0), ValueError, "bytes of a frame: 0"),
        ((7, 1 << 24), ValueError, "bytes of a frame"),
        ((8, -1), ValueError, "most streams: -1"),
        ((9, 2), ValueError, "a target: 2"),
    ],
)
def test_no_grpc_connection_is_parked_with(
    bench: Bench, change: tuple[int, Any], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        bench.park_grpc(change)
    bench.park_grpc()  # nothing of it was kept


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ((0, -1), "no such connection"), ((0, 2**30), "no such connection"),
        ((1, 0), "no stream"), ((1, 2), "no stream"), ((1, 5), "no stream"), ((1, 2**32 + 1), "no stream"),
        ((2, -1), "a token: -1"), ((2, 10**12), "a token"), ((3, -1), "due: -1"), ((3, NEVER_NS), "due"),
        ((4, -2), "scheduled instant: -2"), ((5, 256), "a phase: 256"), ((5, -1), "a phase: -1"),
        ((6, 1), "no such template"), ((6, -1), "no such template"), ((7, 1), "no such user"),
        ((7, -1), "no such user"), ((8, -1), "its send: -1"), ((9, -2), "its head: -2"), ((10, 2), "has_head: 2"),
        ((10, 1), "its head: -1"),
    ],
)  # fmt: skip
def test_no_call_is_lent_with(bench: Bench, change: tuple[int, Any], words: str) -> None:
    bench.begin_open()
    fd = bench.park_grpc()
    with pytest.raises(ValueError, match=words):
        bench.lend(fd, change)
    assert bench.lane.n_in_flight == 0


def test_a_call_that_was_lent_comes_back_as_it_was(bench: Bench) -> None:
    bench.begin_open()
    fd = bench.park_grpc()
    bench.lend(fd, (1, 3), (5, 255), (9, 120), (10, 1))
    [(owner, lost, data, _, unsent, state, flights)] = bench.lane.reclaim(fd)
    assert (owner, lost, data, unsent, state) == (bench, -1, b"", b"", (5, 65_535, 0, 0))
    assert flights == [(7, 100, -1, 255, 0, 110, 120, 3, 1, b"")]


def test_no_stream_is_lent_twice(bench: Bench) -> None:
    bench.begin_open()
    fd = bench.park_grpc()
    bench.lend(fd)
    with pytest.raises(ValueError, match="the stream has a call"):
        bench.lend(fd)


def test_an_http_connection_is_lent_no_call(bench: Bench) -> None:
    bench.begin_open()
    fd = bench.fresh()
    bench.lane.park_http(fd, bench, 0)
    with pytest.raises(ValueError, match="an HTTP connection"):
        bench.lend(fd)


def test_no_call_is_lent_to_another_server(bench: Bench) -> None:
    template = bench.lane.add_template(HEAD, TAIL, 1, N_BYTES, 0, 1, 1)
    bench.begin_open()
    fd = bench.park_grpc()
    with pytest.raises(ValueError, match="for another server"):
        bench.lend(fd, (6, template))


def test_nothing_is_lent_before_the_beginning(bench: Bench) -> None:
    fd = bench.park_grpc()
    with pytest.raises(ValueError, match="nothing has begun"):
        bench.lend(fd)


def misaligned(n: int, dtype: Any) -> Any:
    size = np.dtype(dtype).itemsize
    raw = np.zeros(n * size + 16, np.uint8)
    start = -raw.ctypes.data % size + 1
    return raw[start : start + n * size].view(dtype)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ((0, -1), ValueError, "the start: -1"),
        ((0, NEVER_NS), ValueError, "the start"),
        ((1, np.zeros(2)), TypeError, "offsets: not one column of integers of 8 bytes"),
        ((1, np.zeros(2, np.uint64)), TypeError, "offsets: not one column"),
        ((1, np.zeros(2, ">i8")), TypeError, "offsets: not one column"),
        ((1, np.zeros(2, np.int32)), TypeError, "offsets: not one column"),
        ((1, np.zeros((2, 1), np.int64)), TypeError, "offsets: not one column"),
        ((1, np.zeros(4, np.int64)[::2]), ValueError, "contiguous"),
        ((1, misaligned(2, np.int64)), ValueError, "not aligned to 8 bytes"),
        ((1, bytes(16)), TypeError, "offsets: not one column"),
        ((1, np.zeros(1, np.int64)), ValueError, "differ in length"),
        ((1, np.zeros(3, np.int64)), ValueError, "differ in length"),
        ((1, np.array([1, 0])), ValueError, "arrival 1: it is before the one before it"),
        ((1, np.array([-1, 0])), ValueError, "arrival 0: it is before"),
        ((1, np.array([0, NEVER_NS])), ValueError, "arrival 1: it is later than a clock can say"),
        ((2, np.zeros(3, np.int64)), ValueError, "differ in length"),
        ((2, np.array([0, -1])), ValueError, "arrival 1: its token"),
        ((2, np.array([10**12, 0])), ValueError, "arrival 0: its token"),
        ((3, np.zeros(2, np.int8)), TypeError, "phases: not one column of integers of 1 bytes"),
        ((3, np.zeros(1, np.uint8)), ValueError, "differ in length"),
        ((4, np.zeros(2, np.float32)), TypeError, "templates: not one column of integers of 4 bytes"),
        ((4, misaligned(2, np.int32)), ValueError, "not aligned to 4 bytes"),
        ((4, np.zeros(1, np.int32)), ValueError, "differ in length"),
        ((4, np.array([0, 1], np.int32)), ValueError, "arrival 1: no such template"),
        ((4, np.array([-1, 0], np.int32)), ValueError, "arrival 0: no such template"),
    ],
)
def test_no_plan_begins_with(bench: Bench, change: tuple[int, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        bench.begin_open(2, change)
    assert bench.lane.next_ns == NEVER_NS
    bench.begin_open()  # nothing of it was kept


def test_templates_that_are_changed_after_they_were_checked_are_not_those_that_are_used(bench: Bench) -> None:
    templates = np.zeros(2, np.int32)
    bench.begin_open(2, (4, templates))
    templates[:] = 2**30
    assert bench.lane.take() == (10**18, 10**18, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ((0, -1), ValueError, "the start: -1"),
        ((1, np.zeros(2)), TypeError, "users: not one column"),
        ((1, bytes(9)), TypeError, "users: not one column"),
        ((1, np.array([0, 3])), ValueError, "user 3 is not among 3"),
        ((1, np.array([-1, 0])), ValueError, "user -1"),
        ((1, np.array([1, 1])), ValueError, "user 1 .* out of order"),
        ((2, 2**31), ValueError, "users of all workers"),
        ((2, -1), ValueError, "users of all workers"),
        ((3, None), TypeError, "enter cannot be called"),
        ((4, 1), TypeError, "refill cannot be called"),
        ((3, lambda *_: 5), TypeError, "a user's phase: not"),
        ((3, lambda *_: (0, 256, 1)), ValueError, "a user's phase: 256"),
        ((3, lambda *_: (0, -1, 1)), ValueError, "a user's phase: -1"),
        ((3, lambda *_: (-1, 0, 1)), ValueError, "first send: -1"),
        ((3, lambda *_: (0, 0, NEVER_NS)), ValueError, "the end of a user's phase"),
        ((4, lambda _: None), TypeError, "a user's steps: not"),
        ((4, lambda _: (b"", b"")), ValueError, "a user's steps: not 1 to 64"),
        ((4, lambda _: (bytes(2), bytes(1))), ValueError, "a user's steps: not 1 to 64"),
        ((4, lambda _: (bytes(16), bytes(4))), ValueError, "a user's steps: not 1 to 64"),
        ((4, lambda _: (bytes(8 * 65), bytes(4 * 65))), ValueError, "a user's steps: not 1 to 64"),
        ((4, lambda _: (b"\xff" * 8, bytes(4))), ValueError, "a user's steps: not 1 to 64"),
        ((4, lambda _: (bytes(8), b"\1\0\0\0")), ValueError, "a user's steps: not 1 to 64"),
    ],
)
def test_no_users_begin_with(bench: Bench, change: tuple[int, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        bench.begin_closed(change)


def test_what_the_lane_is_to_choose_is_named_for_the_first_server(bench: Bench) -> None:
    bench.lane.add_template(HEAD, TAIL, 1, N_BYTES, 0, 1, 1)
    bench.lane.choose_by(1, 1)
    with pytest.raises(ValueError, match="no such template"):
        bench.begin_open(2, (4, np.ones(2, np.int32)))
    bench.begin_open()
    with pytest.raises(ValueError, match="has begun"):
        bench.lane.choose_by(2, 1)


def test_the_lane_chooses_among_requests_of_each_server_in_turn_alone(bench: Bench) -> None:
    bench.lane.add_template(HEAD, TAIL, 1, N_BYTES, 0, 0, 0)
    with pytest.raises(ValueError, match="not the same kinds for each server"):
        bench.lane.choose_by(1, 1)


@pytest.mark.parametrize("second", ["begin_open", "begin_closed"])
@pytest.mark.parametrize("first", ["begin_open", "begin_closed"])
def test_a_lane_begins_once(bench: Bench, first: str, second: str) -> None:
    getattr(bench, first)()
    with pytest.raises(ValueError, match="begins once"):
        getattr(bench, second)()


def test_a_user_ends_no_more_requests_than_it_sent(bench: Bench) -> None:
    bench.begin_closed(think_ns=5)
    with pytest.raises(ValueError, match="user 1: no such user, or its request is not Python's"):
        bench.lane.ended(1, 10)
    assert [bench.lane.take()[2] for _ in range(2)] == [0, 2]
    bench.lane.ended(1, 10)
    with pytest.raises(ValueError, match="user 1"):
        bench.lane.ended(1, 10)
    for index, at_ns in ((2, 10), (-1, 10), (0, -1), (0, NEVER_NS)):
        with pytest.raises(ValueError, match=r"user|the instant of an end"):
            bench.lane.ended(index, at_ns)
    assert bench.lane.take()[0] == 15
    assert bench.lane.next_ns == NEVER_NS


def test_only_a_request_of_pythons_is_lent_for_a_user(bench: Bench) -> None:
    bench.begin_closed()
    fd = bench.park_grpc()
    with pytest.raises(ValueError, match="the user's request is not Python's"):
        bench.lend(fd)
    bench.lane.take()
    bench.lend(fd)
    with pytest.raises(ValueError, match="the user's request is not Python's"):
        bench.lend(fd, (1, 3))
    with pytest.raises(ValueError, match="user 0"):
        bench.lane.ended(0, 10)
    bench.lane.reclaim(fd)
    bench.lane.ended(0, 10)


def test_buffers_are_held_while_they_are_lent(bench: Bench) -> None:
    records = bytearray(4 * ROW_BYTES)
    plan = bytearray(16)
    lane = bench.made((3, records))
    lane.add_template(HEAD, TAIL, 1, N_BYTES, 0, 0, 0)
    columns = memoryview(plan).cast("q"), np.arange(2), np.zeros(2, np.uint8), np.zeros(2, np.int32)
    lane.begin_open(10**18, *columns)
    with pytest.raises(BufferError):
        columns[0].release()
    for buffer in (records, plan):
        with pytest.raises(BufferError):
            buffer.clear()
    lane.close()
    columns[0].release()
    records.clear()
    plan.clear()


HTTP_HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def served(bench: Bench) -> None:
    """One request of a user goes out over HTTP and is answered, as the lane knows it."""
    bench.lane.know_head(HTTP_HEAD, 0, 12, 0)
    bench.lane.know_layout(0, b"", b"", 12, 0)
    bench.lane.park_http(bench.fresh(), bench, 0)
    bench.lane.turn(0)
    request = bench.peer().recv(1_000)
    assert request.startswith(HEAD)
    bench.peer().send(HTTP_HEAD + request[len(HEAD) :][:12])
    bench.lane.turn(0)


SWAPS: list[tuple[Callable[..., Any], Any, str]] = [
    (lambda *_: None, TypeError, "bytes-like"),
    (lambda *_: bytes(ROW_BYTES), BufferError, "not writable"),
    (lambda *_: bytearray(), ValueError, "does not hold whole records"),
    (lambda *_: bytearray(ROW_BYTES + 1), ValueError, "does not hold whole records"),
    (lambda *_: 1 // 0, ZeroDivisionError, "zero"),
]


@pytest.mark.parametrize(("swap", "error", "words"), SWAPS)
def test_a_swap_that_gives_no_buffer_ends_the_lane_and_not_the_process(
    bench: Bench, swap: Callable[..., Any], error: Any, words: str
) -> None:
    bench.lane = bench.made((2, swap), (3, bytearray(ROW_BYTES)))
    bench.lane.add_template(HEAD, TAIL, 1, N_BYTES, 0, 0, 0)
    bench.begin_closed((1, np.array([0])))
    with pytest.raises(error, match=words):
        served(bench)
    with pytest.raises(RuntimeError, match="it was told why"):
        bench.lane.turn(0)


def test_a_smaller_buffer_is_filled_no_further_than_it_goes(bench: Bench) -> None:
    rooms = [4, 1, 2]
    given: list[int] = []

    def swap(buffer: Any, n_rows: int) -> bytearray:
        given.append(n_rows)
        assert len(buffer) >= n_rows * ROW_BYTES
        return bytearray(rooms[len(given) % 3] * ROW_BYTES)

    bench.lane = bench.made((2, swap))
    bench.lane.add_template(HEAD, TAIL, 1, N_BYTES, 0, 0, 0)
    bench.begin_closed((1, np.array([0])))
    served(bench)
    for _ in range(6):
        request = bench.peer().recv(1_000)
        bench.peer().send(HTTP_HEAD + request[len(HEAD) :][:12])
        bench.lane.turn(0)
    assert given == [4, 1, 2]


def test_a_lane_is_not_called_from_its_own_callbacks(bench: Bench) -> None:
    errors = []

    def enter(*_: int) -> None:
        for call in (bench.lane.halt, bench.lane.close, bench.lane.flush, bench.lane.take):
            with pytest.raises(RuntimeError, match="only its one thread") as caught:
                call()
            errors.append(caught)

    bench.begin_closed((3, enter))
    assert len(errors) == 8


def test_a_lane_is_not_called_by_a_second_thread_while_it_waits(bench: Bench) -> None:
    told = threading.Event()
    bench.fresh()
    ready: list[Any] = []

    def turn() -> None:
        told.set()
        ready.append(bench.lane.turn(NEVER_NS))

    thread = threading.Thread(target=turn)
    thread.start()
    told.wait()
    try:
        for _ in range(1_000_000):  # the thread has begun, and is about to wait
            try:
                bench.lane.n_due_by(0)
            except RuntimeError:
                break
        with pytest.raises(RuntimeError, match="only its one thread"):
            bench.lane.turn(0)
        assert bench.lane.n_in_flight == 0
    finally:
        bench.peer().send(b"x")
        thread.join()
    assert len(ready) == 1


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("turn", (0,)), ("expire", (0, b"")), ("reclaim", (3,)), ("park_http", (3, None, 0)), ("take", ()),
        ("add_template", (HEAD, TAIL, 1, N_BYTES, 0, 0, 0)), ("know_layout", (0, b"", b"", 12, 0)), ("halt", ()),
        ("choose_by", (1, 0)), ("landed", (0,)), ("know_head", (b"HTTP", 0, 12, 0)), ("set_waiting", (0, 0)),
        ("set_others", (0, 0)), ("ended", (0, 0)), ("n_due_by", (0,)),
    ],
)  # fmt: skip
def test_a_closed_lane_refuses(bench: Bench, method: str, values: tuple[Any, ...]) -> None:
    bench.begin_closed()
    bench.lane.close()
    with pytest.raises(ValueError, match="the lane is closed"):
        getattr(bench.lane, method)(*values)


def test_a_closed_lane_still_counts_and_has_nothing_to_hand_over(bench: Bench) -> None:
    bench.lane.close()
    bench.lane.close()
    bench.lane.flush()
    assert bench.lane.counts() == (0, 0, 0, 0, 0)
    assert (bench.lane.n_in_flight, bench.lane.next_ns, bench.filled) == (0, NEVER_NS, [])
