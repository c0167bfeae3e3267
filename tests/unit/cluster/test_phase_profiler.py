"""The profiler's steps follow the measured phases, one recording at a time, and a failed step costs only its phase."""

from __future__ import annotations

from typing import Any, cast

import pytest

from analysis.timeline import ClockMap
from cluster.phase_profiler import LEAD_NS, PhaseProfiler
from cluster.spawn import Handle
from scenarios.errors import ClusterError
from scenarios.plan import PhaseSpan
from scenarios.units import NS_PER_S

S = NS_PER_S
SPANS = (
    PhaseSpan("warmup", "warmup", 0, 5 * S),
    PhaseSpan("one", "measure", 5 * S, 10 * S),
    PhaseSpan("pause", "warmup", 10 * S, 15 * S),
    PhaseSpan("two", "measure", 15 * S, 20 * S),
    PhaseSpan("drain", "drain", 20 * S, 25 * S),
)
CLOCK = ClockMap(1000, 0)


class ScriptedAgent:
    """Notes each call; `answers` by method, an exception is raised by `wait`; `slow` methods are not done yet."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.slow: set[str] = set()
        self.answers: dict[str, Any] = {"start_profiler": 4 * S, "stop_profiler": None, "spill_profile": []}

    def begin(self, method: str, phase: str) -> str:
        self.calls.append((method, phase))
        return method

    def is_done(self, method: str) -> bool:
        return method not in self.slow

    def wait(self, method: str, _: float = 0.0) -> Any:
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def agent() -> ScriptedAgent:
    return ScriptedAgent()


def profiler_of(agent: ScriptedAgent) -> PhaseProfiler:
    return PhaseProfiler(cast(Handle, agent), SPANS, CLOCK)


def drive(profiler: PhaseProfiler, until_s: int) -> None:
    for second in range(until_s + 1):
        profiler.drive(second * S)


def test_each_measured_phase_is_recorded_from_before_its_start_to_its_end(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    profiler.drive(5 * S - LEAD_NS - 1)
    assert agent.calls == []
    drive(profiler, 25)
    profiler.finish()
    profiler.collect()
    assert agent.calls == [
        (method, phase)
        for phase in ("one", "two")
        for method in ("start_profiler", "stop_profiler", "spill_profile")
    ]
    assert profiler.losses == []
    assert all(one["is_profiled"] for one in profiler.coverage(1000).values())


def test_a_recording_is_not_stopped_before_its_phase_ends(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    drive(profiler, 9)
    assert agent.calls == [("start_profiler", "one")]
    profiler.drive(10 * S)
    assert agent.calls[1] == ("stop_profiler", "one")


def test_a_second_recording_waits_for_the_end_of_the_first(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    agent.slow = {"stop_profiler"}
    drive(profiler, 16)
    assert agent.calls[-1] == ("stop_profiler", "one")
    agent.slow = set()
    profiler.drive(17 * S)
    assert agent.calls[-1] == ("start_profiler", "two")


def test_a_start_that_fails_leaves_its_phase_unprofiled_and_says_why(agent: ScriptedAgent) -> None:
    agent.answers["start_profiler"] = ClusterError("nsys start failed: busy")
    profiler = profiler_of(agent)
    drive(profiler, 25)
    profiler.finish()
    profiler.collect()
    assert profiler.losses == [
        f"phase {name} is not profiled: nsys start failed: busy" for name in ("one", "two")
    ]
    assert profiler.coverage(0)["one"] == {
        "is_profiled": False, "profiled_after_ns": None, "reason": "nsys start failed: busy"
    }  # fmt: skip


def test_a_report_that_cannot_be_read_leaves_its_phase_unprofiled(agent: ScriptedAgent) -> None:
    agent.answers["spill_profile"] = ClusterError("nsys export failed: no space")
    profiler = profiler_of(agent)
    drive(profiler, 25)
    profiler.finish()
    profiler.collect()
    assert [one["is_profiled"] for one in profiler.coverage(0).values()] == [False, False]


def test_a_recording_cut_short_by_the_end_of_the_load_is_stopped_once(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    drive(profiler, 7)
    profiler.begin_finish()
    profiler.finish()
    profiler.collect()
    assert agent.calls.count(("stop_profiler", "one")) == 1
    assert profiler.losses == ["phase two is not profiled: nsys was not started for it"]


def test_coverage_says_how_late_a_recording_was_on(agent: ScriptedAgent) -> None:
    agent.answers["start_profiler"] = 6 * S
    profiler = profiler_of(agent)
    drive(profiler, 25)
    assert profiler.coverage(1000)["one"]["profiled_after_ns"] == 1 * S


def test_a_run_that_opens_with_a_measured_phase_is_recorded_before_it_starts(agent: ScriptedAgent) -> None:
    spans = (PhaseSpan("one", "measure", 0, 5 * S), PhaseSpan("drain", "drain", 5 * S, 6 * S))
    profiler = PhaseProfiler(cast(Handle, agent), spans, CLOCK)
    profiler.start_first(spans[0])
    assert agent.calls == [("start_profiler", "one")]
