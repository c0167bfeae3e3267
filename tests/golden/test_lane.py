"""The C lane does the common case, hands the rest to Python, and both ways come to the same rows."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.lane import _MOST_STRAYS, IS_BUILT
from squall.actors.load.worker import LoadWorker
from squall.models.payload import RequestOptions
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.clients.inputs import InputConfig
from squall.scenarios.plan.plan import PhaseSpan
from tests.fakes import Behaviour, Kind, StubTriton
from tests.fakes_grpc import GrpcBehaviour, GrpcKind, StubGrpc
from tests.golden.driving import (
    MS,
    REPLY_BYTES,
    SPEC,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    requests_of,
    run_worker,
    settings_of,
)  # fmt: skip
from tests.null_process import NullProcess, null_spec

pytestmark = pytest.mark.skipif(
    not IS_BUILT, reason="the lane is not built: no C compiler was there at the install"
)
Protocol = Literal["http", "grpc"]
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
HTTP_KINDS: tuple[Kind, ...] = (
    "answer", "answer", "answer", "rejected", "error", "bytewise", "wrong_id", "short_tensor", "garbage_after",
    "answer_twice", "connection_close", "oversized", "hang", "http_1_0", "error_200",
)  # fmt: skip
GRPC_KINDS: tuple[GrpcKind, ...] = (
    "answer", "answer", "answer", "rejected", "error", "bytewise", "wrong_id", "short_tensor", "split_headers",
    "padded", "ping_first", "trailers_only", "rst_stream", "no_status", "two_messages", "not_grpc", "hang",
)  # fmt: skip
WIDE_SPEC = ModelSpec(
    "stub", "1", (TensorSpec("INPUT", "FP32", (9_999,)),), (TensorSpec("OUTPUT", "FP32", (2,)),), 8
)


def stub_of(protocol: Protocol, kinds: Any = ("answer",), service_s: float = 0.0) -> StubTriton | StubGrpc:
    if protocol == "http":
        return StubTriton(lambda i: Behaviour(kinds[i % len(kinds)], service_s), REPLY_BYTES)
    return StubGrpc(lambda i: GrpcBehaviour(kinds[i % len(kinds)], service_s), REPLY_BYTES)


def run(
    folder: Path,
    port: int,
    protocol: Protocol,
    n: int,
    has_lane: bool = True,
    spec: ModelSpec = SPEC,
    timeout_ns: int = 30 * S,
    gap_ns: int = 4 * MS,
) -> tuple[Any, LoadWorker]:
    """Rows of n requests, one every `gap_ns`, and the worker that sent them."""
    folder.mkdir(exist_ok=True)
    settings = settings_of(
        folder, port, Rules(timeout_ns), 32 if protocol == "http" else 4, spec=spec, protocol=protocol
    )
    worker = LoadWorker(replace(settings, lane=has_lane), SystemClock())
    plan = plan_of([i * gap_ns for i in range(n)], 20 * S)
    worker.prepare(plan)
    worker.run(SystemClock().monotonic_ns() + 30 * MS)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    return rows, worker


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_mixture_of_all_a_server_can_do_gives_the_same_rows_either_way(
    protocol: Protocol, tmp_path: Path
) -> None:
    kinds = HTTP_KINDS if protocol == "http" else GRPC_KINDS
    ends = {}
    for has_lane in (True, False):
        with stub_of(protocol, kinds) as stub:
            rows, _ = run(tmp_path / str(has_lane), stub.port, protocol, 150, has_lane, timeout_ns=2 * S)
        names = ("outcome", "detail", "request_bytes", "response_bytes", "rows")
        ends[has_lane] = [
            dict(zip(names, row, strict=True)) for row in zip(*(column(rows, n) for n in names), strict=True)
        ]
    assert ends[True] == ends[False]
    assert {end["outcome"] for end in ends[True]} >= {
        "ok",
        "rejected",
        "server_error",
        "bad_reply",
        "timeout",
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.serial  # late requests come to Python
def test_what_is_common_does_not_come_to_python(protocol: Protocol, tmp_path: Path) -> None:
    with stub_of(protocol) as stub:
        rows, worker = run(tmp_path, stub.port, protocol, 200)
    assert column(rows, "outcome") == ["ok"] * 200
    assert worker._lane is not None
    assert (
        worker._lane.n_done > 100
    )  # but for the first replies, which teach the lane, and those of a stall at the start


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_payloads_that_are_all_distinct_share_what_was_learned(protocol: Protocol, tmp_path: Path) -> None:
    """Each is sent once: with a layout of its own each would go through Python."""
    n = 400
    plan = replace(plan_of([i * 4 * MS for i in range(n)], 20 * S), variant=np.arange(n, dtype=np.uint16))
    with stub_of(protocol) as stub:
        settings = settings_of(
            tmp_path, stub.port, Rules(30 * S), 32 if protocol == "http" else 4, protocol=protocol
        )
        worker = LoadWorker(settings, SystemClock())
        worker.prepare(plan)
        worker.run(SystemClock().monotonic_ns() + 30 * MS)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * n
    assert worker._lane is not None
    assert worker._lane.n_done > n // 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.serial  # late requests come to Python
def test_what_requests_say_beside_and_leave_out_stays_in_the_lane(protocol: Protocol, tmp_path: Path) -> None:
    """Parameters are part of the template; requests with and without an optional input have two layouts."""
    n = 600  # first replies of connections, and of each layout, go to Python
    plan = replace(
        plan_of([i * 4 * MS for i in range(n)], 20 * S), variant=np.arange(n, dtype=np.uint16) % 64
    )
    hint = TensorSpec("hint", "INT32", (3,), is_optional=True)
    with stub_of(protocol) as stub:
        settings = replace(
            settings_of(
                tmp_path, stub.port, Rules(30 * S), 32 if protocol == "http" else 4, protocol=protocol,
                spec=replace(SPEC, inputs=(*SPEC.inputs, hint)),
            ),
            made={"hint": InputConfig(present=0.5)}, options=RequestOptions({"lang": "de", "priority": 1, "t": 0.5}),
        )  # fmt: skip
        worker = LoadWorker(settings, SystemClock())
        worker.prepare(plan)
        worker.run(SystemClock().monotonic_ns() + 30 * MS)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * n
    assert len(set(column(rows, "request_bytes"))) == 2
    assert worker._lane is not None
    assert worker._lane.n_done > n // 2


@pytest.mark.serial  # late requests come to Python
def test_replies_of_many_sizes_stay_in_the_lane(tmp_path: Path) -> None:
    """Over HTTP each size has a head of its own: here 200, as of several models with many rows each."""
    n, most = 4_000, 200
    plan = replace(
        plan_of([i * MS // 2 for i in range(n)], 20 * S), rows=np.arange(n, dtype=np.int32) * 7 % most + 1
    )
    with NullProcess(f"--max-batch-size={most}") as null:
        spec = replace(null_spec(), max_batch_size=most)
        settings = settings_of(tmp_path, null.ports["http"], Rules(30 * S), 8, spec)
        worker = LoadWorker(settings, SystemClock())
        worker.prepare(plan)
        worker.run(SystemClock().monotonic_ns() + 30 * MS)
    rows = requests_of(settings)
    assert column(rows, "outcome") == ["ok"] * n
    assert len(set(column(rows, "response_bytes"))) == most
    assert worker._lane is not None
    assert worker._lane.n_done > n // 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.serial  # late requests come to Python
def test_compressed_requests_stay_in_the_lane_and_the_server_unpacks_each(
    protocol: Protocol, tmp_path: Path
) -> None:
    """The server ends where a CRC is not that of what it unpacked."""
    n = 300
    with stub_of(protocol) as stub:
        settings = replace(
            settings_of(
                tmp_path,
                stub.port,
                Rules(30 * S),
                32 if protocol == "http" else 4,
                protocol=protocol,
                spec=WIDE_SPEC,
            ),
            options=RequestOptions({"lang": "de"}, is_gzip=True),
        )
        plan = plan_of([i * 6 * MS for i in range(n)], 20 * S)
        worker = LoadWorker(settings, SystemClock())
        worker.prepare(plan)
        worker.run(SystemClock().monotonic_ns() + 30 * MS)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    assert column(rows, "outcome") == ["ok"] * n
    assert max(numbers(rows, "request_bytes")) < 39_996  # 10,000 numbers, drawn at random
    assert worker._lane is not None
    assert worker._lane.n_done > 20


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_of_several_frames_and_replies_in_pieces_stay_in_the_lane(
    protocol: Protocol, tmp_path: Path
) -> None:
    """A second request within the stub's window of 64 KiB waits for the first, and Python has what waits."""
    kinds = ("answer", "bytewise") if protocol == "http" else ("answer",)
    n = 150
    with stub_of(protocol, kinds) as stub:
        rows, worker = run(tmp_path, stub.port, protocol, n, spec=WIDE_SPEC, gap_ns=15 * MS)
        if isinstance(stub, StubGrpc):
            assert stub.seen.faults == []
    assert column(rows, "outcome") == ["ok"] * n
    assert min(numbers(rows, "request_bytes")) > 39_996
    assert worker._lane is not None
    if protocol == "grpc":
        assert worker._lane.n_done > 20


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_whose_every_reply_is_uncommon_is_left_to_python(protocol: Protocol, tmp_path: Path) -> None:
    with stub_of(protocol, ("padded",) if protocol == "grpc" else ("connection_close",)) as stub:
        rows, worker = run(tmp_path, stub.port, protocol, _MOST_STRAYS + 150)
    assert set(column(rows, "outcome")) == {"ok"}
    assert worker._lane is not None
    assert worker._lane._n_strays[0] <= _MOST_STRAYS + 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.serial  # late requests come to Python
def test_the_lanes_instants_hold_the_servers_own(protocol: Protocol, tmp_path: Path) -> None:
    with stub_of(protocol, service_s=0.01) as stub:
        rows, worker = run(tmp_path, stub.port, protocol, 200)
        ids = range(200)
        arrived = np.array([stub.seen.arrived_ns[i] for i in ids])
        replied = np.array([stub.seen.replied_ns[i] for i in ids])
    assert worker._lane is not None
    assert worker._lane.n_done > 100
    assert (numbers(rows, "sent_ns") < arrived).all()
    assert (replied < numbers(rows, "done_ns")).all()
    assert (numbers(rows, "first_byte_ns") <= numbers(rows, "done_ns")).all()


def test_calls_are_dealt_among_all_connections(tmp_path: Path) -> None:
    with StubGrpc(tensor_bytes=REPLY_BYTES) as stub:
        run(tmp_path, stub.port, "grpc", 200)
    assert len(stub.seen.calls) == 4
    assert min(stub.seen.calls.values()) > 25


def test_a_short_timeout_of_one_phase_leaves_the_others_in_the_lane(tmp_path: Path) -> None:
    plan = plan_of([i * 10 * MS for i in range(150)], 20 * S)
    spans = (PhaseSpan("w", "warmup", 0, 10 * MS), PhaseSpan("m", "measure", 10 * MS, 20 * S))
    plan = replace(plan, spans=spans, phase=(np.arange(150) > 0).astype(np.uint8))
    rules = Rules(timeout_ns=5 * S, phase_timeouts_ns={0: 30 * MS})
    with StubTriton(lambda _: Behaviour(service_s=0.05), REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port, rules, 32)
        worker = LoadWorker(settings, SystemClock())
        worker.prepare(plan)
        worker.run(SystemClock().monotonic_ns() + 30 * MS)
    assert column(requests_of(settings), "outcome") == ["timeout"] + ["ok"] * 149
    assert worker._lane is not None
    assert worker._lane.n_done > 75


class HalfDeaf(StubTriton):
    """Ends every second of its first 800 connections as soon as it has them."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.seen.n_connections > 800 or self.seen.n_connections % 2:
            await super().serve(reader, writer)


@pytest.mark.serial
def test_connections_that_end_while_the_pool_opens_carry_no_request(tmp_path: Path) -> None:
    plan = plan_of([i * MS for i in range(400)], 10 * S)
    with HalfDeaf(lambda _: Behaviour(service_s=0.3), REPLY_BYTES) as stub:
        rows = run_worker(settings_of(tmp_path, stub.port, Rules(timeout_ns=8 * S), 800), plan)
    assert_one_row_each(rows, plan)
    ends = Counter(column(rows, "outcome"))
    assert set(ends) <= {
        "ok",
        "transport_error",
    }  # the latter where it ended between the opening and the send
    assert ends["ok"] >= 300
