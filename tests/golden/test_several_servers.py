"""One worker that loads several servers: each request comes to its own, and one that is gone is nobody else's loss."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.choice import Choice, Chooser
from squall.actors.load.engine import Rules
from squall.actors.load.lane import _MOST_STRAYS
from squall.actors.load.targets import TargetSettings
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.models.spec import ModelSpec
from squall.scenarios.arrivals.users import ConstantThink
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.errors import ClusterError, TargetError
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad
from squall.scenarios.plan.plan import PhaseSpan, Plan
from tests.fakes import StubTriton
from tests.fakes_grpc import StubGrpc
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
    run_until,
    run_worker,
    settings_of,
    stop_when,
)  # fmt: skip
from tests.null_process import NullProcess, null_spec

pytestmark = [pytest.mark.usefixtures("way"), pytest.mark.serial]
both_protocols = pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
ENDS_OF_A_STOP = {"cancelled", "unsent"}
Stub = StubTriton | StubGrpc


def stubs(stack: ExitStack, protocol: str, n: int) -> list[Stub]:
    made: list[Stub] = [
        StubTriton(tensor_bytes=REPLY_BYTES) if protocol == "http" else StubGrpc(tensor_bytes=REPLY_BYTES)
        for _ in range(n)
    ]
    for stub in made:
        stack.enter_context(stub)
    return made


def settings_for(
    folder: Path,
    ports: Sequence[int],
    protocol: str,
    spec: ModelSpec | None = None,
    rules: Rules | None = None,
) -> WorkerSettings:
    """Of a worker with 32 connections (gRPC: 4) to each server; without `spec` their models have names of their own."""
    targets = tuple(
        TargetSettings(f"server-{i}", "127.0.0.1", port, (spec or replace(SPEC, name=f"stub-{i}"),))
        for i, port in enumerate(ports)
    )
    settings = settings_of(folder, 1, rules, 32 if protocol == "http" else 4, protocol=protocol)
    return replace(settings, targets=targets)


def open_plan(n: int, n_targets: int, gap_ns: int = 2 * MS) -> Plan:
    target = np.random.default_rng(3).integers(0, n_targets, n, np.uint8)
    return replace(plan_of([i * gap_ns for i in range(n)], 20 * S), target=target)


def closed_plan(n: int, target: Sequence[int] | None = None, length_ns: int = S) -> ClosedPlan:
    """A measured phase of `n` users who think for 1 ms, then the time that a busy host takes for the last replies."""
    think = ConstantThink.model_validate({"kind": "constant", "value": "1ms"})
    return ClosedPlan(
        users=np.arange(n, dtype=np.int64), n_users=n, models=(VariantRange(0, 2),), seed=1,
        target=None if target is None else np.array(target, np.uint8)[:, np.newaxis],
        spans=(PhaseSpan("m", "measure", 0, length_ns), PhaseSpan("d", "drain", length_ns, 30 * S)),
        phases=(ClosedPhase(n, think, 0, ConstantRows(), (ModelLoad(1.0, ConstantRows()),)), None),
    )  # fmt: skip


def run_users(settings: WorkerSettings, plan: ClosedPlan) -> pa.Table:
    """Rows of `requests` by request_id."""
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan)
    worker.run(time.monotonic_ns() + 30 * MS)
    return requests_of(settings)


def assert_told_as_seen(rows: pa.Table, servers: Sequence[Stub]) -> None:
    """Every row names the server, and the model of the server, that saw its request; none was seen twice."""
    told: dict[str, set[int]] = {f"server-{i}": set() for i in range(len(servers))}
    for one, target, kind in zip(
        column(rows, "request_id"), column(rows, "target"), column(rows, "request_kind"), strict=True
    ):
        assert isinstance(one, int)
        told[str(target)].add(one)
        assert kind == str(target).replace("server", "stub")
    assert list(told.values()) == [set(server.seen.arrived_ns) for server in servers]
    assert sum(map(len, told.values())) == rows.num_rows


def sent_until(rows: pa.Table, at_ns: int) -> npt.NDArray[np.bool_]:
    """Which requests were sent by then; not those that never were."""
    return np.asarray(pc.less_equal(rows.column("sent_ns"), at_ns).fill_null(False))


@both_protocols
def test_each_arrival_comes_to_the_server_that_the_plan_says(protocol: str, way: str, tmp_path: Path) -> None:
    plan = open_plan(400, 3)
    assert plan.target is not None

    def look(worker: LoadWorker) -> None:
        lane = worker._lane
        assert (lane is not None) == (way == "lane")
        done = [lane.core.n_done_by(number) for number in range(3)] if lane is not None else []
        assert all(n > 50 for n in done), done

    with ExitStack() as stack:
        servers = stubs(stack, protocol, 3)
        settings = settings_for(tmp_path, [server.port for server in servers], protocol)
        rows = run_worker(settings, plan, after=look)
        assert_told_as_seen(rows, servers)
    assert_one_row_each(rows, plan)
    assert set(column(rows, "outcome")) == {"ok"}
    assert column(rows, "target") == [f"server-{number}" for number in plan.target.tolist()]
    words = rows.column("target").unify_dictionaries().chunk(0).dictionary.to_pylist()
    assert words == ["server-0", "server-1", "server-2"]


@both_protocols
def test_each_user_sends_to_its_own_server(protocol: str, tmp_path: Path) -> None:
    plan = closed_plan(5, [1, 0, 2, 1, 1])
    assert plan.target is not None
    with ExitStack() as stack:
        servers = stubs(stack, protocol, 3)
        settings = settings_for(tmp_path, [server.port for server in servers], protocol)
        rows = run_users(settings, plan)
        assert_told_as_seen(rows, servers)
    assert set(column(rows, "outcome")) == {"ok"}
    users = [one % len(plan) for one in column(rows, "request_id") if isinstance(one, int)]
    assert set(users) == set(range(len(plan)))
    assert column(rows, "target") == [f"server-{plan.target[user, 0]}" for user in users]


@both_protocols
def test_a_server_that_dies_costs_only_its_own_requests(protocol: str, tmp_path: Path) -> None:
    plan = open_plan(10_000, 2)
    assert plan.target is not None
    dead_ns: list[int] = []
    with NullProcess() as dying, NullProcess() as other:

        def kill(worker: LoadWorker) -> None:
            while worker.progress().n_done < 200:
                time.sleep(0.005)
            dying.kill()
            dead_ns.append(time.monotonic_ns())
            at_death = worker.progress()
            n_ok = at_death.n_done - at_death.n_failed + at_death.n_in_flight
            while (now := worker.progress()).n_failed < 200 or now.n_done - now.n_failed < n_ok + 200:
                time.sleep(0.005)
            worker.stop()

        ports = [null.ports[protocol] for null in (dying, other)]
        settings = settings_for(tmp_path, ports, protocol, null_spec(), Rules(timeout_ns=60 * S))
        rows = run_worker(settings, plan, meanwhile=kill)
    assert_one_row_each(rows, plan)
    assert column(rows, "target") == [f"server-{number}" for number in plan.target.tolist()]
    outcomes = np.array(column(rows, "outcome"))
    assert set(outcomes[plan.target == 1]) - ENDS_OF_A_STOP == {"ok"}
    is_of_dying = plan.target == 0
    assert set(outcomes[is_of_dying]) - ENDS_OF_A_STOP == {"ok", "transport_error"}
    is_later = ~sent_until(rows, dead_ns[0])
    assert set(outcomes[is_of_dying & is_later]) - ENDS_OF_A_STOP == {"transport_error"}
    assert np.count_nonzero(outcomes[~is_of_dying & is_later] == "ok") >= 200


@both_protocols
def test_a_server_that_falls_silent_costs_only_its_own_requests(protocol: str, tmp_path: Path) -> None:
    plan = open_plan(10_000, 2)
    assert plan.target is not None
    with NullProcess("--stall=100ms:60s") as silent, NullProcess() as other:
        ports = [null.ports[protocol] for null in (silent, other)]
        settings = settings_for(tmp_path, ports, protocol, null_spec(), Rules(timeout_ns=3 * S // 2))
        rows = run_worker(settings, plan, meanwhile=stop_when(lambda progress: progress.n_failed >= 200))
    assert_one_row_each(rows, plan)
    outcomes, is_of_silent = np.array(column(rows, "outcome")), plan.target == 0
    assert set(outcomes[~is_of_silent]) - ENDS_OF_A_STOP == {"ok"}
    # none is answered that was sent well after the first that was not
    first_ns = pc.min(rows.filter(pa.array(outcomes == "timeout")).column("sent_ns")).as_py()
    is_later = ~sent_until(rows, first_ns + S // 2)
    assert set(outcomes[is_of_silent & is_later]) - ENDS_OF_A_STOP == {"timeout"}
    assert "ok" in outcomes[~is_of_silent & is_later]


def test_a_server_that_only_fails_leaves_the_lane_to_the_others(tmp_path: Path) -> None:
    plan = open_plan(1_500, 2, MS)
    assert plan.target is not None

    def look(worker: LoadWorker) -> None:
        if worker._lane is not None:
            assert worker._lane._n_strays[0] >= _MOST_STRAYS
            assert worker._lane.core.n_done_by(1) > 240

    with NullProcess("--fault=500:1") as failing, NullProcess() as other:
        settings = settings_for(
            tmp_path, [null.ports["http"] for null in (failing, other)], "http", null_spec()
        )
        rows = run_worker(settings, plan, after=look)
    assert_one_row_each(rows, plan)
    told = ["ok" if number else "server_error" for number in plan.target.tolist()]
    assert column(rows, "outcome") == told


@both_protocols
def test_a_server_that_is_not_there_is_named(protocol: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        (server,) = stubs(stack, protocol, 1)
        settings = settings_for(tmp_path, [server.port, 1], protocol)
        with pytest.raises(TargetError, match=r"no connection to 127\.0\.0\.1:1: Connection refused"):
            LoadWorker(settings, SystemClock()).prepare(open_plan(10, 2))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (plan_of([0], S), "does not say which of 2 servers"),
        (replace(plan_of([0], S), target=np.array([2], np.uint8)), "server number 2, there are 2"),
        (closed_plan(2, [0, 2]), "server number 2, there are 2"),
    ],
)
def test_a_plan_of_other_servers_is_refused(plan: Plan | ClosedPlan, words: str, tmp_path: Path) -> None:
    worker = LoadWorker(settings_for(tmp_path, [1, 2], "http"), SystemClock())
    with pytest.raises(ClusterError, match=words):
        worker.prepare(plan)


@pytest.mark.parametrize("n", [0, 65])
def test_a_worker_loads_1_to_64_servers(n: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 to 64 servers"):
        settings_for(tmp_path, [1] * n, "http")


def wrong_choices(rows: pa.Table, rule: Choice, n_targets: int) -> list[bool]:
    """Of each request in order of its send: whether the rule says another server, by what had ended until then."""
    chooser = Chooser(rule, n_targets, {})
    ids, targets = numbers(rows, "request_id").tolist(), column(rows, "target")
    sent, done = (numbers(rows, name).tolist() for name in ("sent_ns", "done_ns"))
    events = [(at_ns, True, i) for i, at_ns in enumerate(sent)] + [
        (at_ns, False, i) for i, at_ns in enumerate(done)
    ]
    wrong = []
    for _, is_send, i in sorted(events):
        target = int(str(targets[i]).removeprefix("server-"))
        if is_send:
            wrong.append(chooser.target_of(ids[i]) != target)
            chooser.took(target)
        else:
            chooser.ended(target)
    return wrong


@pytest.mark.parametrize("rule", ["least-in-flight", "two-choices"])
def test_the_server_is_chosen_by_what_is_in_flight_at_the_send(rule: Choice, tmp_path: Path) -> None:
    """Fewer users than connections: what is chosen is sent in the same moment."""
    services = ["--service=constant:1ms", "--service=constant:10ms", "--service=constant:40ms"]
    with ExitStack() as stack:
        servers = [stack.enter_context(NullProcess(service)) for service in services]
        settings = settings_for(tmp_path, [null.ports["http"] for null in servers], "http", null_spec())
        rows, _ = run_until(replace(settings, choice=rule), closed_plan(12, length_ns=120 * S), 1_000)
    assert set(column(rows, "outcome")) - {"cancelled"} == {"ok"}
    wrong = wrong_choices(rows, rule, 3)
    assert len(wrong) >= 1_000
    assert not any(wrong[100:])  # first replies come to Python a moment after their stamp
    counts = Counter(column(rows, "target"))
    assert min(counts["server-0"], counts["server-1"]) > counts["server-2"] > 0


@both_protocols
@pytest.mark.parametrize("rule", ["least-in-flight", "two-choices"])
def test_what_the_worker_chose_is_what_the_servers_saw(rule: Choice, protocol: str, tmp_path: Path) -> None:
    plan = plan_of([i * 4 * MS for i in range(200)], 20 * S)
    with ExitStack() as stack:
        servers = stubs(stack, protocol, 3)
        settings = settings_for(tmp_path, [server.port for server in servers], protocol)
        rows = run_worker(replace(settings, choice=rule), plan)
        assert_told_as_seen(rows, servers)
    assert_one_row_each(rows, plan)
    assert set(column(rows, "outcome")) == {"ok"}
    assert all(len(server.seen.arrived_ns) > 20 for server in servers)


def test_what_was_never_sent_had_no_server(tmp_path: Path) -> None:
    plan = plan_of([0, 10 * S], 20 * S)
    with ExitStack() as stack:
        servers = stubs(stack, "http", 2)
        settings = settings_for(tmp_path, [server.port for server in servers], "http", SPEC)
        stop = stop_when(lambda progress: progress.n_done >= 1)
        rows = run_worker(replace(settings, choice="least-in-flight"), plan, meanwhile=stop)
    assert column(rows, "outcome") == ["ok", "unsent"]
    assert column(rows, "target") == ["server-0", ""]
    assert column(rows, "request_kind") == [SPEC.name, SPEC.name]


def test_a_plan_that_says_the_servers_leaves_no_choice(tmp_path: Path) -> None:
    settings = replace(settings_for(tmp_path, [1, 2], "http"), choice="two-choices")
    with pytest.raises(ClusterError, match="the worker is to choose"):
        LoadWorker(settings, SystemClock()).prepare(open_plan(3, 2))
