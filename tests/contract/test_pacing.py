"""What every pacing does: those in Python, and those whose arrivals the C lane keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.lane import IS_BUILT, Lane, lane_pacing
from squall.actors.load.pacing import NEVER_NS, Due, Pacing, plain_pacing
from squall.actors.load.recorder import NEVER, Recorder
from squall.actors.messages.http_wire import HttpTemplate
from squall.actors.net.loop import Loop
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.drafting import plan_closed
from squall.scenarios.plan.plan import Plan
from tests.golden.driving import MS, SPEC, S, plan_of

START_NS = 1
"""Long past on the clock of the lane, which gives Python only what is due and finds no connection: here, all."""
SERVICE_NS = MS
TEMPLATES = {(0, rows, 0): HttpTemplate(b"head", b"tail" * rows, rows, SPEC) for rows in (1, 2)}
needs_lane = pytest.mark.skipif(not IS_BUILT, reason="the lane is not built")
WAYS = ["python", pytest.param("lane", marks=needs_lane)]


def open_plan() -> Plan:
    """More arrivals than a pacing reads at a time, some of them at one instant, and not numbered from 0."""
    n = 1_100
    return plan_of([i // 3 * MS for i in range(n)], 2 * S, seq=[3 * i + 1 for i in range(n)])


def closed_plan() -> ClosedPlan:
    """More steps of a user than are drawn at a time, over two phases."""
    phases: list[dict[str, Any]] = [
        {
            "name": name, "kind": "measure", "duration": "1s",
            "arrivals": {"kind": "closed", "users": users, "think": {"kind": "exponential", "mean": "7ms"}},
        }
        for name, users in (("few", 2), ("more", 3))
    ]  # fmt: skip
    phases.append({"name": "drain", "kind": "drain", "duration": "1s"})
    clients = {"rows": {"kind": "uniform", "low": 1, "high": 2}, "payload_variants": 1}
    whole = {"name": "users", "seed": 4, "model": {"name": "m", "max_batch_size": 8}, "clients": clients}
    return plan_closed(scenario_from_mapping({**whole, "phases": phases}, "users"))


PLANS: dict[str, Plan | ClosedPlan] = {"open": open_plan(), "closed": closed_plan()}


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane | None]:
    """None where it is not built."""
    labels = {"run": "r", "node": "node-0"}
    recorder = Recorder(tmp_path / "requests.arrows", labels, 0, ["few", "more"], ["server-0"], ["m"])
    loop = Loop(SystemClock())
    made = Lane(loop, recorder, TEMPLATES) if IS_BUILT else None
    yield made
    if made is not None:
        made.core.close()
    loop.close()
    recorder.close()


def pacing_of(plan: Plan | ClosedPlan, way: str, lane: Lane | None) -> Pacing:
    if way == "python":
        return plain_pacing(plan, TEMPLATES)
    assert lane is not None
    return lane_pacing(plan, lane)


@dataclass
class Server:
    """Sends what is due at its instant; each request ends `SERVICE_NS` later."""

    pacing: Pacing
    lane: Lane | None
    sent: list[Due] = field(default_factory=list)
    ends: list[tuple[int, int, Due]] = field(default_factory=list)

    def run(self) -> None:
        while not self.pacing.is_over or self.ends:
            if self.lane is not None:
                self.lane.core.turn(0)
            if self.ends and self.ends[0][0] <= self.pacing.next_ns:
                at_ns, _, due = heappop(self.ends)
                self.pacing.ended(due, at_ns)
            else:
                self.send()

    def send(self) -> None:
        next_ns = self.pacing.next_ns
        assert self.pacing.n_due_by(next_ns) > len(self.sent) >= self.pacing.n_due_by(next_ns - 1)
        due = self.pacing.take()
        assert due.at_ns == next_ns
        self.sent.append(due)
        heappush(self.ends, (next_ns + SERVICE_NS, due.token, due))


def driven(pacing: Pacing, lane: Lane | None) -> list[Due]:
    """All that it gives of a run with a server that keeps up."""
    pacing.begin(START_NS)
    server = Server(pacing, lane)
    server.run()
    return server.sent


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("load", PLANS)
def test_each_request_is_given_once_at_its_instant_and_in_order(
    load: str, way: str, lane: Lane | None
) -> None:
    plan = PLANS[load]
    pacing = pacing_of(plan, way, lane)
    dues = driven(pacing, lane)
    assert (pacing.is_over, pacing.next_ns) == (True, NEVER_NS)
    assert dues[0].at_ns >= START_NS
    assert [due.at_ns for due in dues] == sorted(due.at_ns for due in dues)
    assert len({due.token for due in dues}) == len(dues) > 500
    assert pacing.n_due_by(START_NS + 10 * S) == len(dues)
    n_users = len(plan) if isinstance(plan, ClosedPlan) else 1
    assert {pacing.user_of(due.token) for due in dues} == set(range(n_users))
    unscheduled = isinstance(plan, ClosedPlan)
    assert all(due.scheduled_ns == (NEVER if unscheduled else due.at_ns) for due in dues)
    assert list(pacing.rest()) == []


@needs_lane
@pytest.mark.parametrize("load", PLANS)
def test_the_lane_gives_what_python_gives(load: str, lane: Lane | None) -> None:
    python, native = (driven(pacing_of(PLANS[load], way, lane), lane) for way in ("python", "lane"))
    assert python == native
    assert len({due.template.rows for due in python}) == (2 if load == "closed" else 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("load", PLANS)
def test_the_rest_is_what_a_schedule_still_has_and_ends_the_pacing(
    load: str, way: str, lane: Lane | None
) -> None:
    plan = PLANS[load]
    pacing = pacing_of(plan, way, lane)
    pacing.begin(START_NS)
    assert not pacing.is_over
    taken = [pacing.take() for _ in range(2)]
    rest = list(pacing.rest())
    tokens = [due.token for due in (*taken, *rest)]
    assert tokens == (plan.seq.tolist() if isinstance(plan, Plan) else [due.token for due in taken])
    assert pacing.is_over


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("load", PLANS)
def test_nothing_is_due_before_the_run_begins(load: str, way: str, lane: Lane | None) -> None:
    assert pacing_of(PLANS[load], way, lane).next_ns == NEVER_NS
