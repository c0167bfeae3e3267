"""The profiler's steps follow the measured phases, one recording at a time, and a failed step costs only its phase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import pytest

from squall.actors.nsys.session import SessionLost
from squall.analysis.storage.collected import NsysStep
from squall.cluster.driver.phase_profiler import LEAD_NS, PhaseProfiler
from squall.cluster.node.agent import NodeAgent
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError, LostActor
from squall.scenarios.plan.plan import PhaseSpan
from squall.scenarios.units import NS_PER_S

S = NS_PER_S
SPANS = (
    PhaseSpan("warmup", "warmup", 0, 5 * S),
    PhaseSpan("one", "measure", 5 * S, 10 * S),
    PhaseSpan("pause", "warmup", 10 * S, 15 * S),
    PhaseSpan("two", "measure", 15 * S, 20 * S),
    PhaseSpan("drain", "drain", 20 * S, 25 * S),
)


LOST = SessionLost("the nsys session is gone")


def to_run_ns(node_ns: int) -> int:
    """The node's clock is 1000 ns behind the run clock."""
    return node_ns + 1000


class ScriptedAgent:
    """Notes each call; `answers` by (method, phase) or method, an exception is raised by `wait`; `slow` methods are not
    done yet. A call of a method in `refused` cannot even begin."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.slow: set[str] = set()
        self.refused: dict[str, Exception] = {}
        self.told_after_restart: list[str] = []
        self.answers: dict[Any, Any] = {
            "start_profiler": 4 * S, "stop_profiler": None, "spill_profile": [], "restart_server": [],
        }  # fmt: skip

    def begin(self, method: Callable[..., Any], phase: str = "") -> tuple[str, str]:
        name = method.__name__
        if name in self.refused:
            raise self.refused[name]
        self.calls.append((name, phase))
        return name, phase

    def is_done(self, call: tuple[str, str]) -> bool:
        return call[0] not in self.slow

    def wait(self, call: tuple[str, str], _: float = 0.0) -> Any:
        answer = self.answers.get(call, self.answers[call[0]])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def started(self) -> list[str]:
        return [phase for method, phase in self.calls if method == "start_profiler"]


@pytest.fixture
def agent() -> ScriptedAgent:
    return ScriptedAgent()


def profiler_of(agent: ScriptedAgent, on_failure: Literal["keep", "restart"] = "keep") -> PhaseProfiler:
    return PhaseProfiler(cast(Handle[NodeAgent], agent), SPANS, on_failure, lambda: agent.told_after_restart)


def end(profiler: PhaseProfiler) -> None:
    profiler.begin_finish()
    profiler.finish()
    profiler.collect()


def drive(profiler: PhaseProfiler, until_s: int) -> None:
    for second in range(until_s + 1):
        profiler.drive(second * S)


def test_each_measured_phase_is_recorded_from_before_its_start_to_its_end(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    profiler.drive(5 * S - LEAD_NS - 1)
    assert agent.calls == []
    drive(profiler, 25)
    recorded = [(method, phase) for phase in ("one", "two") for method in ("start_profiler", "stop_profiler")]
    assert agent.calls == recorded
    end(profiler)
    assert agent.calls == [*recorded, ("spill_profile", "one"), ("spill_profile", "two")]
    assert profiler.losses == []
    assert all(one.is_profiled for one in profiler.coverage(1000, to_run_ns).values())


def test_a_recording_is_not_stopped_before_its_phase_ends(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    drive(profiler, 9)
    assert agent.calls == [("start_profiler", "one")]
    profiler.drive(10 * S)
    assert agent.calls[1] == ("stop_profiler", "one")


def test_a_phase_that_was_over_before_the_recording_ahead_of_it_ended_says_so(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    agent.slow = {"stop_profiler"}
    drive(profiler, 25)
    end(profiler)
    assert agent.started() == ["one"]
    reason = profiler.coverage(1000, to_run_ns)["two"].reason
    assert "still ending its recording of phase one" in reason
    assert profiler.losses == [f"phase two is not profiled: {reason}"]


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
    end(profiler)
    assert profiler.losses == [
        f"phase {name} is not profiled: nsys start failed: busy" for name in ("one", "two")
    ]
    one = profiler.coverage(0, to_run_ns)["one"]
    assert (one.is_profiled, one.profiled_after_ns, one.reason) == (
        False, None, "nsys start failed: busy",
    )  # fmt: skip


def test_a_report_that_cannot_be_read_leaves_its_phase_unprofiled(agent: ScriptedAgent) -> None:
    agent.answers["spill_profile"] = ClusterError("nsys export failed: no space")
    profiler = profiler_of(agent)
    drive(profiler, 25)
    end(profiler)
    assert [one.is_profiled for one in profiler.coverage(0, to_run_ns).values()] == [False, False]


def test_a_recording_cut_short_by_the_end_of_the_load_is_stopped_once(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    drive(profiler, 7)
    end(profiler)
    assert agent.calls.count(("stop_profiler", "one")) == 1
    assert profiler.losses == ["phase two is not profiled: the load ended before it"]


def test_coverage_says_how_late_a_recording_was_on(agent: ScriptedAgent) -> None:
    agent.answers["start_profiler"] = 6 * S
    profiler = profiler_of(agent)
    drive(profiler, 25)
    assert profiler.coverage(1000, to_run_ns)["one"].profiled_after_ns == 1 * S


def test_a_run_that_opens_with_a_measured_phase_is_recorded_before_it_starts(agent: ScriptedAgent) -> None:
    spans = (PhaseSpan("one", "measure", 0, 5 * S), PhaseSpan("drain", "drain", 5 * S, 6 * S))
    profiler = PhaseProfiler(cast(Handle[NodeAgent], agent), spans, "keep", list)
    profiler.start_first(spans[0])
    assert agent.calls == [("start_profiler", "one")]


def test_a_recording_that_is_on_only_after_its_phase_does_not_count(agent: ScriptedAgent) -> None:
    agent.answers["start_profiler"] = 11 * S
    profiler = profiler_of(agent)
    drive(profiler, 25)
    end(profiler)
    coverage = profiler.coverage(1000, to_run_ns)
    assert coverage["one"].reason == "nsys was on only after its end"
    assert not coverage["one"].is_profiled
    assert coverage["two"].is_profiled


def test_coverage_carries_what_the_node_says_of_the_steps(agent: ScriptedAgent) -> None:
    profiler = profiler_of(agent)
    drive(profiler, 25)
    end(profiler)
    steps = [
        NsysStep(phase="one", step="start", seconds=0.2, cpu_s=0.1),
        NsysStep(phase="one", step="record", seconds=5.0, cpu_s=0.3),
        NsysStep(phase="one", step="stop", seconds=1.5, cpu_s=0.9),
    ]
    coverage = profiler.coverage(1000, to_run_ns, steps)
    one, two = coverage["one"], coverage["two"]
    assert (one.start_s, one.stop_s, one.record_cpu_s) == (0.2, 1.5, 0.3)
    assert (two.start_s, two.stop_s, two.record_cpu_s) == (None, None, None)


@pytest.mark.parametrize("step", ["start_profiler", "stop_profiler"])
def test_a_step_that_fails_costs_its_own_phase_only(agent: ScriptedAgent, step: str) -> None:
    agent.answers[step, "one"] = ClusterError("nsys did not end within 30 s and was killed")
    profiler = profiler_of(agent)
    drive(profiler, 25)
    end(profiler)
    assert [one.is_profiled for one in profiler.coverage(1000, to_run_ns).values()] == [False, True]
    assert profiler.losses == ["phase one is not profiled: nsys did not end within 30 s and was killed"]


def test_a_lost_session_is_told_once_and_the_server_is_kept(agent: ScriptedAgent) -> None:
    agent.answers["start_profiler"] = LOST
    profiler = profiler_of(agent)
    drive(profiler, 25)
    end(profiler)
    assert agent.started() == ["one"]
    assert ("restart_server", "") not in agent.calls
    assert profiler.losses == [
        "phase one is not profiled: the nsys session is gone",
        "not profiled for that reason either: phase two",
    ]
    assert profiler.coverage(0, to_run_ns)["two"].reason == "the nsys session is gone"


def test_a_lost_session_restarts_the_server_and_the_next_phase_is_profiled(agent: ScriptedAgent) -> None:
    agent.answers["stop_profiler", "one"] = LOST
    agent.slow = {"restart_server"}
    profiler = profiler_of(agent, "restart")
    drive(profiler, 13)
    assert agent.calls[-1] == ("restart_server", "")
    agent.slow = set()
    for second in range(13, 26):
        profiler.drive(second * S)
    end(profiler)
    assert agent.started() == ["one", "two"]
    assert [one.is_profiled for one in profiler.coverage(1000, to_run_ns).values()] == [False, True]
    assert profiler.losses == [
        "phase one is not profiled: the nsys session is gone",
        "the server was started again in a new nsys session (the nsys session is gone): requests meanwhile failed",
    ]


def test_what_a_restart_leaves_behind_is_told_and_the_server_counts_as_restarted(
    agent: ScriptedAgent,
) -> None:
    agent.answers["stop_profiler", "one"] = LOST
    agent.answers["restart_server"] = ["its trace is gone"]
    agent.told_after_restart = ["after the server was started again: the observer is gone"]
    profiler = profiler_of(agent, "restart")
    drive(profiler, 25)
    end(profiler)
    assert agent.started() == ["one", "two"]
    assert profiler.losses[-2:] == ["its trace is gone", *agent.told_after_restart]
    assert profiler.coverage(1000, to_run_ns)["two"].is_profiled


def test_a_phase_that_passes_during_the_restart_is_told(agent: ScriptedAgent) -> None:
    agent.answers["stop_profiler", "one"] = LOST
    agent.slow = {"restart_server"}
    profiler = profiler_of(agent, "restart")
    drive(profiler, 25)
    end(profiler)
    assert agent.started() == ["one"]
    assert profiler.losses[-1] == "not profiled for that reason either: phase two"


def test_a_server_that_cannot_be_started_again_leaves_the_rest_unprofiled(agent: ScriptedAgent) -> None:
    agent.answers["start_profiler"] = LOST
    agent.answers["restart_server"] = ClusterError("no free port")
    profiler = profiler_of(agent, "restart")
    drive(profiler, 25)
    end(profiler)
    assert agent.started() == ["one"]
    assert "the server could not be started again in a new nsys session: no free port" in profiler.losses
    assert not profiler.coverage(0, to_run_ns)["two"].is_profiled


@pytest.mark.parametrize("on_failure", ["keep", "restart"])
def test_a_lost_agent_ends_no_run(agent: ScriptedAgent, on_failure: Literal["keep", "restart"]) -> None:
    profiler = profiler_of(agent, on_failure)
    drive(profiler, 7)
    for method in ("start_profiler", "stop_profiler", "spill_profile", "restart_server"):
        agent.refused[method] = LostActor("agent on node-0 is lost")
    for second in range(7, 26):
        profiler.drive(second * S)
    end(profiler)
    assert profiler.losses == [
        "phase one is not profiled: agent on node-0 is lost",
        "not profiled for that reason either: phase two",
    ]


def test_driving_never_waits_for_an_answer_that_is_not_there(agent: ScriptedAgent) -> None:
    """A scripted wait for a call that is not done fails."""
    agent.slow = {"start_profiler", "stop_profiler", "spill_profile"}

    def wait(call: tuple[str, str], _: float = 0.0) -> Any:
        raise AssertionError(f"waited for {call}")

    agent.wait = wait  # type: ignore[method-assign]
    drive(profiler_of(agent), 25)
    assert agent.calls == [("start_profiler", "one")]


def test_reports_are_taken_one_after_another(agent: ScriptedAgent) -> None:
    agent.answers["spill_profile", "one"] = ["the raw report of phase one is on node-0"]
    profiler = profiler_of(agent)
    drive(profiler, 25)
    profiler.begin_finish()
    profiler.finish()
    assert agent.calls[-1] == ("spill_profile", "one")
    profiler.collect()
    assert agent.calls[-1] == ("spill_profile", "two")
    assert profiler.losses == ["the raw report of phase one is on node-0"]
