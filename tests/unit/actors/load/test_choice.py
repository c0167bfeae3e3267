"""Which server a worker chooses: by what is in flight, in turn among equals, and in C as in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.choice import Choice, Chooser
from squall.actors.load.lane import IS_BUILT, Lane, lane_pacing
from squall.actors.load.pacing import Due
from squall.actors.messages.http_wire import HttpTemplate
from squall.actors.messages.template import Template, TemplateKey
from squall.actors.net.loop import Loop
from tests.golden.driving import SPEC, S, plan_of

RULES: tuple[Choice, ...] = ("least-in-flight", "two-choices")
by_rule = pytest.mark.parametrize("rule", RULES)


def templates_of(n_targets: int, n_kinds: int = 1) -> dict[TemplateKey, Template]:
    return {
        (target, rows, 0): HttpTemplate(b"head", b"tail", rows, SPEC).sent_to(target)
        for target in range(n_targets)
        for rows in range(1, n_kinds + 1)
    }


class Bench:
    """A chooser over requests of one kind."""

    def __init__(self, rule: Choice, n_targets: int) -> None:
        templates = templates_of(n_targets)
        self._first = templates[0, 1, 0]
        self.chooser = Chooser(rule, n_targets, templates)

    def send(self, token: int) -> int:
        return self.chooser.sent(token, self._first).target


def test_with_nothing_in_flight_servers_take_turns() -> None:
    bench = Bench("least-in-flight", 3)
    sent = []
    for token in range(6):
        sent.append(bench.send(token))
        bench.chooser.ended(sent[-1])
    assert sent == [0, 1, 2, 0, 1, 2]


def test_the_server_with_the_fewest_in_flight_is_chosen() -> None:
    bench = Bench("least-in-flight", 3)
    bench.chooser.n_in_flight = [5, 4, 9]
    assert [bench.send(token) for token in range(4)] == [1, 0, 1, 0]
    bench.chooser.ended(1)
    assert bench.send(4) == 1


def test_of_two_that_the_id_names_the_one_with_fewer_is_chosen() -> None:
    named: dict[int, set[int]] = {}
    for token in range(200):
        for busy in range(4):
            bench = Bench("two-choices", 4)
            bench.chooser.n_in_flight[busy] = 1
            target = bench.send(token)
            named.setdefault(token, set()).add(target)
            assert target != busy
    assert {len(pair) for pair in named.values()} == {2}
    assert len({frozenset(pair) for pair in named.values()}) == 6


def test_ids_name_each_pair_equally_often() -> None:
    n, n_targets = 6_000, 4
    pairs: Counter[tuple[int, int]] = Counter()
    for token in range(n):
        bench = Bench("two-choices", n_targets)
        first = bench.send(token)
        bench.chooser.n_in_flight[first] = 10
        pairs[first, bench.send(token)] += 1
    assert len(pairs) == n_targets * (n_targets - 1)
    share = 1 / len(pairs)
    for count in pairs.values():  # binomial: five standard errors, 22 % of what is due
        assert abs(count - n * share) < 5 * np.sqrt(n * share * (1 - share))


@by_rule
def test_one_server_is_always_chosen(rule: Choice) -> None:
    assert {Bench(rule, 1).send(token) for token in range(5)} == {0}


class NoRecords:
    """Takes no record."""

    def take_filled(self, buffer: bytearray, n_rows: int) -> bytearray:
        raise AssertionError((buffer, n_rows))


@pytest.fixture
def make_lane() -> Iterator[Callable[[Choice, int, dict[TemplateKey, Template]], Lane]]:
    loop = Loop(SystemClock())
    made: list[Lane] = []

    def make(rule: Choice, n_targets: int, templates: dict[TemplateKey, Template]) -> Lane:
        made.append(Lane(loop, NoRecords(), templates, n_targets, rule))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for lane in made:
        lane.core.close()
    loop.close()


@pytest.mark.skipif(not IS_BUILT, reason="the lane is not built")
@by_rule
@pytest.mark.parametrize("n_targets", [1, 2, 7, 64])
def test_the_lane_chooses_as_python_does(
    rule: Choice, n_targets: int, make_lane: Callable[[Choice, int, dict[TemplateKey, Template]], Lane]
) -> None:
    n = 3_000
    templates = templates_of(n_targets, 2)
    plan = plan_of(range(n), S, seq=[7 * i + 3 for i in range(n)])
    plan.rows[1::3] = 2
    pacing = lane_pacing(plan, make_lane(rule, n_targets, templates))
    chooser = Chooser(rule, n_targets, templates)
    pacing.begin(1)
    rng = np.random.default_rng(n_targets)
    in_flight: list[Due] = []
    chosen: Counter[int] = Counter()
    for i in range(n):
        due = pacing.take()
        assert due.template is chooser.sent(due.token, templates[0, int(plan.rows[i]), 0])
        in_flight.append(due)
        chosen[due.template.target] += 1
        while in_flight and rng.random() < 0.48 + 0.02 * (len(in_flight) > 40):
            ended = in_flight.pop(int(rng.integers(len(in_flight))))
            pacing.ended(ended, i)
            chooser.ended(ended.template.target)
    assert len(in_flight) > 20
    assert set(chosen) == set(range(n_targets))
