"""Users of a closed loop against a server whose service times are known."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.worker import LoadWorker
from squall.scenarios.arrivals.users import ConstantThink
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad, request_id
from squall.scenarios.plan.plan import PhaseSpan
from squall.scenarios.units import parse_duration
from tests.fakes import Behaviour, StubTriton
from tests.fakes_grpc import GrpcBehaviour, StubGrpc
from tests.golden.driving import MS, REPLY_BYTES, S, column, numbers, requests_of, run_asking, settings_of

pytestmark = pytest.mark.usefixtures("way")
N_USERS = 6
SERVICE_S = 0.02
LENGTH_NS = S // 2


def plan_of(think: str, n_users: int = N_USERS, ramp_ns: int = 0) -> ClosedPlan:
    """Half a measured second of users, then the time that a slow machine takes for the last replies."""
    think_config = ConstantThink.model_validate({"kind": "constant", "value": think})
    return ClosedPlan(
        users=np.arange(n_users, dtype=np.int64),
        n_users=n_users,
        spans=(PhaseSpan("m", "measure", 0, LENGTH_NS), PhaseSpan("d", "drain", LENGTH_NS, 60 * S)),
        phases=(
            ClosedPhase(n_users, think_config, ramp_ns, ConstantRows(), (ModelLoad(1.0, ConstantRows()),)),
            None,
        ),
        models=(VariantRange(0, 2),),
        seed=1,
    )


Stub = StubTriton | StubGrpc
Instants = dict[int, list[tuple[int, int]]]


def stub_of(protocol: str) -> Stub:
    if protocol == "http":
        return StubTriton(lambda _: Behaviour(service_s=SERVICE_S), REPLY_BYTES)
    return StubGrpc(lambda _: GrpcBehaviour(service_s=SERVICE_S), REPLY_BYTES)


def run(folder: Path, plan: ClosedPlan, port: int, protocol: str = "http") -> Instants:
    """(sent, done) of each request of each user, in ns of the run and in order; all are ok."""
    settings = settings_of(folder, port, protocol=protocol)
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan)
    start_ns = SystemClock().monotonic_ns() + 30 * MS
    worker.run(start_ns)
    rows = requests_of(settings)
    assert worker.n_issued() == rows.num_rows
    assert set(column(rows, "outcome")) == {"ok"}
    users = of_users(rows, plan.n_users)
    assert min(sent_ns for requests in users.values() for sent_ns, _ in requests) >= start_ns
    return {
        user: [(sent_ns - start_ns, done_ns - start_ns) for sent_ns, done_ns in requests]
        for user, requests in users.items()
    }


def of_users(rows: pa.Table, n_users: int) -> Instants:
    """(sent, done) of each request of each user in order, of rows by request_id that have no schedule."""
    assert rows.column("scheduled_ns").null_count == rows.num_rows
    users: Instants = {}
    instants = (numbers(rows, name).tolist() for name in ("request_id", "sent_ns", "done_ns"))
    for one, sent_ns, done_ns in zip(*instants, strict=True):
        user = one % n_users
        assert one == request_id(n_users, user, len(users.setdefault(user, [])))
        users[user].append((sent_ns, done_ns))
    return users


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("think", ["0s", "30ms"])
def test_a_user_sends_again_when_its_reply_has_come_and_it_has_thought(
    think: str, protocol: str, tmp_path: Path
) -> None:
    with stub_of(protocol) as stub:
        settings = settings_of(tmp_path, stub.port, protocol=protocol)
        rows, _ = run_asking(settings, 20 * N_USERS, N_USERS, think=think)
    assert set(column(rows, "outcome")) - {"cancelled"} == {"ok"}
    assert rows.num_rows >= 20 * N_USERS
    users = of_users(rows, N_USERS)
    assert sorted(users) == list(range(N_USERS))
    think_ns = parse_duration(think)
    for requests in users.values():
        for (sent_ns, done_ns), (next_ns, _) in pairwise(requests):
            assert done_ns - sent_ns >= SERVICE_S * S
            assert next_ns >= done_ns + think_ns


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("think", ["0s", "30ms"])
def test_what_is_due_after_the_phase_is_not_sent(think: str, protocol: str, tmp_path: Path) -> None:
    with stub_of(protocol) as stub:
        users = run(tmp_path, plan_of(think), stub.port, protocol)
    assert sorted(users) == list(range(N_USERS))
    think_ns = parse_duration(think)
    for requests in users.values():
        for (_, done_ns), _ in pairwise(requests):
            assert done_ns + think_ns < LENGTH_NS, "due before the phase's end, though it may be sent later"


def test_users_begin_over_the_ramp(tmp_path: Path) -> None:
    with StubTriton(lambda _: Behaviour(service_s=SERVICE_S), REPLY_BYTES) as stub:
        users = run(tmp_path, plan_of("0s", ramp_ns=300 * MS), stub.port)
    for user in range(N_USERS):
        assert users[user][0][0] >= 50 * MS * user
