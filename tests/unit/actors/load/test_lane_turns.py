"""Whose turn it is where the C lane keeps the turns: as without it, request by request, and the bytes of each."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.handed_sequences import HandedSequences
from squall.actors.load.lane import IS_BUILT, Lane, LaneClosedLoop, LaneOpenLoop, lane_pacing
from squall.actors.load.lane_turns import LaneTurns
from squall.actors.load.pacing import NEVER_NS, Due, OpenLoop
from squall.actors.load.recorder import Recorder
from squall.actors.load.sequence_turns import FAILED, Turns
from squall.actors.messages.http_wire import HttpTemplate
from squall.actors.messages.sequence_wire import SequenceBytes, n_bytes_of, places_of
from squall.actors.net import http2
from squall.actors.net.loop import Loop
from squall.models.payload import encode_id
from squall.scenarios.arrivals.users import ConstantThink
from squall.scenarios.config.rows import ConstantRows, UniformRows
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.closed import ClosedPhase, ClosedPlan, ModelLoad
from squall.scenarios.plan.plan import PhaseSpan, Plan
from squall.scenarios.sequences import IN_TURN, SequenceRule, Sequences
from tests.golden.driving import SPEC, S, plan_of

pytestmark = pytest.mark.skipif(
    not IS_BUILT, reason="the lane is not built: no C compiler was there at the install"
)
START_NS = 1
"""Long past on the clock of the lane: everything is due at once."""
N_LANES, N = 5, 300
RULE = SequenceRule(N_LANES, UniformRows(kind="uniform", low=1, high=7), 3, "r")
PARAMETERS: dict[str, Any] = {"lang": "de", "n": 7}
Made = Callable[..., Lane]


def template_of(protocol: str) -> HttpTemplate:
    return HttpTemplate(b"head", b"tail", 1, SPEC, n_between_bytes=n_bytes_of(protocol, PARAMETERS))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    """A lane for requests of sequences."""
    labels = {"run": "r", "node": "node-0"}
    recorder = Recorder(tmp_path / "requests.arrows", labels, 0, ["m"], ["server-0", "server-1"], ["m"])
    loop, lanes = Loop(SystemClock()), []

    def make(rule: SequenceRule = RULE, protocol: str = "http", choice: Any = "planned") -> Lane:
        one = template_of(protocol)
        templates = {(target, 1, 0): one.sent_to(target) for target in range(2 if choice != "planned" else 1)}
        handed = HandedSequences(Sequences(rule), rule, places_of(protocol, PARAMETERS))
        lanes.append(Lane(loop, recorder, templates, len(templates), choice, None, handed))
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.core.close()
    loop.close()
    recorder.close()


@dataclass
class InPython:
    """Sends the arrivals of a plan in turn, without a lane."""

    pacing: OpenLoop
    turns: Turns[Due]

    def __post_init__(self) -> None:
        self.pacing.begin(START_NS)
        self.released: deque[Due] = deque()

    @property
    def n_waiting(self) -> int:
        return self.turns.n_waiting + len(self.released)

    def go(self) -> tuple[str, int, str] | None:
        """What becomes of the next request that does not wait; None: all others do, or none is left."""
        if self.released:
            return "sent", self.released.popleft().token, IN_TURN
        while not self.pacing.is_over:
            due = self.pacing.take()
            turn, why = self.turns.comes(due.token, due)
            if turn != "later":
                return ("sent" if turn == "now" else "never"), due.token, why
        return None

    def end(self, token: int, is_ok: bool) -> tuple[list[int], str]:
        """Those that are never sent for it, and why."""
        passed = self.turns.ended(token, is_ok)
        if passed.next is not None:
            self.released.append(passed.next)
        return [due.token for due in passed.never], passed.why if passed.never else ""

    def rest(self) -> list[int]:
        return sorted(due.token for due in (*self.released, *self.turns.rest()))


@dataclass
class ByLane:
    """The same where the lane keeps the turns, and has no connection: it gives Python each that has its turn."""

    lane: Lane
    pacing: LaneOpenLoop
    turns: LaneTurns[Due]

    def __post_init__(self) -> None:
        self.pacing.begin(START_NS)

    @property
    def n_waiting(self) -> int:
        return self.turns.n_waiting

    def go(self) -> tuple[str, int, str] | None:
        while self.pacing.next_ns == NEVER_NS and not self.pacing.is_over:
            self.lane.core.turn(0)
        if self.pacing.is_over:
            return None
        due = self.pacing.take()
        turn, why = self.turns.comes(due.token, due)
        return ("sent" if turn == "now" else "never"), due.token, why

    def end(self, token: int, is_ok: bool) -> tuple[list[int], str]:
        passed = self.turns.ended(token, is_ok)
        assert passed.next is None, "the lane has it"
        return [due.token for due in passed.never], passed.why

    def rest(self) -> list[int]:
        return sorted(due.token for due in self.turns.rest())


def trace(way: InPython | ByLane, seed: int, n_steps: int) -> list[Any]:
    """What it does while requests end in an order of chance, a tenth of them with a failure."""
    rng = np.random.default_rng(seed)
    out: list[Any] = []
    in_flight: list[int] = []
    for _ in range(n_steps):
        event = way.go() if not in_flight or rng.random() < 0.5 else None
        if event is not None:
            in_flight += [event[1]] * (event[0] == "sent")
            out.append(event)
        elif in_flight:
            token = in_flight.pop(rng.integers(len(in_flight)))
            out.append((way.end(token, bool(rng.random() > 0.1)), way.n_waiting))
    return [*out, way.rest()]


@pytest.mark.parametrize("n_steps", [2 * N + 1, 250])
@pytest.mark.parametrize(
    ("is_ordered", "is_cut"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_the_lane_keeps_the_turns_that_python_keeps(
    made: Made, is_ordered: bool, is_cut: bool, n_steps: int
) -> None:
    """Also where the run ends while some wait."""
    rule = replace(RULE, is_ordered=is_ordered, is_cut_by_failure=is_cut)
    plan = plan_of([0] * N, S)
    for seed in range(5):
        lane = made(rule)
        python = InPython(OpenLoop(plan, {(0, 1, 0): lane.templates[0]}), Turns(Sequences(rule), rule))
        native = ByLane(lane, LaneOpenLoop(plan, lane), LaneTurns(lane.core, lane.due_of_arrival))
        python_did, lane_did = (trace(way, seed, n_steps) for way in (python, native))
        assert lane_did == python_did
        whys = {event[2] for event in lane_did[:-1] if len(event) == 3}
        assert (IN_TURN in whys) == is_ordered
        assert (FAILED in whys) == is_cut


@dataclass
class Wire:
    """The other end of a lane's only connection; each request ends well as soon as it was read."""

    lane: Lane
    protocol: str

    def __post_init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.stream = 1

    def park(self) -> None:
        core, fd = self.lane.core, self.ours.fileno()
        if self.protocol == "http":
            core.park_http(fd, self, 0)
        else:
            core.park_grpc(
                fd, self, b"block", [b"h"], [b"t"], (self.stream, 65_535, 0, 0), 65_535, 16_384, 1, 0
            )
            self.stream += 2

    def sent(self) -> tuple[int, bytes]:
        """The next request: its id, and its bytes."""
        self.park()
        self.lane.core.turn(0)
        data = self.theirs.recv(1 << 16)
        if self.protocol == "grpc":
            (data,) = [one.payload for one in http2.split_frames(data, 16_384) if one.kind == http2.DATA]
        [(*_, flights)] = self.lane.core.reclaim(self.ours.fileno())
        [(token, *_)] = flights
        return token, data

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def users_plan() -> ClosedPlan:
    """Users 1 and 3 of 5, in two phases."""
    think = ConstantThink(kind="constant")
    spans = (PhaseSpan("m", "measure", 0, 10**18), PhaseSpan("d", "drain", 10**18, 10**18 + 1))
    return ClosedPlan(
        users=np.array([1, 3], np.int64),
        n_users=N_LANES,
        spans=spans,
        phases=(ClosedPhase(N_LANES, think, 0, ConstantRows(), (ModelLoad(1.0, ConstantRows()),)), None),
        models=(VariantRange(0, 1),),
        seed=1,
    )


PLANS: dict[str, Plan | ClosedPlan] = {
    "open": plan_of([0] * N, S, seq=[3 * i for i in range(N)]), "closed": users_plan()
}  # fmt: skip


@pytest.mark.parametrize("load", PLANS)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_the_lane_writes_is_what_python_would(made: Made, protocol: str, load: str) -> None:
    """Each request of many sequences: the id of its sequence, and whether it is the first or the last of it."""
    lane, plan = made(replace(RULE, is_cut_by_failure=False), protocol), PLANS[load]
    pacing, turns = lane_pacing(plan, lane), LaneTurns(lane.core, lane.due_of_arrival)
    between = SequenceBytes(Sequences(RULE), protocol, PARAMETERS)
    one, wire = template_of(protocol), Wire(lane, protocol)
    pacing.begin(START_NS)
    tokens = []
    for _ in range(N):
        token, data = wire.sent()
        assert data == one.head + encode_id(token) + between(token) + one.tail
        due = Due(START_NS, START_NS, token, 0, lane.templates[0])
        turns.ended(token, True)
        pacing.ended(due, START_NS)
        tokens.append(token)
    wire.close()
    assert len({*tokens}) == N
    assert pacing.is_over == (load == "open")


def test_a_user_whose_request_failed_leaves_out_the_rest_of_its_sequence(made: Made) -> None:
    rule = replace(RULE, length=ConstantRows(value=4))
    lane = made(rule)
    pacing, turns = LaneClosedLoop(users_plan(), lane), LaneTurns(lane.core, lane.due_of_arrival)
    pacing.begin(START_NS)
    did = []
    for _ in range(24):
        lane.core.turn(0)
        due = pacing.take()
        turn, why = turns.comes(due.token, due)
        number, user = divmod(due.token, N_LANES)
        did.append((user, number, turn))
        if turn == "never":
            assert why == FAILED
            pacing.left_out(due)
        else:
            turns.ended(due.token, not (user == 3 and number == 5))
            pacing.ended(due, due.at_ns + 1)
    for user in (1, 3):
        assert [n for one, n, _ in did if one == user] == [*range(sum(one == user for one, *_ in did))]
    assert [one[:2] for one in did if one[2] == "never"] == [(3, 6), (3, 7)]
    lane.core.turn(0)
    assert pacing.take().token % N_LANES in (1, 3), "each of them goes on"


def test_where_the_server_is_chosen_at_the_send_a_sequence_keeps_it(made: Made) -> None:
    rule = replace(RULE, length=ConstantRows(value=3))
    lane = made(rule, choice="least-in-flight")
    native = ByLane(lane, LaneOpenLoop(plan_of([0] * N, S), lane), LaneTurns(lane.core, lane.due_of_arrival))
    rng = np.random.default_rng(2)
    in_flight: list[Due] = []
    servers: dict[int, int] = {}
    for _ in range(2 * N):
        lane.core.turn(0)
        if native.pacing.next_ns != NEVER_NS and rng.random() < 0.7:
            due = native.pacing.take()
            assert native.turns.comes(due.token, due)[0] == "now"
            in_flight.append(due)
            key = Sequences(rule).place(due.token).correlation_id
            assert servers.setdefault(key, due.template.target) == due.template.target
        elif in_flight:
            due = in_flight.pop(rng.integers(len(in_flight)))
            native.turns.ended(due.token, True)
            native.pacing.ended(due, START_NS)
    assert len(servers) > 20
    assert {*servers.values()} == {0, 1}
