"""One run from plan to sealed directory.

    plan │ Ray, clocks, server, workers │ start instant │ phases on one timeline │ collect │ judge, seal, join, report

An error before the start instant seals the run as aborted and is raised. From there on everything that was received is
kept: a lost worker, a failed profiler, a full disk or Ctrl-C ends in a sealed run that says what was lost.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from actors.loadgen import Progress
from analysis.derive import derive
from analysis.store import RunStore
from analysis.timeline import RunPhase
from analysis.validity import judge_run
from cluster.clocksync import utc_minus_monotonic_ns
from cluster.deployment import SERVER, Deployment, Worker
from cluster.ingest import Ledger, ingest_node, ingest_table
from cluster.interrupts import Interrupts
from cluster.phase_profiler import PhaseProfiler
from cluster.placement import place
from cluster.progress import Screen
from cluster.session import Session
from models.spec import head_of
from scenarios.errors import ClusterError, LostActor, SquallError, StoreError
from scenarios.plan import Plan, plan_scenario
from scenarios.scenario import Scenario
from scenarios.units import NS_PER_S

_START_MARGIN_NS = NS_PER_S // 2
"""Between the choice of the start instant and the instant: every worker must have the call by then."""
_POLL_NS = NS_PER_S
_OVERRUN_NS = 30 * NS_PER_S
_STOP_TIMEOUT_S = 30.0
_VERSIONS = ("squall", "ray", "numpy", "pyarrow", "uvloop", "httptools", "duckdb")
_LOST = "its worker was lost before it was recorded"


@dataclass(frozen=True)
class RunResult:
    """A sealed run: where it is, its summary, and its verdict: VALID or INVALID."""

    run_dir: Path
    summary: dict[str, Any]
    status: str


def run_scenario(scenario: Scenario, out: Path, ray_address: str | None, interrupts: Interrupts) -> RunResult:
    """Runs `scenario` and seals the run directory that it makes under `out`.

    Raises SquallError for what stopped it, and KeyboardInterrupt after a Ctrl-C; the run is sealed as aborted then,
    with all that was received. A bad scenario or trace raises before the directory is made.
    """
    if scenario.server.url is None and scenario.model.repository is None:
        head_of(scenario.model.name).sizes(scenario.model.settings)
    plan = plan_scenario(scenario)
    screen = Screen()
    store = RunStore.create(out, scenario.name, time.time_ns(), _first_manifest(scenario, plan))
    run = _Run(scenario, plan, store, screen, interrupts)
    try:
        with _session(ray_address, interrupts, screen) as session:
            run.execute(session)
        return run.seal()
    except KeyboardInterrupt:
        run.abort(f"interrupted by {interrupts.name}")
        raise
    except SquallError as error:
        run.abort(str(error))
        raise


@contextmanager
def _session(address: str | None, interrupts: Interrupts, screen: Screen) -> Iterator[Session]:
    """A Ray session. Ctrl-C waits while Ray starts and ends: a Ray cut off half-way leaves processes behind."""
    screen.step("starting Ray" if address is None else f"joining Ray at {address}")
    session = Session(address)
    with interrupts.deferred():
        session.__enter__()
        interrupts.install_again()
    try:
        yield session
    finally:
        with interrupts.deferred():
            session.__exit__(None, None, None)


def _first_manifest(scenario: Scenario, plan: Plan) -> dict[str, Any]:
    counts = {
        span.name: int((plan.phase == index).sum())
        for index, span in enumerate(plan.spans)
        if span.kind != "drain"
    }
    return {
        "scenario": scenario.to_mapping(),
        "scenario_digest": scenario.digest(),
        "seed": scenario.seed,
        "plan": {"n_arrivals": len(plan), "sha256": plan.sha256(), "n_by_phase": counts},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _VERSIONS}},
        "started_ns": time.time_ns(),
        "phases": [], "nodes": {}, "servers": {}, "workers": [], "collectors": {},
    }  # fmt: skip


class _Run:
    """The state of one run: `execute` inside a Ray session, then `seal`; or `abort` at any time."""

    def __init__(
        self, scenario: Scenario, plan: Plan, store: RunStore, screen: Screen, interrupts: Interrupts
    ) -> None:
        self._scenario = scenario
        self._plan = plan
        self._store = store
        self._screen = screen
        self._interrupts = interrupts
        self._anchor_ns = utc_minus_monotonic_ns()
        self._deployment = Deployment(scenario, store, screen, self._anchor_ns)
        self._phases: tuple[RunPhase, ...] = ()
        self._start_ns = 0
        self._losses: list[str] = []

    def execute(self, session: Session) -> None:
        """Deploys, follows the plan and collects; whatever happens, nothing is left running."""
        deployment = self._deployment
        try:
            deployment.deploy(self._plan, place(session.nodes()))
            self._follow()
        finally:
            with self._interrupts.deferred():
                self._losses += deployment.release()

    def seal(self) -> RunResult:
        """Judges the run, seals it and derives join, windows, summary and report."""
        self._interrupts.ignore()
        self._screen.step("joining and judging")
        self._store.flush()
        self._store.update(losses=self._losses)
        verdict = judge_run(self._store).to_mapping()
        self._store.seal(verdict)
        summary = derive(self._store)
        return RunResult(self._store.run_dir, summary, str(verdict["status"]))

    def abort(self, reason: str) -> None:
        """Seals what there is as aborted. Never raises: the reason for the abort matters more than this."""
        self._interrupts.ignore()
        if self._store.is_sealed:
            return
        try:
            self._store.update(losses=self._losses)
            self._store.seal({"status": "ABORTED", "reasons": [reason]})
            if self._store.has("requests"):
                derive(self._store)
        except SquallError as error:
            self._screen.step(f"the run could not be sealed: {error}")
        self._screen.step(f"aborted run: {self._store.run_dir}")

    def _follow(self) -> None:
        """From the start instant to the last row in the store."""
        deployment = self._deployment
        assert deployment.server_agent is not None
        profiler = None
        if deployment.is_on("nsys"):
            label = next(
                name for name, agent in deployment.agents.items() if agent is deployment.server_agent
            )
            profiler = PhaseProfiler(deployment.server_agent, self._plan.spans, deployment.clocks[label])
            profiler.start_first(self._plan.spans[0])
        self._begin()
        try:
            with self._screen:
                self._watch(profiler)
        except (KeyboardInterrupt, SquallError):
            self._interrupts.ignore()
            self._stop_workers()
            self._collect(profiler)
            raise
        self._interrupts.ignore()
        self._collect(profiler)

    def _begin(self) -> None:
        """Chooses the start instant and gives it to every worker, on the clock of its node."""
        self._start_ns = time.monotonic_ns() + self._anchor_ns + _START_MARGIN_NS
        self._phases = tuple(
            RunPhase(span.name, span.kind, self._start_ns + span.start_ns, self._start_ns + span.end_ns)
            for span in self._plan.spans
        )
        for worker in self._deployment.workers:
            node_start_ns = self._start_ns - self._deployment.clocks[worker.node.label].offset_ns
            worker.running = worker.handle.begin("run", node_start_ns)
        self._store.update(start_ns=self._start_ns, phases=[phase._asdict() for phase in self._phases])

    def _watch(self, profiler: PhaseProfiler | None) -> None:
        """Once a second: the profiler's turn, the workers' state, the screen; until every worker is done."""
        due_ns = self._start_ns - self._anchor_ns
        last_ns = due_ns + self._plan.spans[-1].end_ns + _OVERRUN_NS
        workers = self._deployment.workers
        while not all(worker.is_lost or worker.handle.is_done(worker.running) for worker in workers):
            time.sleep(max(0, due_ns - time.monotonic_ns()) / NS_PER_S)
            due_ns += _POLL_NS
            at_ns = time.monotonic_ns() + self._anchor_ns - self._start_ns
            if profiler is not None:
                profiler.drive(at_ns)
            self._screen.show(self._plan.spans, at_ns, self._poll())
            if time.monotonic_ns() > last_ns:
                raise ClusterError(f"workers did not end within {_OVERRUN_NS // NS_PER_S} s of the run's end")
        for worker in workers:
            self._end_of(worker)

    def _poll(self) -> list[Progress]:
        """The state of each worker that answers. Raises StoreError when one cannot spill its records any more."""
        states = []
        for worker in self._deployment.workers:
            if worker.is_lost:
                continue
            try:
                states.append(worker.handle.call("progress", timeout_s=5))
                error = worker.handle.call("spill_error", timeout_s=5)
            except LostActor as lost:
                self._lose(worker, lost)
                continue
            except ClusterError:
                continue  # too busy to answer this second; the end of its run is what counts
            if error:
                raise StoreError(f"{worker.handle.name} cannot write its records: {error}")
        return states

    def _lose(self, worker: Worker, error: Exception) -> None:
        worker.is_lost = True
        self._losses.append(str(error))
        self._screen.step(f"[red]{error}[/red]; the others go on")

    def _end_of(self, worker: Worker, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        if worker.is_lost or worker.running is None:
            return
        try:
            worker.handle.wait(worker.running, timeout_s)
        except LostActor as lost:
            self._lose(worker, lost)
        except SquallError as error:
            self._losses.append(f"{worker.handle.name}: {error}")

    def _stop_workers(self) -> None:
        """Makes every worker end its run now; what it has in flight is recorded as cancelled."""
        for worker in self._deployment.workers:
            if not worker.is_lost:
                worker.handle.begin("stop")
        for worker in self._deployment.workers:
            self._end_of(worker)

    def _collect(self, profiler: PhaseProfiler | None) -> None:
        """Stops the collectors and brings every spill file into the store."""
        self._screen.step("collecting")
        deployment, agents = self._deployment, self._deployment.agents
        for agent in agents.values():
            self._losses += self._from(agent, "stop_samplers")
        if profiler is not None:
            profiler.finish()
            self._losses += profiler.losses
            self._store.update(profiled_phases=profiler.coverage(self._start_ns))
        assert deployment.server_agent is not None
        self._losses += self._from(deployment.server_agent, "stop_server")
        self._losses += self._from(deployment.server_agent, "spill_batches")
        nodes = [worker.node.label for worker in deployment.workers]
        model = self._scenario.model.name
        labels = {"run": self._store.run, "target": SERVER, "request_kind": model}
        ledger = Ledger(self._plan, labels, nodes, self._start_ns)
        for label, agent in agents.items():
            ingest_node(self._store, agent, deployment.clocks[label], self._phases, ledger.note)
        for worker in deployment.workers:
            for data in [] if worker.is_lost else worker.handle.call("leftovers"):
                ingest_table(
                    self._store, "requests", data, deployment.clocks[worker.node.label], self._phases
                )
                ledger.note(data)
        if ledger.n_missing:
            self._losses.append(f"{ledger.n_missing} arrivals have no record: {_LOST}")
            self._store.append("requests", ledger.missing_rows(_LOST))
        deployment.keep_server_log()

    def _from(self, agent: Any, method: str) -> list[str]:
        """The losses that a call returns; the call's own failure is one more."""
        try:
            return list(agent.call(method, timeout_s=120))
        except ClusterError as error:
            return [f"{method}: {error}"]
