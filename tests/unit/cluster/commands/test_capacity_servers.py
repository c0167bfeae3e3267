"""Fewer servers of a scenario, and that a server has nothing left of a run before the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from squall.actors.net.triton_control import ControlError
from squall.analysis.capacity.level import level_of
from squall.cluster.commands.decisions.draining import drain, pending
from squall.cluster.commands.decisions.fewer_servers import fewer, refuse_without_gpus
from squall.cluster.progress import Screen
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from tests.unit.analysis.decisions.test_judged import MAIN, evenly
from tests.unit.scenarios.promises.test_grammar import scenario

PROMISE = {"response": "p(95)<50ms"}
GPUS = [{"gpus": [place]} for place in range(3)]


def test_a_list_is_cut_and_one_per_gpu_is_named_by_its_gpus() -> None:
    listed = scenario(PROMISE, servers=GPUS)
    counted = scenario(PROMISE, servers={"per": "gpu"})
    for one in (listed, counted):
        refuse_without_gpus(one)
        found = fewer(one, 3, 1)
        assert [(name, n) for name, n, _ in found] == [("one", 1), ("one down", 2)]
        for _, n, fewer_of in found:
            assert [entry.gpus for entry in fewer_of.server_entries() or ()] == [
                (place,) for place in range(n)
            ]
    assert [name for name, _, _ in fewer(scenario(PROMISE, servers=GPUS[:2]), 2, 1)] == ["one"]
    assert fewer(counted, 1, 1) == []


def test_what_cannot_be_fewer_is_one_line() -> None:
    for servers in (None, {"count": 2}, {"per": "node"}, GPUS[:1], [{"weight": 1.0}, {"weight": 1.0}]):
        with pytest.raises(ScenarioError, match="--gpus: needs servers"):
            refuse_without_gpus(scenario(PROMISE, servers=servers))
    with pytest.raises(ScenarioError, match="are on 2 nodes"):
        fewer(scenario(PROMISE, servers={"per": "gpu"}), 4, 2)
    about_third = scenario({"response{server:server-2}": "p(95)<50ms"}, servers=GPUS)
    with pytest.raises(ScenarioError, match="server-2"):
        fewer(about_third, 3, 1)
    for servers in (GPUS, {"per": "gpu"}):
        with pytest.raises(ScenarioError, match=r"--gpus: one server alone is measured too: .*server-1"):
            refuse_without_gpus(scenario({"response{server:server-1}": "p(95)<50ms"}, servers=servers))


class Clock:
    """Time that passes a fifth of a second at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wait(self, longest_s: float, is_over: Callable[[], bool]) -> bool:
        end_s = self.now_s + longest_s
        while not is_over():
            if self.now_s >= end_s:
                return False
            self.now_s = min(self.now_s + 0.2, end_s)
        return True


RUNS_ALREADY: dict[str, Any] = {"url": "http://127.0.0.1:8000"}


def drained(
    clock: Clock, one: Scenario, n_unanswered: int, ask: Callable[[str], int | None] | None = None
) -> None:
    level = replace(level_of(evenly(200), [MAIN], None), n_unanswered=n_unanswered)
    drain(one, level, Screen(), clock.wait, ask)


def test_nothing_is_waited_for_where_all_was_answered_or_the_server_ends_with_the_run() -> None:
    clock = Clock()
    drained(clock, scenario(PROMISE, server=RUNS_ALREADY), 0)
    drained(clock, scenario(PROMISE), 50)
    assert clock.now_s == 0.0


def test_without_metrics_as_long_is_waited_as_the_unanswered_take() -> None:
    clock = Clock()
    drained(clock, scenario(PROMISE, server=RUNS_ALREADY), 50)
    assert clock.now_s == pytest.approx(2.5)  # 50 at 20/s
    drained(clock, scenario(PROMISE, server=RUNS_ALREADY), 1_000_000)
    assert clock.now_s == pytest.approx(62.5)


def test_with_metrics_nothing_may_be_pending(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    asked: list[str] = []

    def pending(url: str) -> int:
        asked.append(url)
        return 3 if clock.now_s < 4.0 else 0

    told = scenario(PROMISE, server={**RUNS_ALREADY, "metrics_port": 8002})
    drained(clock, told, 50, pending)
    assert set(asked) == {"http://127.0.0.1:8002"}
    assert clock.now_s == pytest.approx(4.0)
    drained(clock, told, 50, lambda _url: 1)
    assert clock.now_s == pytest.approx(64.0)
    assert "still has requests of the run before" in capsys.readouterr().err


def test_where_a_server_does_not_tell_as_long_is_waited_as_without_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(_url: str) -> None:
        raise ControlError("Connection refused")

    clock = Clock()
    told = scenario(PROMISE, server={**RUNS_ALREADY, "metrics_port": 8002})
    drained(clock, told, 50, lambda _url: None)
    assert clock.now_s == pytest.approx(2.5)
    monkeypatch.setattr("squall.cluster.commands.decisions.draining.Control", nobody)
    assert pending("http://127.0.0.1:8002") is None
