"""The C lane does the common case, hands the rest to Python, and both ways come to the same rows."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.lane import _MOST_STRAYS, IS_BUILT
from squall.actors.load.worker import LoadWorker, ModelRequests, WorkerSettings
from squall.models.payload import RequestOptions
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.inputs import InputConfig
from squall.scenarios.config.rows import RowsConfig, UniformRows
from squall.scenarios.plan.plan import PhaseSpan
from tests.fakes import Behaviour, Kind, StubTriton
from tests.fakes_grpc import GrpcBehaviour, GrpcKind, StubGrpc
from tests.golden.driving import (
    MS,
    ONE_ROW,
    REPLY_BYTES,
    SPEC,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    requests_of,
    run_asking,
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
FIRST = 16
"""At most so many first replies of users and connections are read by Python before the lane knows them."""
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


def run_users(
    settings: WorkerSettings,
    n_ok: int,
    n_variants: int = 2,
    sizes: RowsConfig = ONE_ROW,
    n_users: int = 4,
) -> tuple[pa.Table, int, LoadWorker]:
    """Rows of users who ask again at once until `n_ok` replies have come, how many of those Python read, the worker.

    No more users than connections: a stall makes all later and none go without a connection, which would be Python's.
    """
    rows, worker = run_asking(settings, n_ok, n_users, n_variants, sizes)
    ends = Counter(column(rows, "outcome"))
    assert set(ends) <= {"ok", "cancelled"}, ends
    assert ends["cancelled"] <= n_users, "in flight at the stop"
    assert ends["ok"] >= n_ok
    assert worker._lane is not None
    return rows.filter(pc.field("outcome") == "ok"), ends["ok"] - worker._lane.n_done, worker


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_common_does_not_come_to_python(protocol: Protocol, tmp_path: Path) -> None:
    with stub_of(protocol) as stub:
        _, n_by_python, _ = run_users(settings_of(tmp_path, stub.port, None, 4, protocol=protocol), 200)
    assert 0 < n_by_python <= FIRST, "the first replies, which teach the lane"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_payloads_that_are_all_distinct_share_what_was_learned(protocol: Protocol, tmp_path: Path) -> None:
    """Each is sent about once: with a layout of its own each would go through Python."""
    with stub_of(protocol) as stub:
        settings = settings_of(tmp_path, stub.port, None, 4, protocol=protocol)
        _, n_by_python, _ = run_users(settings, 300, n_variants=5_000)
    assert 0 < n_by_python <= FIRST


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_requests_say_beside_and_leave_out_stays_in_the_lane(protocol: Protocol, tmp_path: Path) -> None:
    """Parameters are part of the template; requests with and without an optional input have two layouts."""
    hint = TensorSpec("hint", "INT32", (3,), is_optional=True)
    with stub_of(protocol) as stub:
        settings = replace(
            settings_of(
                tmp_path, stub.port, None, 4, protocol=protocol, spec=replace(SPEC, inputs=(*SPEC.inputs, hint))
            ),
            models=(
                ModelRequests(
                    made={"hint": InputConfig(present=0.5)},
                    options=RequestOptions({"lang": "de", "priority": 1, "t": 0.5}),
                ),
            ),
        )  # fmt: skip
        rows, n_by_python, _ = run_users(settings, 300, n_variants=64)
    assert len(set(column(rows, "request_bytes"))) == 2
    assert 0 < n_by_python <= 2 * FIRST


def test_replies_of_many_sizes_stay_in_the_lane(tmp_path: Path) -> None:
    """Over HTTP each size has a head of its own: here 100, as of several models with many rows each."""
    most = 100
    with NullProcess(f"--max-batch-size={most}") as null:
        spec = replace(null_spec(), max_batch_size=most)
        settings = settings_of(tmp_path, null.ports["http"], Rules(30 * S), 8, spec)
        rows, n_by_python, _ = run_users(settings, 2_000, sizes=UniformRows(kind="uniform", low=1, high=most))
    assert len(set(column(rows, "response_bytes"))) == most
    assert most <= n_by_python <= most * FIRST


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_compressed_requests_stay_in_the_lane_and_the_server_unpacks_each(
    protocol: Protocol, tmp_path: Path
) -> None:
    """The server ends where a CRC is not that of what it unpacked."""
    with stub_of(protocol) as stub:
        settings = replace(
            settings_of(tmp_path, stub.port, None, 4, protocol=protocol, spec=WIDE_SPEC),
            models=(ModelRequests(options=RequestOptions({"lang": "de"}, is_gzip=True)),),
        )
        rows, n_by_python, _ = run_users(settings, 100, n_users=1)
    assert max(numbers(rows, "request_bytes")) < 39_996  # 10,000 numbers, drawn at random
    assert 0 < n_by_python <= FIRST


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_of_several_frames_and_replies_in_pieces_stay_in_the_lane(
    protocol: Protocol, tmp_path: Path
) -> None:
    """A second request within the stub's window of 64 KiB would wait for the first: there is one at a time."""
    kinds = ("answer", "bytewise") if protocol == "http" else ("answer",)
    with stub_of(protocol, kinds) as stub:
        settings = settings_of(tmp_path, stub.port, None, 4, protocol=protocol, spec=WIDE_SPEC)
        rows, n_by_python, _ = run_users(settings, 100, n_users=1)
        if isinstance(stub, StubGrpc):
            assert stub.seen.faults == []
    assert min(numbers(rows, "request_bytes")) > 39_996
    n_in_pieces = len(rows) // 2 if protocol == "http" else 0  # heads in pieces are read by Python
    assert 0 < n_by_python <= FIRST + n_in_pieces


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_whose_every_reply_is_uncommon_is_left_to_python(protocol: Protocol, tmp_path: Path) -> None:
    with stub_of(protocol, ("padded",) if protocol == "grpc" else ("connection_close",)) as stub:
        rows, worker = run(tmp_path, stub.port, protocol, _MOST_STRAYS + 150)
    assert set(column(rows, "outcome")) == {"ok"}
    assert worker._lane is not None
    assert worker._lane._n_strays[0] <= _MOST_STRAYS + 75  # those of all connections may come back at once


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_lanes_instants_hold_the_servers_own(protocol: Protocol, tmp_path: Path) -> None:
    with stub_of(protocol, service_s=0.01) as stub:
        rows, n_by_python, _ = run_users(settings_of(tmp_path, stub.port, None, 4, protocol=protocol), 200)
        ids = numbers(rows, "request_id").tolist()
        arrived = np.array([stub.seen.arrived_ns[i] for i in ids])
        replied = np.array([stub.seen.replied_ns[i] for i in ids])
    assert n_by_python <= FIRST
    assert (numbers(rows, "sent_ns") < arrived).all()
    assert (replied < numbers(rows, "done_ns")).all()
    assert (numbers(rows, "first_byte_ns") <= numbers(rows, "done_ns")).all()


def test_calls_are_dealt_among_all_connections(tmp_path: Path) -> None:
    with StubGrpc(tensor_bytes=REPLY_BYTES) as stub:
        run(tmp_path, stub.port, "grpc", 200)
    assert len(stub.seen.calls) == 4
    assert min(stub.seen.calls.values()) > 25


def test_a_short_timeout_of_one_phase_leaves_the_others_in_the_lane(tmp_path: Path) -> None:
    """The first request is never answered, the second teaches the lane, the others wait for both and are the lane's."""
    n = 40
    plan = plan_of([i * 10 * MS for i in range(n)], 90 * S)
    spans = (PhaseSpan("w", "warmup", 0, 10 * MS), PhaseSpan("m", "measure", 10 * MS, 90 * S))
    plan = replace(plan, spans=spans, phase=(np.arange(n) > 0).astype(np.uint8))
    rules = Rules(timeout_ns=60 * S, phase_timeouts_ns={0: 30 * MS})
    with Reluctant(lambda i: Behaviour("hang" if i == 0 else "answer"), REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port, rules, n)  # a connection each, however late they are sent
        worker = stub.worker = LoadWorker(settings, SystemClock())
        stub.n_requests = n
        worker.prepare(plan)
        worker.run(SystemClock().monotonic_ns() + 30 * MS)
    assert column(requests_of(settings), "outcome") == ["timeout"] + ["ok"] * (n - 1)
    assert worker._lane is not None
    assert worker._lane.n_done == n - 2


class Reluctant(StubTriton):
    """Answers requests from the third on once all are sent and two have ended."""

    worker: LoadWorker
    n_requests = 0

    async def _do(self, kind: Kind, request_id: int, writer: asyncio.StreamWriter) -> bool:
        while request_id > 1:
            progress = self.worker.progress()
            if progress.n_sent == self.n_requests and progress.n_done >= 2:
                break
            await asyncio.sleep(0.005)
        return await super()._do(kind, request_id, writer)


class HalfDeaf(StubTriton):
    """Ends every second of its first 800 connections as soon as it has them."""

    n_ended = 0

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._on_connection(reader, writer)
        self.n_ended += 1

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.seen.n_connections > 800 or self.seen.n_connections % 2:
            await super().serve(reader, writer)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("lead_ns", [30 * MS, -50 * MS], ids=["in time", "late"])
def test_connections_that_end_before_the_load_carry_no_request(lead_ns: int, tmp_path: Path) -> None:
    plan = plan_of([i * MS for i in range(400)], 60 * S)
    with HalfDeaf(lambda _: Behaviour(service_s=0.3), REPLY_BYTES) as stub:
        settings = settings_of(tmp_path, stub.port, Rules(timeout_ns=30 * S), 800)
        worker = LoadWorker(settings, SystemClock())
        worker.prepare(plan)
        while stub.n_ended < 400:  # the last are taken after the client has them
            time.sleep(0.01)
        worker.run(SystemClock().monotonic_ns() + lead_ns)
    rows = requests_of(settings)
    assert_one_row_each(rows, plan)
    assert set(column(rows, "outcome")) == {"ok"}, Counter(column(rows, "detail"))
