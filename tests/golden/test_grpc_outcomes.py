"""Over gRPC too, each way a server can answer or fail ends in its own outcome."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from squall.actors.load.engine import Rules
from squall.actors.net.http2 import CANCEL
from tests.fakes_grpc import GrpcBehaviour, GrpcKind, StubGrpc
from tests.golden.driving import (
    LARGE_SPEC,
    MS,
    REPLY_BYTES,
    S,
    assert_instants_hold,
    assert_one_row_each,
    column,
    plan_of,
    run_asking,
    run_worker,
    settings_of,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("way")
CLOSED = "the server closed the connection"
EXPECTED: dict[GrpcKind, tuple[str, str]] = {
    "answer": ("ok", ""),
    "bytewise": ("ok", ""),
    "split_headers": ("ok", ""),
    "padded": ("ok", ""),
    "ping_first": ("ok", ""),
    "goaway_graceful": ("ok", ""),
    "answer_twice": ("ok", ""),
    "rejected": ("rejected", "14 Exceeds maximum queue size"),
    "error": ("server_error", "13 stub: broken 100 % on purpose ñ"),
    "trailers_only": ("server_error", "13 stub: broken 100 % on purpose ñ"),
    "bad_request": ("server_error", "3 "),
    "not_grpc": ("server_error", "the reply has HTTP status 502"),
    "hang": ("timeout", "no whole reply within the timeout"),
    "rst_stream": ("transport_error", "the server reset the stream: INTERNAL_ERROR"),
    "goaway": ("transport_error", "the server went away before it took the request: "),
    "reset": ("transport_error", "Connection reset by peer"),
    "close": ("transport_error", CLOSED),
    "malformed": ("bad_reply", "malformed reply: "),
    "huge_headers": ("bad_reply", "malformed reply: its headers are longer than 65535 bytes"),
    "flood": ("bad_reply", "malformed reply: more than 1000 frames in a row that are of no use to a call"),
    "wrong_id": ("bad_reply", "the reply does not carry the request's id"),
    "short_tensor": ("bad_reply", "output OUTPUT "),
    "oversized": ("bad_reply", "output OUTPUT "),
    "no_status": ("bad_reply", "the reply has no grpc-status"),
    "compressed": ("bad_reply", "the reply is compressed, which was not asked for"),
    "no_message": ("bad_reply", "the reply has no message"),
    "two_messages": ("bad_reply", "the reply's message says "),
    "half_message": ("bad_reply", "the reply's message says "),
}
ENDS_THE_CONNECTION: tuple[GrpcKind, ...] = ("goaway", "reset", "close", "malformed", "huge_headers", "flood")
FIFTH = 5  # every fifth request is served by the behaviour under test


@pytest.mark.parametrize("kind", [one for one in EXPECTED if one not in ENDS_THE_CONNECTION])
def test_a_behaviour_ends_in_its_own_outcome_and_disturbs_no_other_request(
    kind: GrpcKind, tmp_path: Path
) -> None:
    plan = plan_of([i * 4 * MS for i in range(100)], 10 * S)
    rules = Rules(timeout_ns=2 * S if kind == "hang" else 30 * S)  # what answers may be slow on a busy host
    with StubGrpc(lambda i: GrpcBehaviour(kind if i % FIFTH == 0 else "answer"), REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port, rules, 5, protocol="grpc")
        rows = run_worker(settings, plan)
    assert_one_row_each(rows, plan)
    assert_ends(kind, rows, stub)
    if kind == "hang":
        assert set(stub.seen.resets.values()) == {CANCEL}


@pytest.mark.parametrize("kind", ENDS_THE_CONNECTION)
def test_what_ends_a_connection_ends_in_its_own_outcome_and_the_next_request_is_served(
    kind: GrpcKind, tmp_path: Path
) -> None:
    """One request at a time: others on a connection that ends may end with it."""
    with StubGrpc(lambda i: GrpcBehaviour(kind if i % FIFTH == 0 else "answer"), REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port, Rules(30 * S), 5, protocol="grpc")
        rows, _ = run_asking(settings, 100)
    assert len(rows) >= 100
    assert_ends(kind, rows.slice(0, 100), stub)


def assert_ends(kind: GrpcKind, rows: pa.Table, stub: StubGrpc) -> None:
    """Every fifth as the kind has it, all others ok."""
    assert stub.seen.faults == []
    ends = list(zip(column(rows, "outcome"), column(rows, "detail"), strict=True))
    ((outcome, detail),) = set(ends[::FIFTH])
    assert outcome == EXPECTED[kind][0]
    assert str(detail).startswith(EXPECTED[kind][1])
    assert {outcome for i, (outcome, _) in enumerate(ends) if i % FIFTH} == {"ok"}


def test_a_reply_longer_than_allowed_fails_its_own_call(tmp_path: Path) -> None:
    plan = plan_of([i * 4 * MS for i in range(20)], 10 * S)
    with StubGrpc(lambda i: GrpcBehaviour("oversized" if i % FIFTH == 0 else "answer"), REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port, n_connections=1, protocol="grpc")
        rows = run_worker(replace(settings, largest_reply_bytes=100_000), plan)
    ends = list(zip(column(rows, "outcome"), column(rows, "detail"), strict=True))
    why = "the reply is larger than 100000 B: clients.largest_reply allows more"
    assert ends == [("bad_reply", why) if i % FIFTH == 0 else ("ok", "") for i in range(20)]


def test_the_instants_hold_the_servers_own_service_times(tmp_path: Path) -> None:
    services = [(i % 7) * 5 * MS for i in range(60)]
    plan = plan_of([i * 5 * MS for i in range(60)], 10 * S)
    with StubGrpc(lambda i: GrpcBehaviour(service_s=services[i] / S), REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, protocol="grpc"), plan)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * 60
    assert_instants_hold(rows, stub.seen, services)


def test_a_request_of_16_mib_goes_through_small_windows(tmp_path: Path) -> None:
    plan = plan_of([0, 1 * MS], 20 * S)
    with StubGrpc(tensor_bytes=REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, spec=LARGE_SPEC, protocol="grpc"), plan)
    assert column(rows, "outcome") == ["ok"] * 2
    assert stub.seen.faults == []


def test_calls_beyond_the_servers_streams_go_to_new_connections(tmp_path: Path) -> None:
    plan = plan_of([i * MS // 10 for i in range(40)], 10 * S)
    with StubGrpc(lambda _: GrpcBehaviour(service_s=0.3), REPLY_BYTES, max_concurrent_streams=4) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, n_connections=1, protocol="grpc"), plan)
    assert column(rows, "outcome") == ["ok"] * 40
    assert stub.seen.most_streams <= 4
    assert stub.seen.n_connections >= 10
    assert stub.seen.faults == []


def test_a_server_that_never_reads_is_no_server(tmp_path: Path) -> None:
    from squall.scenarios.errors import TargetError

    with StubGrpc(tensor_bytes=REPLY_BYTES, reads=False) as stub, pytest.MonkeyPatch.context() as patch:
        patch.setattr("squall.actors.load.worker._CONNECT_NS", 300 * MS)
        with pytest.raises(TargetError, match="does not answer as HTTP/2 does"):
            run_worker(settings_of(tmp_path, stub.port, protocol="grpc"), plan_of([0], S))


def test_a_thousand_streams_on_one_connection_end_ok(tmp_path: Path) -> None:
    plan = plan_of([i * MS // 10 for i in range(1_000)], 20 * S)
    with StubGrpc(lambda _: GrpcBehaviour(service_s=1.0), REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, n_connections=1, protocol="grpc"), plan)
    assert column(rows, "outcome") == ["ok"] * 1_000
    assert stub.seen.n_connections == 1
    assert stub.seen.most_streams > 500
