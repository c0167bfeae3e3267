"""That a server which runs already has nothing left of a run before the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from squall.actors.net.triton_control import ControlError
from squall.cluster.draining import Draining, Unanswered, drain, left_of, pending
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measurer
from squall.cluster.progress import Screen
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.units import NS_PER_S
from tests.unit.scenarios.test_promises import scenario

PROMISE = {"response": "p(95)<50ms"}


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
    drain(one, lambda: Unanswered(n_unanswered, 20.0), Screen(), clock.wait, ask)


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
    def nobody(_url: str, _access: object) -> None:
        raise ControlError("Connection refused")

    clock = Clock()
    told = scenario(PROMISE, server={**RUNS_ALREADY, "metrics_port": 8002})
    drained(clock, told, 50, lambda _url: None)
    assert clock.now_s == pytest.approx(2.5)
    monkeypatch.setattr("squall.cluster.draining.Control", nobody)
    assert pending("http://127.0.0.1:8002") is None


def test_what_a_server_may_still_have_is_what_timed_out_and_not_what_it_refused() -> None:
    counts = {"ok": 196, "timeout": 1, "cancelled": 1, "rejected": 1, "unsent": 1}
    measured = SimpleNamespace(outcomes=SimpleNamespace(counts=counts, n_ok=196), duration_ns=10 * NS_PER_S)
    summary: Any = SimpleNamespace(measure=measured)
    assert left_of(RunResult(Path("run"), summary, "VALID")) == Unanswered(2, 19.6)
    assert left_of(RunResult(Path("run"), None, "VALID")) is None


class Runs:
    """Stands for `run_scenario`; each run leaves 50 requests unanswered, of 20 a second."""

    def __init__(self, waited: list[str]) -> None:
        self._steps = waited

    def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        del one, ray, interrupts
        self._steps.append(f"run in {out.name}")
        summary: Any = SimpleNamespace()
        return RunResult(out / "run", summary, "VALID")


def test_each_run_waits_for_what_the_one_before_left_in_whatever_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def waits(_interrupts: Interrupts, longest_s: float, _is_over: Callable[[], bool]) -> bool:
        steps.append(f"waits {longest_s:g} s")
        return True

    monkeypatch.setattr("squall.cluster.draining.wait_with", waits)
    draining, one = Draining(lambda _result: Unanswered(50, 20.0)), scenario(PROMISE, server=RUNS_ALREADY)
    sides = [
        Measurer(tmp_path / side, None, Interrupts(), Runs(steps), Screen(), draining) for side in ("a", "b")
    ]
    for side in sides:
        side.measure(one, "a run")
    assert steps == ["run in a", "waits 2.5 s", "run in b"]
    sides[0].once(scenario(PROMISE), "a server of its own")
    sides[0].once(one, "a run")
    assert steps[3:] == ["waits 2.5 s", "run in a", "run in a"]
