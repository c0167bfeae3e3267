"""Users of a closed loop against a server whose service times are known."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.worker import LoadWorker
from squall.scenarios.arrivals.users import ConstantThink
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad, request_id
from squall.scenarios.plan.plan import PhaseSpan
from tests.fakes import Behaviour, StubTriton
from tests.fakes_grpc import GrpcBehaviour, StubGrpc
from tests.golden.driving import MS, REPLY_BYTES, S, column, numbers, requests_of, settings_of

pytestmark = pytest.mark.usefixtures("way")
N_USERS = 6
SERVICE_S = 0.02
LENGTH_NS = 2 * S


def plan_of(think: str, n_users: int = N_USERS, ramp_ns: int = 0) -> ClosedPlan:
    """Two measured seconds of users, then the time that a slow machine takes for the last replies."""
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


def run(
    folder: Path, plan: ClosedPlan, port: int, protocol: str = "http"
) -> dict[int, list[tuple[int, int]]]:
    """(sent, done) of each request of each user, in ns of the run and in order; all are ok and have no schedule."""
    settings = settings_of(folder, port, protocol=protocol)
    worker = LoadWorker(settings, SystemClock())
    worker.prepare(plan)
    start_ns = SystemClock().monotonic_ns() + 30 * MS
    worker.run(start_ns)
    rows = requests_of(settings)
    assert worker.n_issued() == rows.num_rows
    assert set(column(rows, "outcome")) == {"ok"}
    assert rows.column("scheduled_ns").null_count == rows.num_rows
    ids, sent, done = (numbers(rows, name) for name in ("request_id", "sent_ns", "done_ns"))
    assert (sent >= start_ns).all()
    users: dict[int, list[tuple[int, int]]] = {}
    for one, sent_ns, done_ns in zip(ids.tolist(), sent.tolist(), done.tolist(), strict=True):
        user = one % plan.n_users
        assert one == request_id(plan.n_users, user, len(users.setdefault(user, [])))
        users[user].append((sent_ns - start_ns, done_ns - start_ns))
    return users


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("think", ["0s", "30ms"])
def test_a_user_sends_again_when_its_reply_has_come_and_it_has_thought(
    think: str, protocol: str, tmp_path: Path
) -> None:
    think_ns = 0 if think == "0s" else 30 * MS
    stub = (
        StubTriton(lambda _: Behaviour(service_s=SERVICE_S), REPLY_BYTES)
        if protocol == "http"
        else StubGrpc(lambda _: GrpcBehaviour(service_s=SERVICE_S), REPLY_BYTES)
    )
    with stub:
        users = run(tmp_path, plan_of(think), stub.port, protocol)
    assert sorted(users) == list(range(N_USERS))
    most = 1 + LENGTH_NS / (SERVICE_S * S + think_ns)  # no user can be quicker than service and think time
    # each of them only where the client has a core in these two seconds
    assert max(map(len, users.values())) >= 2
    for requests in users.values():
        assert len(requests) <= most
        for (_, done_ns), (next_ns, _) in pairwise(requests):
            assert next_ns >= done_ns + think_ns
            assert done_ns + think_ns < LENGTH_NS, "due before the phase's end, though it may be sent later"


def test_users_begin_over_the_ramp(tmp_path: Path) -> None:
    with StubTriton(lambda _: Behaviour(service_s=SERVICE_S), REPLY_BYTES) as stub:
        users = run(tmp_path, plan_of("0s", ramp_ns=600 * MS), stub.port)
    for user in range(N_USERS):
        assert users[user][0][0] >= 100 * MS * user
