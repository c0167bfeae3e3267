"""Each way a server can answer or fail ends in its own outcome, and leaves the requests around it alone."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.worker import LoadWorker
from tests.fakes import Behaviour, Kind, StubTriton
from tests.golden.driving import (
    LARGE_SPEC,
    MS,
    REPLY_BYTES,
    S,
    assert_instants_hold,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    requests_of,
    run_worker,
    settings_of,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("way")
CLOSED = "the server closed the connection"
NO_JSON = "the reply's Inference-Header-Content-Length is not within its body"
EXPECTED: dict[Kind, tuple[str, str]] = {
    "answer": ("ok", ""),
    "bytewise": ("ok", ""),
    "connection_close": ("ok", ""),
    "garbage_after": ("ok", ""),
    "answer_twice": ("ok", ""),
    "rejected": ("rejected", "503 Exceeds maximum queue size"),
    "error": ("server_error", "500 stub: broken on purpose"),
    "bad_request": ("server_error", "400 stub: unexpected shape"),
    "hang": ("timeout", "no whole reply within the timeout"),
    "reset_mid_reply": ("transport_error", "Connection reset by peer"),
    "close": ("transport_error", CLOSED),
    "eof_body": ("ok", ""),
    "http_1_0": ("ok", ""),
    "error_200": ("bad_reply", "status 200 with an error: stub: in words only"),
    "huge_head": ("bad_reply", "malformed reply: its head is longer than 65536 bytes"),
    "upgrade": ("server_error", "101 "),
    "json_below_0": ("bad_reply", NO_JSON),
    "json_too_long": ("bad_reply", NO_JSON),
    "json_digits": ("bad_reply", NO_JSON),
    "wrong_id": ("bad_reply", "the reply does not carry the request's id"),
    "short_tensor": ("bad_reply", "the reply has 4 tensor bytes, the model's spec says 8"),
    "oversized": ("bad_reply", "the reply has 400008 tensor bytes, the model's spec says 8"),
}
FIFTH = 5  # every fifth request is served by the behaviour under test


def mixed(kind: Kind) -> StubTriton:
    return StubTriton(
        lambda request_id: Behaviour(kind if request_id % FIFTH == 0 else "answer"), REPLY_BYTES
    )


@pytest.mark.parametrize("kind", [*EXPECTED, "malformed"])
def test_a_behaviour_ends_in_its_own_outcome_and_disturbs_no_other_request(
    kind: Kind, tmp_path: Path
) -> None:
    plan = plan_of([i * 2 * MS for i in range(100)], 10 * S)
    timeout_ns = 5 * S if kind == "hang" else 10 * S  # a busy machine holds up those around it, too
    with mixed(kind) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, Rules(timeout_ns)), plan)
    assert_one_row_each(rows, plan)
    assert len(stub.seen.arrived_ns) == len(plan)
    ends = list(zip(column(rows, "outcome"), column(rows, "detail"), strict=True))
    assert [end for i, end in enumerate(ends) if i % FIFTH] == [("ok", "")] * 80
    touched = set(ends[::FIFTH])
    if kind == "malformed":
        ((outcome, detail),) = touched
        assert outcome == "bad_reply"
        assert str(detail).startswith("malformed reply: ")
    else:
        assert touched == {EXPECTED[kind]}


def test_a_reply_longer_than_allowed_fails_its_own_request(tmp_path: Path) -> None:
    plan = plan_of([i * 4 * MS for i in range(20)], 10 * S)
    with mixed("oversized") as stub:
        settings = replace(settings_of(tmp_path, stub.port), largest_reply_bytes=100_000)
        rows = run_worker(settings, plan)
    ends = list(zip(column(rows, "outcome"), column(rows, "detail"), strict=True))
    why = "the reply is larger than 100000 B: clients.largest_reply allows more"
    assert ends == [("bad_reply", why) if i % FIFTH == 0 else ("ok", "") for i in range(20)]


def test_the_instants_hold_the_servers_own_service_times(tmp_path: Path) -> None:
    services = [(i % 7) * 5 * MS for i in range(60)]
    plan = plan_of([i * 5 * MS for i in range(60)], 10 * S)
    with StubTriton(lambda i: Behaviour(service_s=services[i] / S), REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port), plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * 60
    assert_instants_hold(rows, stub.seen, services)
    replied = np.array([stub.seen.replied_ns[i] for i in range(60)])
    assert (replied < numbers(rows, "first_byte_ns")).all()  # over gRPC headers may come before
    assert (numbers(rows, "response_bytes") > REPLY_BYTES).all()


def test_a_request_timeout_is_told_within_a_check_and_its_connection_is_dropped(tmp_path: Path) -> None:
    timeout_ns = 1 * S
    # 0 hangs and is given up; 1 is answered after the client gave it up: its reply must reach nobody
    kinds = {0: Behaviour("hang"), 1: Behaviour(service_s=1.15)}
    # a busy machine takes 10 ms for each of the others, which must not wait so long that they are given up too
    plan = plan_of([0, 1 * MS, *(1_050 * MS + i * 10 * MS for i in range(20))], 10 * S)
    with StubTriton(lambda i: kinds.get(i, Behaviour()), REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, Rules(timeout_ns)), plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["timeout"] * 2 + ["ok"] * 20
    waited = (numbers(rows, "done_ns") - numbers(rows.slice(0), "sent_ns"))[:2]
    assert (waited >= timeout_ns - MS).all()
    assert column(rows, "first_byte_ns")[:2] == [None, None]
    assert stub.seen.n_connections >= 3


def test_a_timeout_after_half_a_reply_keeps_the_instant_of_its_first_byte(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    served = threading.Event()

    def serve_half() -> None:
        peer, _ = listener.accept()
        peer.recv(65_536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        served.wait(10)
        peer.close()

    server = threading.Thread(target=serve_half)
    server.start()
    plan = plan_of([0], 10 * S)
    settings = settings_of(tmp_path, listener.getsockname()[1], Rules(100 * MS), n_connections=1)
    rows = run_worker(settings, plan)
    served.set()
    server.join()
    listener.close()
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["timeout"]
    assert rows.column("first_byte_ns").null_count == 0


def test_a_server_that_went_away_fails_each_request_and_the_run_goes_on(tmp_path: Path) -> None:
    plan = plan_of([i * 10 * MS for i in range(40)], 10 * S)
    stub = StubTriton(lambda _: Behaviour("answer"), REPLY_BYTES)
    with stub:
        worker = LoadWorker(settings_of(tmp_path, stub.port), SystemClock())
        worker.prepare(plan)
    worker.run(time.monotonic_ns())
    rows = requests_of(settings_of(tmp_path, stub.port))
    assert_one_row_each(rows, plan)
    assert set(column(rows, "outcome")) == {"transport_error"}
    assert set(column(rows, "detail")) <= {CLOSED, "Connection reset by peer", "connect: Connection refused"}
    assert column(rows, "detail").count("connect: Connection refused") >= 38


def test_a_server_that_stops_reading_ends_large_requests_in_a_timeout(tmp_path: Path) -> None:
    plan = plan_of([0, MS, 2 * MS], 10 * S)
    with StubTriton(reads=False) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, Rules(200 * MS), spec=LARGE_SPEC), plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["timeout"] * 3
    assert min(numbers(rows, "request_bytes")) > 16 * 1024**2
