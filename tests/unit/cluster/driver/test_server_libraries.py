"""Which of the libraries a run's server gets, when kernels are recorded, and what is said where they are not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.collected import KernelRecordingFacts, RecordedProcess
from squall.cluster.driver.observed_collectors import Collectors
from squall.cluster.driver.server_libraries import ServerLibraries
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.injected.kernel_recording import NO_CUDA, NO_GPU
from squall.cluster.progress import Screen
from squall.cluster.remote.spawn import Handle
from squall.scenarios.config.duty import Duty
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ClusterError
from squall.scenarios.plan.plan import PhaseSpan
from tests.integration.live_runs import scenario_mapping

S = 1_000_000_000


class Agent:
    """Answers by the method's name, and notes what it was asked."""

    def __init__(self, **answers: object) -> None:
        self.answers: dict[str, object] = {"missing_kernels": None, "missing_library": None, **answers}
        self.asked: list[tuple[str, tuple[object, ...]]] = []

    def call(self, method: Callable[..., Any], *arguments: object) -> object:
        self.asked.append((method.__name__, arguments))
        return self.answers.get(method.__name__)

    def begin(self, method: Callable[..., Any], *arguments: object) -> Future[object]:
        found: Future[object] = Future()
        found.set_result(self.call(method, *arguments))
        return found

    def wait(self, reference: Future[object], timeout_s: float) -> object:
        del timeout_s
        return reference.result()


class Quiet(Screen):
    """Keeps what it is told is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def missing(self, name: str, reason: str, mend: str) -> None:
        del mend
        self.told.append(f"{name}: {reason}")


def chosen(agent: Agent, nsys: bool = False, **profile: object) -> tuple[ServerLibraries, Collectors, Quiet]:
    """Of a foreign model in a server that squall starts."""
    mapping = scenario_mapping(
        model={"name": "plain", "repository": "/models"}, profile={"nsys": "off", "nvml": "off", **profile}
    )
    screen = Quiet()
    collectors = Collectors(screen)
    if nsys:
        collectors.turn_on("nsys")
    scenario = scenario_from_mapping(mapping, "test")
    libraries = ServerLibraries([scenario.models[0].model], scenario.profile, collectors)
    libraries.choose_batches(handle(agent))
    libraries.choose_kernels(handle(agent))
    return libraries, collectors, screen


def handle(agent: Agent) -> Handle[NodeAgent]:
    return cast(Handle[NodeAgent], agent)


def test_where_both_can_be_a_server_gets_both_and_the_manifest_says_how() -> None:
    libraries, collectors, _ = chosen(Agent(), kernel_kinds=["kernels", "sync"])
    assert (libraries.has_batches, libraries.kernel_kinds) == (True, ("kernels", "sync"))
    assert collectors.states()["kernels"].how == "by the kernel library in the server's processes"


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        (NO_GPU, "off", []),
        ("the kernel library was not built", "missing", ["kernels: the kernel library was not built"]),
    ],
)
def test_a_node_without_a_gpu_is_no_lack_and_one_without_the_library_is(
    answer: str, status: str, told: list[str]
) -> None:
    libraries, collectors, screen = chosen(Agent(missing_kernels=answer))
    state = collectors.states()["kernels"]
    assert (state.status, state.reason) == (status, answer)
    assert screen.told == told
    assert libraries.kernel_kinds == ()
    with pytest.raises(ClusterError, match=f"profile.kernels is required, but {answer}"):
        chosen(Agent(missing_kernels=answer), kernels="required")


def test_kernels_that_are_off_are_not_asked_for() -> None:
    agent = Agent()
    libraries, collectors, _ = chosen(agent, kernels="off")
    assert collectors.states()["kernels"].reason == "profile.kernels is off"
    assert libraries.kernel_kinds == ()
    assert [name for name, _ in agent.asked] == ["missing_library"]


def test_beside_nsys_kernels_are_recorded_only_where_it_leaves_cupti_free() -> None:
    libraries, collectors, screen = chosen(Agent(), nsys=True)
    state = collectors.states()["kernels"]
    assert (state.status, state.reason) == ("off", "nsys records CUDA; CUPTI serves one profiler at a time")
    assert (libraries.kernel_kinds, screen.told) == ((), [])
    assert chosen(Agent(), nsys=True, trace=["osrt"])[1].is_on("kernels")


GLIBC = "version `GLIBC_2.34' not found (required by /squall/_batches.so)"


def test_a_container_gets_both_like_any_other_server() -> None:
    mapping = scenario_mapping(
        model={"name": "plain", "repository": "/models"}, profile={"nsys": "off", "nvml": "off"},
        server={"image": "triton:25.01"},
    )  # fmt: skip
    scenario = scenario_from_mapping(mapping, "test")
    libraries = ServerLibraries([scenario.models[0].model], scenario.profile, Collectors(Quiet()))
    libraries.choose_batches(handle(Agent()))
    libraries.choose_kernels(handle(Agent()))
    assert (libraries.has_batches, libraries.kernel_kinds) == (True, ("kernels", "copies"))


def test_what_came_to_nothing_in_the_server_is_said_when_it_is_ready() -> None:
    libraries, collectors, screen = chosen(Agent())
    libraries.confirm(handle(Agent()))
    assert (collectors.is_on("batches"), collectors.is_on("kernels"), screen.told) == (True, True, [])
    libraries.confirm(handle(Agent(missing_batches="the rings are of user 0")))
    assert (collectors.is_on("batches"), collectors.is_on("kernels")) == (False, True)
    assert screen.told == ["batches: the rings are of user 0"]
    libraries, collectors, screen = chosen(Agent())
    libraries.confirm(handle(Agent(missing_batches=GLIBC, missing_kernel_library=GLIBC)))
    assert screen.told == [f"batches: {GLIBC}", f"kernels: {GLIBC}"]
    assert (libraries.has_batches, libraries.kernel_kinds) == (False, ())


@pytest.mark.parametrize("name", ["batches", "kernels"])
def test_what_is_required_and_came_to_nothing_ends_the_run_before_its_load(name: str) -> None:
    profile: dict[str, Any] = {name: "required"}
    libraries, _, _ = chosen(Agent(), **profile)
    agent = Agent(missing_batches=GLIBC, missing_kernel_library=GLIBC)
    with pytest.raises(ClusterError, match=f"profile.{name} is required, but version"):
        libraries.confirm(handle(agent))


def test_what_was_not_to_be_in_the_server_is_not_asked_for() -> None:
    libraries, _, _ = chosen(Agent(), batches="off", kernels="off")
    agent = Agent()
    libraries.confirm(handle(agent))
    assert agent.asked == []


@pytest.mark.parametrize(
    ("writer", "how"),
    [
        ("hook", "by the hook in Python models"),
        ("library", "by the batch library in the server"),
        (None, "by the batch library in the server"),
    ],
)
def test_the_manifest_says_who_records_in_the_server(writer: str | None, how: str) -> None:
    libraries, collectors, _ = chosen(Agent())
    agent = Agent(batches_by=writer)
    libraries.follow(handle(agent), 8000)
    assert collectors.states()["batches"].how == how
    libraries, collectors, _ = chosen(agent)
    libraries.confirm(handle(agent))
    assert collectors.states()["batches"].how == how


def test_of_a_server_of_somebody_elses_its_processes_say_whether() -> None:
    libraries, collectors, screen = chosen(Agent())
    agent = Agent(follow_kernels="the server was started without SQUALL_KERNELS")
    libraries.follow(handle(agent), 8000)
    assert ("follow_kernels", (8000,)) in agent.asked
    assert screen.told == ["kernels: the server was started without SQUALL_KERNELS"]
    libraries.follow(handle(Agent()), None)
    assert collectors.states()["kernels"].status == "off", "nobody knows whether it has a GPU"


def test_the_node_is_told_the_measured_phases_on_its_own_clock() -> None:
    libraries, _, _ = chosen(Agent(), duty="100ms/1s")
    agent = Agent()
    clock = ClockTrack.constant(5 * S)
    spans = [
        PhaseSpan("w", "warmup", 0, S),
        PhaseSpan("one", "measure", S, 3 * S),
        PhaseSpan("d", "drain", 3 * S, 4 * S),
    ]
    libraries.record(handle(agent), clock, 20 * S, spans)
    (asked,) = agent.asked
    assert asked == ("record_kernels", (((16 * S, 18 * S),), Duty(S // 10, S)))
    libraries.stop(handle(agent))
    assert agent.asked[-1] == ("stop_kernels", ())


def test_a_server_without_kernels_is_not_told_when_to_record() -> None:
    libraries, _, _ = chosen(Agent(), kernels="off")
    agent = Agent()
    libraries.record(handle(agent), cast(ClockTrack, None), 0, [PhaseSpan("one", "measure", 0, S)])
    assert agent.asked == []


RECORDS = RecordedProcess(process=1, status="process 1: kernels recording (CUPTI 130001)")
LACKS = RecordedProcess(process=2, status="process 2: kernels no cupti (no file)")


@pytest.mark.parametrize(
    ("facts", "status", "reason"),
    [
        (KernelRecordingFacts(n_windows=1, recorded_ns=5, processes=(RECORDS, LACKS)), "on", ""),
        (KernelRecordingFacts(), "off", NO_CUDA),
        (KernelRecordingFacts(processes=(RECORDS, LACKS)), "missing", LACKS.status),
        (
            KernelRecordingFacts(processes=(RECORDS,), losses=("kernels: 5 lost",)),
            "missing",
            "kernels: 5 lost",
        ),
        (KernelRecordingFacts(processes=(RECORDS,)), "missing", "no window of a measured phase was recorded"),
    ],
)
def test_a_recording_that_gave_nothing_says_why(
    facts: KernelRecordingFacts, status: str, reason: str
) -> None:
    libraries, collectors, screen = chosen(Agent())
    libraries.judge(facts)
    state = collectors.states()["kernels"]
    assert (state.status, state.reason) == (status, reason)
    assert screen.told == ([f"kernels: {reason}"] if status == "missing" else [])


def test_a_recording_that_was_required_and_found_no_cuda_is_missing() -> None:
    libraries, collectors, _ = chosen(Agent(), kernels="required")
    libraries.judge(KernelRecordingFacts())
    assert collectors.states()["kernels"].status == "missing"
