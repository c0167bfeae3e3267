"""The real nsys around a real Triton: one report a phase, and whatever nsys does wrong costs a phase and no server."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.actors.clock import SystemClock
from squall.actors.net.triton_control import Control
from squall.actors.nsys.session import NsysSession, NsysTools, SessionLost, Timeouts, find_nsys
from squall.actors.nsys.step import run_step
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.storage.store import RunStore
from squall.cluster.node.node_profiler import NodeProfiler
from squall.cluster.node.server import TritonServer
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.errors import ClusterError
from tests.integration.live_runs import Bench, scenario_mapping, wait_until

pytestmark = pytest.mark.single

LABELS = EventLabels("run", "node-0", "server-0")
QUICK_S = 1.0
"""How long a step may take that hangs by intent."""
HUNG_S = 1_000_000 + os.getpid()
"""How long a step hangs: an argument by which no other process is taken for it."""
PATIENT = Timeouts()
OURS = {"nsys": "auto", "nvml": "off", "osrt_threshold": "20us", "trace": ["nvtx", "osrt"]}
_WRAPPER = """#!/bin/sh
case "$(cat {control})" in
  "$1 hang") exec sleep {hung_s} ;;
  "$1 fail") echo 'nsys: out of luck' >&2; exit 3 ;;
  "$1 die") kill -9 $$ ;;
esac
exec {nsys} "$@"
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> NsysTools:
    """This machine's nsys, with its importer."""
    tools = find_nsys(tmp_path_factory.mktemp("cache"))
    if tools is None:
        pytest.skip("nsys is not installed (Debian: nsight-systems)")
    if tools.importer is None and tools.problems:
        pytest.skip(tools.problems[0].what)
    return tools


@dataclass
class Profiled:
    """A Triton under the real nsys, which a script can be told to spoil."""

    profiler: NodeProfiler
    server: TritonServer
    url: str
    folder: Path
    control: Path
    spilled: dict[tuple[str, str], pa.Table] = field(default_factory=dict)

    def spoil(self, what: str) -> None:
        """`start hang`, `stop fail`, `export die`, …; empty: nothing."""
        self.control.write_text(what)

    @contextlib.contextmanager
    def spoiled(self, what: str, **timeouts: float) -> Iterator[None]:
        session = self.profiler.session
        session.timeouts = Timeouts(**timeouts)
        self.spoil(what)
        try:
            yield
        finally:
            self.spoil("")
            session.timeouts = PATIENT

    def answers(self) -> bool:
        with contextlib.closing(Control(self.url)) as control:
            control.ask("/v2/health/ready")
        return True

    def load(self, seconds: float) -> None:
        """Asks the server for its statistics for a while: its threads block and wake."""
        end = time.monotonic() + seconds
        with contextlib.closing(Control(self.url)) as control:
            while time.monotonic() < end:
                control.ask("/v2/models/seqlen_head/stats")

    def spill(self, phase: str) -> list[str]:
        def write(table: str, part: str, data: Iterator[pa.Table]) -> list[str]:
            self.spilled[table, part] = pa.concat_tables(list(data)).unify_dictionaries()
            return []

        return self.profiler.spill(phase, LABELS, self.folder / "reports", write)

    def recording(self, phase: str, seconds: float = 0.3) -> tuple[int, int]:
        """Records some load; the node's clock before the start and after the stop."""
        first_ns = time.monotonic_ns()
        self.profiler.start(phase)
        self.load(seconds)
        self.profiler.stop(phase)
        return first_ns, time.monotonic_ns()

    def left_over(self) -> list[str]:
        """What nsys has written and nobody has deleted, but its own files of the session."""
        return [
            path.name
            for path in self.folder.glob("nsys-*/*")
            if path.suffix in (".nsys-rep", ".qdstrm", ".sqlite")
        ]


def profiled(
    real: NsysTools, folder: Path, monkeypatch: pytest.MonkeyPatch, **profile: Any
) -> Iterator[Profiled]:
    control, wrapper = folder / "control", folder / "wrapper"
    control.write_text("")
    wrapper.write_text(_WRAPPER.format(control=control, hung_s=HUNG_S, nsys=real.nsys))
    wrapper.chmod(0o755)
    monkeypatch.setenv("SQUALL_NSYS", str(wrapper))
    tools = find_nsys()
    assert tools is not None
    assert tools.version == real.version
    scenario = scenario_from_mapping(scenario_mapping(profile={**OURS, **profile}), "test")
    profiler = NodeProfiler(tools, scenario.profile, folder, SystemClock())
    server = TritonServer(
        [scenario.models[0].model], scenario.server, folder, profiler.session, has_gpu=False
    )
    try:
        yield Profiled(profiler, server, server.start().url, folder, control)
    finally:
        profiler.close()
        server.stop()
        profiler.remove()


@pytest.fixture(scope="module")
def shared(real: NsysTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Profiled]:
    """A server that survives what the tests do to its profiler."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield from profiled(real, tmp_path_factory.mktemp("shared"), monkeypatch)


@pytest.fixture
def own(real: NsysTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Profiled]:
    """A server of the test's own, to lose."""
    yield from profiled(real, tmp_path, monkeypatch)


def test_three_phases_give_three_reports_with_calls_and_none_outside_its_phase(shared: Profiled) -> None:
    spans = {phase: shared.recording(phase, 1.0) for phase in ("one", "two", "three")}
    for phase, (first_ns, last_ns) in spans.items():
        assert shared.spill(phase) == []
        calls = shared.spilled["osrt", phase]
        assert len(calls) > 0
        about = shared.profiler.facts().reports[phase]
        assert about.clock is not None
        error_ns = about.clock.error_ns
        assert error_ns is not None
        assert pc.min(calls["start_ns"]).as_py() >= first_ns - error_ns
        assert pc.max(calls["start_ns"]).as_py() <= last_ns + error_ns
        assert "squall-clock" in pc.unique(calls["thread_name"].cast(pa.string())).to_pylist()
        assert not about.clock.is_assumed
        assert about.clock.n_sleeps >= 3
        assert len(shared.spilled["clock_marks", phase]) >= 3
        print(f"{phase}: {len(calls)} calls, clock {about.clock}")
    assert shared.left_over() == []
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in shared.folder.glob("nsys-*"))
    assert {path.name for path in (shared.folder / "reports").iterdir()} == set(spans)
    for step in shared.profiler.costs():
        print(step)
    steps = [(cost.phase, cost.step) for cost in shared.profiler.costs()]
    for phase in spans:
        assert {step for name, step in steps if name == phase} >= {"start", "record", "stop", "export"}


SLOW = pytest.mark.slow
FAULTS = [
    ("hang", "did not end within 1 s and was killed"),
    pytest.param("fail", "out of luck", marks=SLOW),
    pytest.param("die", "signal 9", marks=SLOW),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_a_start_that_goes_wrong_costs_its_phase_only(shared: Profiled, fault: str, reason: str) -> None:
    with shared.spoiled(f"start {fault}", start_s=QUICK_S), pytest.raises(ClusterError, match=reason):
        shared.profiler.start("bad")
    assert shared.answers()
    shared.recording(f"after-start-{fault}")
    assert shared.spill(f"after-start-{fault}") == []


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_a_stop_that_goes_wrong_costs_its_phase_only(shared: Profiled, fault: str, reason: str) -> None:
    shared.profiler.start(f"bad-stop-{fault}")
    with shared.spoiled(f"stop {fault}", stop_s=QUICK_S), pytest.raises(ClusterError, match=reason):
        shared.profiler.stop(f"bad-stop-{fault}")
    assert shared.answers()
    first_ns, _ = shared.recording(f"after-stop-{fault}")
    assert shared.spill(f"after-stop-{fault}") == []
    assert pc.min(shared.spilled["osrt", f"after-stop-{fault}"]["start_ns"]).as_py() >= first_ns


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_an_export_that_goes_wrong_leaves_no_report(shared: Profiled, fault: str, reason: str) -> None:
    shared.recording(f"bad-export-{fault}")
    with shared.spoiled(f"export {fault}", export_s=QUICK_S), pytest.raises(ClusterError, match=reason):
        shared.spill(f"bad-export-{fault}")
    assert [name for name in shared.left_over() if "bad-export" in name] == []
    assert shared.answers()


def test_a_hung_step_leaves_no_process(shared: Profiled) -> None:
    with shared.spoiled("start hang", start_s=QUICK_S), pytest.raises(ClusterError):
        shared.profiler.start("hung")
    hung = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", str(HUNG_S)]]
    assert hung == []


def test_a_session_of_another_name_is_refused_with_those_that_are_there(
    shared: Profiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(next(shared.folder.glob("nsys-*"))))
    profile = ProfileConfig.model_validate({"nsys_session": "no-such-session"})
    with pytest.raises(ClusterError, match="no session 'no-such-session'") as caught:
        NodeProfiler(shared.profiler.session.tools, profile, tmp_path, SystemClock())
    assert shared.profiler.session.name in str(caught.value)


class UserLaunch:
    """How somebody else starts a server under nsys."""

    def __init__(self, tools: NsysTools, name: str) -> None:
        self._command = ["env", f"TMPDIR={tempfile.gettempdir()}", str(tools.nsys), "launch", "--trace=osrt"]
        self._command += [f"--session-new={name}", "--wait=all", "--show-output=false"]

    def launch_prefix(self, has_gpu: bool, output: Path) -> list[str]:
        del has_gpu, output
        return self._command


@pytest.mark.slow
def test_a_server_that_somebody_else_launched_is_recorded_and_left_as_it_is(
    real: NsysTools, tmp_path: Path
) -> None:
    name = f"theirs-{os.getpid()}"
    scenario = scenario_from_mapping(scenario_mapping(), "test")
    profile = ProfileConfig.model_validate({"nsys_session": name, "osrt_threshold": "5us"})
    theirs = cast(NsysSession, UserLaunch(real, name))
    server = TritonServer([scenario.models[0].model], scenario.server, tmp_path, theirs, has_gpu=False)
    try:
        url = server.start().url
        profiler = NodeProfiler(real, profile, tmp_path, SystemClock())
        attached = Profiled(profiler, server, url, tmp_path, tmp_path / "control")
        first_ns, last_ns = attached.recording("one")
        assert attached.spill("one") == []
        calls, clock = attached.spilled["osrt", "one"], profiler.facts().reports["one"].clock
        assert clock is not None
        assert clock.is_assumed == (clock.n_ranges == 0)  # no mark process runs beside their server
        slack_ns = clock.error_ns
        assert slack_ns is not None
        assert first_ns - slack_ns <= pc.min(calls["start_ns"]).as_py() <= last_ns + slack_ns
        assert profiler.close() == []
        profiler.remove()
        assert attached.answers()
        assert profiler.session.state() == "Launched"
        assert list(tmp_path.glob("nsys-*")) == []
    finally:
        server.stop()


@pytest.mark.slow
def test_a_killed_agent_of_nsys_leaves_the_server_and_a_new_session_records_again(own: Profiled) -> None:
    own.profiler.start("lost")
    (agent,) = own.profiler.session.agent_pids()
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(agent) or _is_zombie(agent), 10, "the agent's end")
    assert own.answers()
    with pytest.raises(SessionLost, match="the nsys session is gone"):
        own.profiler.stop("lost")
    with pytest.raises(SessionLost):
        own.profiler.start("later")
    assert own.answers()
    own.url = own.server.restart(own.profiler.renew()).url
    own.recording("again")
    assert own.spill("again") == []
    assert len(own.spilled["osrt", "again"]) > 0
    assert own.profiler.facts().lost == ("the nsys session is gone: its agent has ended",)


@pytest.mark.slow
def test_a_report_that_a_dead_process_left_is_taken_by_another(shared: Profiled) -> None:
    shared.recording("left")
    dead, shared.profiler = (
        shared.profiler,
        NodeProfiler(shared.profiler.session.tools, ProfileConfig(), shared.folder, SystemClock()),
    )
    try:
        assert shared.spill("left") == []
        assert len(shared.spilled["osrt", "left"]) > 0
        with pytest.raises(ClusterError, match="no report of phase never"):
            shared.spill("never")
    finally:
        shared.profiler = dead


@pytest.mark.slow
def test_a_server_killed_while_it_is_recorded_leaves_a_report_up_to_its_end(own: Profiled) -> None:
    own.profiler.start("cut")
    own.load(1.0)
    for pid in own.server.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not _is_recording(own.profiler.session), 20, "the end of the recording")
    own.profiler.stop("cut")
    said = own.spill("cut")
    assert len(own.spilled["osrt", "cut"]) > 0
    assert any("the server ended while phase cut was recorded" in note for note in said)
    assert own.profiler.close() == []


@pytest.mark.slow
def test_a_raw_report_is_kept_where_only_its_owner_reads_it(
    real: NsysTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUALL_CACHE_DIR", str(tmp_path / "kept"))
    for keeping in profiled(real, tmp_path, monkeypatch, keep_raw_report=True):
        keeping.recording("one")
        (told,) = keeping.spill("one")
        where = told.rpartition(": ")[2]
        assert not Path(where).is_absolute(), "where it lies in the cache: notes hold no path of a node"
        kept = tmp_path / "kept" / where
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        assert keeping.left_over() == []


def three_phases(**profile: Any) -> dict[str, Any]:
    """Three measured phases of 3 s, with time for nsys, on a busy host too, to end one recording and begin the next."""

    def phase(name: str, kind: str, duration: str) -> dict[str, Any]:
        return {
            "name": name, "kind": kind, "duration": duration, "arrivals": {"kind": "poisson", "rate": "60/s"},
        }  # fmt: skip

    phases = [phase("warmup", "warmup", "3s")]
    for name in PHASES:
        phases += [phase(name, "measure", "3s"), phase(f"after-{name}", "warmup", "10s")]
    phases.append({"name": "drain", "kind": "drain", "duration": "5s"})
    profile = {"nsys": "required", "nvml": "off", "osrt_threshold": "5us", **profile}
    return scenario_mapping(phases=phases, profile=profile)


PHASES = ("one", "two", "three")


def phases_of(store: RunStore, table: str) -> set[str]:
    return set(store.read(table)["phase"].cast(pa.string()).to_pylist()) if store.has(table) else set()


@pytest.mark.slow
def test_a_run_of_three_phases_has_calls_of_each_and_none_outside(real: NsysTools, alone: Bench) -> None:
    del real
    live = alone.start_run(three_phases())
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    assert [one.reason for one in store.manifest.profiled_phases.values() if not one.is_profiled] == []
    assert phases_of(store, "osrt") == set(PHASES)
    assert {path.name for path in (store.run_dir / "nsys" / "server-0").iterdir()} == set(PHASES)
    alone.wait_until_gone()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_under_an_nsys_that_hangs_ends_with_its_phases_unprofiled(
    real: NsysTools, alone: Bench, tmp_path: Path
) -> None:
    control, wrapper = tmp_path / "control", tmp_path / "wrapper"
    control.write_text("start hang")
    wrapper.write_text(_WRAPPER.format(control=control, hung_s=HUNG_S, nsys=real.nsys))
    wrapper.chmod(0o755)
    live = alone.start_run(three_phases(), env={"SQUALL_NSYS": str(wrapper)})
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    assert store.is_sealed
    coverage = store.manifest.profiled_phases
    assert not any(one.is_profiled for one in coverage.values())
    assert "did not end within 30 s" in coverage["one"].reason
    outcomes = set(store.read("requests")["outcome"].cast(pa.string()).to_pylist())
    assert outcomes == {"ok"}
    alone.wait_until_gone()


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", [pytest.param("keep", marks=pytest.mark.long), "restart"])
def test_a_run_whose_nsys_is_killed_goes_on_as_the_scenario_says(
    real: NsysTools, alone: Bench, on_failure: str
) -> None:
    del real
    mapping = three_phases(on_nsys_failure=on_failure)
    mapping["server"] = {"stop_timeout": "1s"}  # under load Triton uses all of it, and the phases go on
    live = alone.start_run(mapping)
    wait_until(lambda: _agent_that_records(alone) or live.process.poll() is not None, 60, "a recording")
    agent = _agent_that_records(alone)
    assert agent is not None, live.lines
    agent.kill()
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    coverage, notes = store.manifest.profiled_phases, " ".join(store.manifest.notes)
    assert "the nsys session is gone" in coverage["one"].reason
    outcomes = set(store.read("requests")["outcome"].cast(pa.string()).to_pylist())
    if on_failure == "keep":
        assert outcomes == {"ok"}
        assert notes.count("the nsys session is gone") == 1
        assert not any(one.is_profiled for one in coverage.values())
    else:
        assert "transport_error" in outcomes
        assert "the server was started again in a new nsys session" in notes
        assert coverage["three"].is_profiled
        assert phases_of(store, "osrt") >= {"three"}
    alone.wait_until_gone()


def _agent_that_records(bench: Bench) -> psutil.Process | None:
    """nsys's agent of the run, while it records."""
    for process in bench.processes():
        with contextlib.suppress(psutil.Error):
            if "--start-agent" in process.cmdline():
                env, nsys = {"TMPDIR": process.environ()["TMPDIR"]}, process.exe()
                return process if "Collection" in run_step([nsys, "sessions", "list"], env, 20).text else None
    return None


def _is_recording(session: NsysSession) -> bool:
    try:
        return session.state() == "Collection"
    except SessionLost:
        return False


def _is_zombie(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
