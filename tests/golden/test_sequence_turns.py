"""Requests of sequences against a server whose service times are known: order, connections, failures."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.lane import IS_BUILT
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.scenarios.arrivals.users import ConstantThink
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad
from squall.scenarios.plan.plan import PhaseSpan, Plan
from squall.scenarios.sequences import CUT, IN_TURN, SequenceRule
from tests.fakes import Behaviour, Seen, StubTriton
from tests.fakes_grpc import GrpcBehaviour, StubGrpc
from tests.golden.driving import (
    MS,
    REPLY_BYTES,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    requests_of,
    run_until,
    run_worker,
    settings_of,
)

both_ways = pytest.mark.usefixtures("way")
"""Of what does not go through Python anyway."""
PROTOCOLS = ("http", "grpc")
N_LANES, LENGTH, N = 4, 5, 100
RULE = SequenceRule(N_LANES, ConstantRows(value=LENGTH), 1, "r")
PLAN = plan_of([i * 2 * MS for i in range(N)], 20 * S)
"""Each lane has a request every 8 ms, and is served in 1 to 21 ms."""


def sequence_of(request_id: int) -> tuple[int, int]:
    """Lane, and which of its sequences."""
    return request_id % N_LANES, request_id // N_LANES // LENGTH


SEQUENCES = [
    [one for one in range(N) if sequence_of(one) == (lane, number)]
    for lane in range(N_LANES)
    for number in range(N // N_LANES // LENGTH)
]


def users_of(length_ns: int) -> ClosedPlan:
    """Those of a closed loop, one for each lane, who think for 1 ms."""
    think = ConstantThink.model_validate({"kind": "constant", "value": "1ms"})
    return ClosedPlan(
        users=np.arange(N_LANES, dtype=np.int64),
        n_users=N_LANES,
        spans=(
            PhaseSpan("m", "measure", 0, length_ns),
            PhaseSpan("d", "drain", length_ns, length_ns + 9 * S),
        ),
        phases=(ClosedPhase(N_LANES, think, 0, ConstantRows(), (ModelLoad(1.0, ConstantRows()),)), None),
        models=(VariantRange(0, 1),),
        seed=1,
    )


def from_1_to_21_ms(request_id: int) -> float:
    return 0.001 * (1 + request_id * 7 % 21)


@contextmanager
def stub_of(
    protocol: str,
    kind_of: Callable[[int], Any] = lambda _: "answer",
    service_s: Callable[[int], float] = from_1_to_21_ms,
) -> Iterator[tuple[int, Seen]]:
    if protocol == "http":
        with StubTriton(lambda i: Behaviour(kind_of(i), service_s(i))) as http:
            yield http.port, http.seen
    else:
        with StubGrpc(lambda i: GrpcBehaviour(kind_of(i), service_s(i)), REPLY_BYTES) as grpc:
            yield grpc.port, grpc.seen


def settings(
    folder: Path, port: int, protocol: str, rules: Rules | None = None, **changes: bool
) -> WorkerSettings:
    made = settings_of(folder, port, rules, n_connections=5, protocol=protocol)
    return replace(made, sequences=replace(RULE, **changes))  # type: ignore[arg-type]


def ran(own: WorkerSettings, plan: Plan | ClosedPlan) -> tuple[pa.Table, LoadWorker]:
    """Rows, and the worker that sent them."""
    worker = LoadWorker(own, SystemClock())
    worker.prepare(plan)
    gc.collect()
    gc.freeze()  # what the tests before left: the worker's own collection would take most of the second
    worker.run(SystemClock().monotonic_ns() + 100 * MS)
    return requests_of(own), worker


def in_order(seen: Seen) -> list[bool]:
    """Of each two neighbours of a sequence whether the later one came after the reply to the earlier."""
    return [
        seen.replied_ns[a] < seen.arrived_ns[b]
        for ids in SEQUENCES
        for a, b in pairwise(ids)
        if b in seen.arrived_ns
    ]


@pytest.mark.skipif(not IS_BUILT, reason="the lane is not built: no C compiler was there at the install")
@pytest.mark.serial  # late requests come to Python
@pytest.mark.parametrize(
    ("protocol", "load"),
    [
        ("http", "open"),
        ("grpc", "closed"),
        pytest.param("http", "closed", marks=pytest.mark.slow),
        pytest.param("grpc", "open", marks=pytest.mark.slow),
    ],
)
def test_requests_of_sequences_go_through_the_lane(protocol: str, load: str, tmp_path: Path) -> None:
    with stub_of(protocol, service_s=lambda _: 0.01) as (port, _):
        own = replace(settings(tmp_path, port, protocol), n_connections=16 if protocol == "http" else 4)
        if load == "open":
            rows, worker = ran(own, plan_of([i * 4 * MS for i in range(150)], 20 * S))
        else:
            rows, worker = run_until(own, users_of(120 * S), 150)
    assert set(column(rows, "outcome")) - {"cancelled"} == {"ok"}
    assert rows.num_rows >= 150
    assert worker._lane is not None
    assert worker._lane.n_done > rows.num_rows // 4


@both_ways
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_request_waits_for_the_reply_to_the_one_before_and_its_lateness_shows(
    protocol: str, tmp_path: Path
) -> None:
    with stub_of(protocol) as (port, seen):
        rows = run_worker(settings(tmp_path, port, protocol), PLAN)
    assert_one_row_each(rows, PLAN)
    assert set(column(rows, "outcome")) == {"ok"}
    assert all(in_order(seen))
    sent, done, due = (numbers(rows, name) for name in ("sent_ns", "done_ns", "scheduled_ns"))
    held = [i for i, detail in enumerate(column(rows, "detail")) if detail == IN_TURN]
    assert len(held) > 20
    for ids in SEQUENCES:
        for a, b in pairwise(ids):
            assert done[a] <= sent[b]
            assert b not in held or done[a] > due[b]
    assert set(np.diff(due).tolist()) == {2 * MS}, "the schedule is what it was"


@both_ways
def test_without_order_requests_are_sent_when_they_are_due(tmp_path: Path) -> None:
    with stub_of("grpc") as (port, seen):
        rows = run_worker(settings(tmp_path, port, "grpc", is_ordered=False), PLAN)
    assert set(column(rows, "outcome")) == {"ok"}
    assert set(column(rows, "detail")) == {""}
    assert in_order(seen).count(False) > 10


@both_ways
@pytest.mark.parametrize("kind", ["error", "hang"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_failure_cuts_its_sequence_and_no_other(protocol: str, kind: str, tmp_path: Path) -> None:
    failed, rest = 4 * 6, [4 * 7, 4 * 8, 4 * 9]  # the second of the second sequence of lane 0
    rules = Rules(timeout_ns=S if kind == "hang" else 30 * S)
    with stub_of(protocol, lambda i: kind if i == failed else "answer") as (port, seen):
        rows = run_worker(settings(tmp_path, port, protocol, rules), PLAN)
    assert_one_row_each(rows, PLAN)
    outcomes, details = column(rows, "outcome"), column(rows, "detail")
    assert outcomes[failed] == ("timeout" if kind == "hang" else "server_error")
    assert [i for i, one in enumerate(outcomes) if one == "unsent"] == rest
    assert all(str(details[i]).startswith(CUT) for i in rest)
    assert outcomes.count("ok") == N - 1 - len(rest)
    assert not {*rest} & {*seen.arrived_ns}


@both_ways
def test_a_sequence_that_goes_on_after_a_failure_still_waits_for_it(tmp_path: Path) -> None:
    with stub_of("grpc", lambda i: "error" if i % 9 == 0 else "answer") as (port, seen):
        rows = run_worker(settings(tmp_path, port, "grpc", is_cut_by_failure=False), PLAN)
    assert counted(column(rows, "outcome")) == {"server_error": 12, "ok": N - 12}
    assert all(in_order(seen))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sequence_stays_on_one_connection_where_asked(protocol: str, tmp_path: Path) -> None:
    with stub_of(protocol) as (port, seen):
        rows = run_worker(settings(tmp_path, port, protocol, is_pinned=True), PLAN)
    assert set(column(rows, "outcome")) == {"ok"}
    assert all(in_order(seen))
    assert all(len({seen.connections[one] for one in ids}) == 1 for ids in SEQUENCES)
    assert len(set(seen.connections.values())) > 1
    (tmp_path / "free").mkdir()
    with stub_of(protocol) as (port, free):
        run_worker(settings(tmp_path / "free", port, protocol, is_ordered=False), PLAN)
    assert any(len({free.connections[one] for one in ids}) > 1 for ids in SEQUENCES), "else it shows nothing"


def test_over_http_a_sequences_connection_takes_no_other_meanwhile(tmp_path: Path) -> None:
    with stub_of("http") as (port, seen):
        run_worker(settings(tmp_path, port, "http", is_pinned=True), PLAN)
    spans = sorted(
        (seen.connections[ids[0]], seen.arrived_ns[ids[0]], seen.replied_ns[ids[-1]]) for ids in SEQUENCES
    )
    assert all(a[2] < b[1] for a, b in pairwise(spans) if a[0] == b[0])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_connection_that_breaks_is_followed_by_another(protocol: str, tmp_path: Path) -> None:
    broken = 4 * 6
    with stub_of(protocol, lambda i: "close" if i == broken else "answer") as (port, seen):
        rows = run_worker(settings(tmp_path, port, protocol, is_pinned=True, is_cut_by_failure=False), PLAN)
    assert_one_row_each(rows, PLAN)
    outcomes = column(rows, "outcome")
    assert outcomes[broken] == "transport_error"
    assert set(outcomes[broken + 4 :: 4]) == {"ok"}
    after = {seen.connections[one] for one in (4 * 7, 4 * 8, 4 * 9)}
    assert len(after) == 1
    assert seen.connections[broken] not in after


def test_the_cap_on_requests_in_flight_holds_beside_the_order(tmp_path: Path) -> None:
    rules = Rules(timeout_ns=30 * S, max_in_flight=2)
    with stub_of("grpc") as (port, seen):
        rows = run_worker(settings(tmp_path, port, "grpc", rules), PLAN)
    assert set(column(rows, "outcome")) == {"ok"}
    assert all(in_order(seen))
    sent, done = numbers(rows, "sent_ns"), numbers(rows, "done_ns")
    assert all(((sent <= at) & (done > at)).sum() <= 2 for at in sent)


@both_ways
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_waits_when_the_run_is_stopped_is_recorded(protocol: str, tmp_path: Path) -> None:
    def stop(worker: LoadWorker) -> None:
        while len(seen.arrived_ns) < len(SEQUENCES):  # one that waits for a connection counts as sent
            time.sleep(0.01)
        worker.stop()

    with stub_of(protocol, lambda _: "hang") as (port, seen):
        rows = run_worker(settings(tmp_path, port, protocol), PLAN, meanwhile=stop)
    assert_one_row_each(rows, PLAN)
    n_first = len(SEQUENCES)
    assert counted(column(rows, "outcome")) == {"cancelled": n_first, "unsent": N - n_first}
    unsent = {detail for detail in column(rows, "detail") if detail != "the run ended before the reply"}
    assert f"the run ended while it was {IN_TURN}" in unsent
    assert not any(str(one).startswith(CUT) for one in unsent)


@both_ways
@pytest.mark.parametrize(("protocol", "is_pinned"), [("http", True), ("grpc", True), ("grpc", False)])
def test_a_user_goes_on_with_its_next_sequence_after_a_failure(
    protocol: str, is_pinned: bool, tmp_path: Path
) -> None:
    plan = users_of(S)
    failed = 4 * 6  # user 0, the second request of its second sequence
    with stub_of(protocol, lambda i: "error" if i == failed else "answer") as (port, seen):
        own = settings(tmp_path, port, protocol, is_pinned=is_pinned)
        rows, _ = ran(own, plan)
    ids = numbers(rows, "request_id")
    outcomes = dict(zip(ids.tolist(), column(rows, "outcome"), strict=True))
    for user in range(N_LANES):
        of_user = [one for one in outcomes if one % N_LANES == user]
        assert of_user == [N_LANES * number + user for number in range(len(of_user))], "each has its row"
    rest = [4 * 7, 4 * 8, 4 * 9]
    assert {one: outcome for one, outcome in outcomes.items() if outcome != "ok"} == {
        failed: "server_error", **dict.fromkeys(rest, "unsent"),
    }  # fmt: skip
    assert outcomes[4 * 10] == "ok", "the first of the next sequence"
    assert seen.arrived_ns[4 * 10] > seen.replied_ns[failed]
    others = ids[ids % N_LANES == 1] // N_LANES
    if is_pinned:
        whole = [[4 * (5 * n + i) + 1 for i in range(5)] for n in range(len(others) // 5)]
        assert all(len({seen.connections[one] for one in of}) == 1 for of in whole)


@both_ways
def test_a_server_that_is_chosen_at_the_send_is_the_whole_sequences(tmp_path: Path) -> None:
    with stub_of("grpc") as (one, seen), stub_of("grpc") as (other, seen_too):
        made = settings(tmp_path, one, "grpc")
        (target,) = made.targets
        servers = (target, replace(target, name="server-1", port=other))
        rows = run_worker(replace(made, targets=servers, choice="least-in-flight"), PLAN)
    assert set(column(rows, "outcome")) == {"ok"}
    first, second = {*seen.arrived_ns}, {*seen_too.arrived_ns}
    assert first | second == {*range(N)}
    assert all({*ids} <= first or {*ids} <= second for ids in SEQUENCES)
    assert min(len(first), len(second)) > 2 * LENGTH
    names = column(rows, "target")
    assert all((names[i] == "server-1") == (i in second) for i in range(N))


def counted(values: list[object]) -> dict[object, int]:
    return {one: values.count(one) for one in {*values}}
