"""One run from plan to sealed directory.

    plan │ nodes, clocks, server, workers │ start instant │ phases on one timeline │ collect │ judge, seal, join

An error before the start instant seals the run as aborted and is raised. From there on everything that was
received is kept: a lost worker, a failed profiler, a full disk or Ctrl-C ends in a sealed run that says what
was lost.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from shlex import quote

from squall.actors.clock import utc_minus_monotonic_ns
from squall.actors.load.trial import try_request
from squall.actors.locust.locust_master import MasterAccount
from squall.actors.process.sweep import hold
from squall.analysis.compare.certainty import Outcome
from squall.analysis.compare.figures import BROKEN
from squall.analysis.compare.of_run import with_certain_request
from squall.analysis.report.derive import derive, is_derived
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.home import HERE, is_to_be_sent, send_away, sending_command, unsent_text
from squall.analysis.storage.manifest import DecidedFacts, Manifest, PhaseFacts, PlanFacts
from squall.analysis.storage.object_folder import ObjectFolder, place_at
from squall.analysis.storage.sealed import Unfinished, Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.validity import judge_run
from squall.analysis.wording import names_text
from squall.cluster.driver.copies import remove_copies
from squall.cluster.driver.deciding import MARGIN_NS, clipped
from squall.cluster.driver.deciding import deciding as decided_by
from squall.cluster.driver.deployment import Deployment
from squall.cluster.driver.failing import FailingWatch
from squall.cluster.driver.fetching import Fetching
from squall.cluster.driver.gather import Collection
from squall.cluster.driver.intent import (
    announce,
    describe_plan,
    refuse_empty,
    refuse_strange_head,
    seeded_notes,
    trace_notes,
)
from squall.cluster.driver.locust_crew import Crew
from squall.cluster.driver.locust_master_watch import MasterWatch
from squall.cluster.driver.pace import Span
from squall.cluster.driver.phase_profiler import PhaseProfiler
from squall.cluster.driver.preflight import check_before_ray, server_addresses
from squall.cluster.driver.worker_watch import OVERRUN_NS, WorkerWatch
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.endpoint import Endpoint
from squall.cluster.placement import Node, Placement, place
from squall.cluster.progress import Screen
from squall.cluster.remote.session import LOCAL, Session, say_stuck, session_at
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, ScenarioError, SquallError, StoreError
from squall.scenarios.records import Frozen
from squall.scenarios.run_plan import RunPlan, plan_run, routed
from squall.scenarios.units import NS_PER_S

_START_MARGIN_NS = NS_PER_S // 2
"""Between the choice of the start instant and the instant: every worker must have the call by then."""
_START_MARGIN_PER_WORKER_NS = NS_PER_S // 1_000
_POLL_NS = NS_PER_S
LOAD_STOPS = "the load stops"
"""What notes say of a load that its driver ended before its time."""
_FILES_WITHIN_S = 5.0
_VERSIONS = ("squall", "ray", "numpy", "pyarrow", "hpack", "httptools", "duckdb")


class RunResult(Frozen):
    """A sealed run: where it is, its summary (None without requests), and its verdict: VALID or INVALID."""

    run_dir: Path
    summary: Summary | None
    status: str
    address: str = ""
    """Where it went, if it is not in `run_dir`."""

    @property
    def where(self) -> str:
        """Its address or folder, for people and for `open_run`."""
        return self.address or str(self.run_dir)


def run_scenario(
    scenario: Scenario,
    out: Path | str,
    ray_address: str | None,
    interrupts: Interrupts,
    tell_made: Callable[[Path], None] | None = None,
) -> RunResult:
    """Runs `scenario` and seals the run directory that it makes under `out`, and tells as soon as it is made.

    `out` may be object storage, `s3://bucket/prefix`: what is whole goes there as the run goes on, from a folder under
    `HERE` that goes when all of it is there.

    Raises SquallError for what stopped it, and KeyboardInterrupt after a Ctrl-C; the run is sealed as aborted
    then, with all that was received. A bad scenario or trace raises before the directory is made.
    """
    refuse_strange_head(scenario)
    plan = plan_run(scenario, scenario.servers)
    screen = Screen()
    described = describe_plan(plan)
    refuse_empty(described)
    store = _new_store(out, scenario, described)
    if tell_made is not None:
        tell_made(store.run_dir)
    notes = [*seeded_notes(scenario), *trace_notes(scenario)]
    for line in (*announce(described, scenario.load), *notes):
        screen.step(line)
    run = _Run(scenario, plan, store, screen, interrupts, notes)
    lock = hold(store.run_dir, os.O_RDONLY | os.O_DIRECTORY)  # who resumes it sees that it goes on
    try:
        with run.aborting():
            with interrupts.allowed():
                run.try_before_ray(check_before_ray(scenario, plan, ray_address in (None, LOCAL)))
            with _session(ray_address, interrupts, screen, run.end_stuck) as session:
                result = run.execute(session)
    except BaseException:
        told = _broken_off_text(store)
        try:
            where = _send(store, screen)
        except StoreError as error:  # what broke the run off matters more
            screen.step(str(error), "red")
            where = str(store.run_dir)
        screen.step(f"{told}{quote(where)}")  # last: of object storage the folder here has gone
        raise
    else:
        try:
            with interrupts.allowed():
                return replace(result, address=_send(store, screen))
        except KeyboardInterrupt:
            screen.step(unsent_text(store))
            raise
    finally:
        if lock is not None:
            os.close(lock)


def _send(store: RunStore, screen: Screen) -> str:
    """Brings a run of object storage there; where the run lies then. Raises StoreError."""
    if is_to_be_sent(store):
        screen.step(f"bringing it to {store.manifest.copied_to}; until all is there it is in {store.run_dir}")
    return send_away(store, store.manifest.copied_to)  # which this command was told


def _broken_off_text(store: RunStore) -> str:
    """What a run is that was broken off, to be followed by where it lies."""
    if not store.is_sealed or store.manifest.status == "ABORTED":
        return "aborted run: "
    return "the run is whole: " if is_derived(store) else "sealed, without join and report: squall analyze "


def _new_store(out: Path | str, scenario: Scenario, described: PlanFacts) -> RunStore:
    place = place_at(str(out))
    folder = Path(out) if place is None else HERE
    store = RunStore.create(folder, scenario.name, time.time_ns(), _first_manifest(scenario, described))
    if place is not None:
        try:
            store.copy_to(ObjectFolder(f"{place.address}/{store.run}"))
        except StoreError:
            shutil.rmtree(store.run_dir, ignore_errors=True)  # there is nothing in it
            raise
    return store


@contextmanager
def _session(
    address: str | None, interrupts: Interrupts, screen: Screen, tell_stuck: Callable[[str], None]
) -> Iterator[Session]:
    """The nodes. Signals wait while Ray starts and ends: cut off half-way, it leaves processes."""
    interrupts.check()
    try:
        with session_at(address, screen.step, tell_stuck) as session:
            interrupts.install_again()
            yield session
    except ClusterError:
        interrupts.check()  # a signal to the whole process group ends what Ray had started by then
        raise
    finally:
        interrupts.install_again()  # Ray's library leaves SIGTERM as it is by default: the end, without a word


def _first_manifest(scenario: Scenario, described: PlanFacts) -> Manifest:
    return Manifest(
        scenario=scenario.to_kept(),
        scenario_digest=scenario.digest(),
        seed=scenario.seed,
        plan=described,
        versions={"python": platform.python_version(), **{name: version(name) for name in _VERSIONS}},
        started_ns=time.time_ns(),
    )


def _phase_facts(phases: Sequence[RunPhase]) -> tuple[PhaseFacts, ...]:
    return tuple(
        PhaseFacts(name=one.name, kind=one.kind, start_ns=one.start_ns, end_ns=one.end_ns) for one in phases
    )


class _Run:
    """The state of one run: `execute` inside a session; `abort` where that raised."""

    def __init__(
        self,
        scenario: Scenario,
        plan: RunPlan,
        store: RunStore,
        screen: Screen,
        interrupts: Interrupts,
        notes: Sequence[str],
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
        self._node_starts_ns: dict[str, int] = {}
        self._losses: list[str] = []
        self._workers = WorkerWatch(self._deployment.workers, self._losses, screen)
        self._master: MasterWatch | None = None
        self._notes = [*notes]
        self._unfetched: dict[str, str] = {}
        self._fetching = Fetching(scenario.records, {}, ())
        self._is_over = False
        self._has_stopped_load = False
        self._is_collected = False
        self._store_error: StoreError | None = None

    def execute(self, session: Session) -> RunResult:
        """Deploys, follows the plan, collects and seals; whatever happens, nothing is left running.

        The server ends while the run is judged and joined; what goes wrong with that is told on the screen.
        """
        try:
            with self.aborting():
                with self._interrupts.allowed():
                    placement = self._place(session.nodes())  # before the plan is read: it may route it
                    self._deployment.deploy(self._plan, placement)
                self._follow()
                return self._seal()
        finally:
            self._fetching.stop()
            if self._store.manifest.is_whole:
                remove_copies(self._store.run_dir)
            is_open = self._phases and not self._store.is_sealed
            keeps = self._deployment.nodes.folders if is_open else self._kept_folders()
            for note in self._deployment.release(keeps):
                self._screen.step(note)

    def try_before_ray(self, endpoints: Mapping[str, Endpoint]) -> None:
        """The first requests to servers that run already, by name; those to others follow when they are started. Raises
        TargetError."""
        if self._scenario.clients.unix is None:  # a socket of the clients' nodes
            self._deployment.try_requests(self._plan, endpoints, try_request)

    def _place(self, nodes: Sequence[Node]) -> Placement:
        """Who is where; the plan is routed now where only the nodes say how many servers there are."""
        placement = place(nodes, self._scenario, server_addresses(self._scenario))
        if self._scenario.servers is None:
            self._plan = routed(self._plan, self._scenario, [seat.entry for seat in placement.servers])
            described = describe_plan(self._plan)
            self._store.amend(replace(self._store.manifest, plan=described))
            self._screen.step(
                f"{len(placement.servers)} servers; {announce(described, self._scenario.load)[-1]}"
            )
        return placement

    @contextmanager
    def aborting(self) -> Iterator[None]:
        """Seals the run as aborted where what is within raises, before anything is thrown away."""
        try:
            yield
        except KeyboardInterrupt:
            self.abort(f"interrupted by {self._interrupts.name}")
            raise
        except StoreError as error:
            if self._is_over:
                raise
            if self._phases and not self._is_collected:
                self._unfetched = self._unfetched or dict.fromkeys(self._deployment.nodes.folders, str(error))
            if not self._unfetched or self._store.is_sealed:
                self.abort(str(error))
                raise
            told = StoreError(f"{error}; {self._how_to_finish()}")
            self.abort(str(told))
            raise told from error
        except SquallError as error:
            self.abort(str(error))
            raise
        except BaseException as error:  # a fault of ours: the run must not stay open
            self.abort(f"internal error: {type(error).__name__}: {error}")
            raise

    def _kept_folders(self) -> dict[str, str]:
        """The scratch folders with rows that the sealed run does not have, by label of the node."""
        folders = self._deployment.nodes.folders
        if self._store_error is not None:
            return folders  # what the store dropped may have been anybody's
        return {label: folder for label, folder in folders.items() if label in self._unfetched}

    def _how_to_finish(self) -> str:
        folders = names_text([f"{folder} of {label}" for label, folder in self._kept_folders().items()])
        again = f"squall resume {quote(str(self._store.run_dir))}"
        return f"the records are kept in {folders}: {again} finishes the run"

    def _unfinished(self, is_aborted: bool) -> Unfinished | None:
        """For the seal; None where the run has all that was recorded."""
        if not self._unfetched:
            return None
        return Unfinished(folders=self._kept_folders(), why=dict(self._unfetched), is_aborted=is_aborted)

    def _seal(self) -> RunResult:
        """Judges the run, seals it and derives join, windows, summary and report.

        A signal during the last step raises, and leaves a sealed run with its verdict.
        """
        self._interrupts.check()
        self._screen.step("joining and judging")
        self._restore_models()
        self._is_collected = False  # until it is sealed: a part that the disk does not take is dropped
        self._store.flush()
        if self._deployment.locust is not None and not self._store.has("requests"):
            self._refuse_no_request(self._deployment.locust)
        self._note_troubles()
        if self._store.manifest.decided is not None:
            self._store.amend(with_certain_request(self._store))
        verdict = judge_run(self._store)
        self._store.seal(verdict, self._unfinished(is_aborted=False))
        self._is_collected = True
        if self._unfetched:
            self._screen.step(self._how_to_finish(), "red")
        with self._interrupts.allowed():
            summary = derive(self._store)
        return RunResult(self._store.run_dir, summary, verdict.status)

    def _refuse_no_request(self, crew: Crew) -> None:
        """Raises ScenarioError in the locustfile's own words where it sent none, ClusterError for what was lost."""
        if self._losses:
            raise ClusterError(f"no request was sent: {self._losses[0]}")
        account = crew.account or MasterAccount()
        told = [one.message for one in sorted(account.exceptions, key=lambda one: -one.n)]
        if account.exit_code:
            told.append(f"it ended its test with exit code {account.exit_code}")
        file = crew.settings.files.locustfile
        raise ScenarioError(
            f"load.locust.file: {file}: no user sent a request: {'; '.join(told) or 'no exception was raised'}"
        )

    def _restore_models(self) -> None:
        """Before the seal, which says what could not be put back."""
        for trouble in self._deployment.restore_models():
            self._notes.append(trouble)
            self._screen.step(trouble, "red")

    def _note_troubles(self) -> None:
        known = self._store.manifest
        self._store.amend(replace(known, losses=tuple(self._losses), notes=tuple(self._notes)))

    def abort(self, reason: str) -> None:
        """Seals what there is as aborted. Never raises: the reason for the abort matters more than this."""
        if self._store.is_sealed or self._is_over:
            return
        self._is_over = True
        self._restore_models()
        is_full = self._store_error is not None
        reasons = [reason]
        try:
            try:
                self._note_troubles()
            except StoreError:  # a full disk: the seal frees the store's reserve
                reasons += self._losses
            verdict = Verdict(status="ABORTED", reasons=tuple(reasons))
            self._store.seal(verdict, self._unfinished(is_aborted=not is_full))
            if self._store.has("requests") and not is_full:
                derive(self._store)
        except Exception as error:  # the edge of the run: recorded on the screen
            what = "joined" if self._store.is_sealed else "sealed"
            self._screen.step(f"the aborted run could not be {what}: {error}")
            if self._phases and not self._store.is_sealed:
                self._screen.step(self._how_to_finish(), "red")

    def end_stuck(self, reason: str) -> None:
        """For a thread, while the main one hangs in Ray's library: seals the run, and says where it is and why."""
        self.abort(reason)
        self._screen.step(f"{_broken_off_text(self._store)}{quote(str(self._store.run_dir))}")
        if is_to_be_sent(self._store):
            self._screen.step(f"{sending_command(self._store)} brings it there")
        say_stuck(reason)

    def _follow(self) -> None:
        """From the start instant to the last row in the store."""
        deployment, error = self._deployment, None
        profiler = None
        first = deployment.servers[0]
        if first.collectors.is_on("nsys"):  # a scenario with several servers has no nsys
            on_failure = self._scenario.profile.on_nsys_failure
            profiler = PhaseProfiler(first.agent, self._plan.spans, on_failure, first.observe_again)
        try:
            with self._screen, self._interrupts.allowed():
                if profiler is not None:
                    profiler.start_first(self._plan.spans[0])
                self._begin()
                self._watch(profiler)
        except BaseException:
            if self._master is not None:
                self._master.stop()  # with the workers: it waits for their last reports
            raise
        finally:
            self._workers.stop()
            if self._phases:
                self._end_locust()
                error = self._collect(profiler)
        if error is not None:
            raise error

    def _begin(self) -> None:
        """Chooses the start instant and gives it to every worker, on the clock of its node."""
        clocks = (
            self._deployment.nodes.clocks()
        )  # before the margin begins: with many nodes it takes its time
        margin_ns = _START_MARGIN_NS + len(self._deployment.workers) * _START_MARGIN_PER_WORKER_NS
        self._start_ns = time.monotonic_ns() + self._anchor_ns + margin_ns
        self._phases = tuple(
            RunPhase(span.name, span.kind, self._start_ns + span.start_ns, self._start_ns + span.end_ns)
            for span in self._plan.spans
        )
        self._node_starts_ns = {label: clock.source_ns(self._start_ns) for label, clock in clocks.items()}
        if self._deployment.locust is not None:
            crew = self._deployment.locust
            self._master = MasterWatch(crew, self._losses, lambda told: self._screen.step(told, "red"))
            self._master.start(self._node_starts_ns[crew.node.label])
        self._workers.start(self._node_starts_ns)
        self._deployment.record_kernels(clocks, self._start_ns, self._plan.spans)
        at_ns = self._start_ns - self._anchor_ns
        measured = [
            Span(at_ns + one.start_ns, at_ns + one.end_ns)
            for one in self._plan.spans
            if one.kind == "measure"
        ]
        self._fetching = Fetching(self._scenario.records, self._deployment.nodes.files, measured)
        self._fetching.start()
        self._store.amend(
            replace(
                self._store.manifest,
                start_ns=self._start_ns,
                node_starts_ns=dict(self._node_starts_ns),
                phases=_phase_facts(self._phases),
            )
        )

    def _watch(self, profiler: PhaseProfiler | None) -> None:
        """Once a second: the profiler's turn, the workers' state, the screen; until every worker is done."""
        due_ns = self._start_ns - self._anchor_ns
        edges_ns = [span.start_ns for span in self._plan.spans]
        last_ns = due_ns + self._plan.spans[-1].end_ns + OVERRUN_NS
        deciding = decided_by(self._scenario, self._plan, tuple(self._store.manifest.servers))
        watch = FailingWatch(max(one.end_ns for one in self._plan.spans if one.kind != "drain"))
        while not self._workers.is_done:
            self._workers.wait(due_ns)
            self._interrupts.check()
            due_ns += _POLL_NS
            at_ns = time.monotonic_ns() + self._anchor_ns - self._start_ns
            if profiler is not None:
                profiler.drive(at_ns)
            if edges_ns and at_ns >= edges_ns[0]:
                edges_ns = [edge_ns for edge_ns in edges_ns if edge_ns > at_ns]
                self._deployment.nodes.note_edge()
            self._hear_nodes()
            standing = self._workers.poll()
            failing = watch.look(standing, at_ns)
            if failing is not None and failing.is_new:
                self._screen.step(failing.told, "red")
            self._screen.show(self._plan.spans, at_ns, standing)
            if deciding is not None and not self._workers.has_lost:
                counts = [one.late for one in standing if one.late is not None]
                certain = deciding.look(counts, at_ns)
                if certain is not None:
                    deciding = None
                    self._cease(certain, at_ns + MARGIN_NS)
            if time.monotonic_ns() > last_ns:
                self._workers.give_up()
            elif self._scenario.clients.on_client_loss == "stop" and self._workers.has_lost:
                self._stop_load(f"{LOAD_STOPS}, as clients.on_client_loss says")
            elif failing is not None and failing.for_ns >= (self._scenario.stop_when_failing or math.inf):
                self._stop_load(f"{failing.told}: {LOAD_STOPS}, as stop_when_failing says")
            elif self._master is not None and self._master.look():
                self._stop_load(f"{LOAD_STOPS}: nobody tells its workers what to do")
        if self._master is not None:
            self._workers.poll()  # one that died, or whose users all did, since the last second

    def _stop_load(self, told: str) -> None:
        """Ends it before its time, which is told once, and kept at once: else the end of this process would pass for
        the reason."""
        if not self._has_stopped_load:
            self._has_stopped_load = True
            self._notes.append(told)
            self._screen.step(told, "red")
            with suppress(StoreError):  # a full disk: collecting tells of it
                self._note_troubles()
        if self._master is not None:
            self._master.stop()
        self._workers.stop()

    def _end_locust(self) -> None:
        """After the workers' end: the master's; where the file ended the load before its time, so do the phases."""
        if self._master is None:
            return
        assert self._deployment.locust is not None
        self._workers.wait_for_files(_FILES_WITHIN_S)
        account = self._master.end()
        is_last_lost = all(worker.is_lost for worker in self._deployment.workers)  # which ends a load too
        if account is None or account.ended_ns is None or is_last_lost:
            return
        clock = self._deployment.nodes.clocks()[self._deployment.locust.node.label]
        end_ns = clock.target_ns(account.ended_ns)
        if end_ns >= self._phases[-1].end_ns:
            return
        self._phases = clipped(self._phases, end_ns)
        after_s = (end_ns - self._start_ns) / NS_PER_S
        self._notes.append(
            f"Locust ended the load before its time, {after_s:.1f} s after its start: the phases end there"
        )
        with suppress(StoreError):  # a full disk: collecting tells of it
            self._store.amend(replace(self._store.manifest, phases=_phase_facts(self._phases)))

    def _cease(self, certain: Outcome, offset_ns: int) -> None:
        """The promises are decided: nothing is sent that is due later than that after the start instant."""
        self._workers.cease(offset_ns)
        end_ns = self._start_ns + offset_ns
        known = self._store.manifest
        decided = DecidedFacts(
            verdict=certain.verdict,
            promise=certain.promise.text,
            n=certain.count.n,
            n_late=certain.count.n_late,
            n_in_time=certain.count.n_in_time,
            at_ns=end_ns,
            phases=known.phases,
        )
        self._phases = clipped(self._phases, end_ns)
        self._store.amend(replace(known, decided=decided, phases=_phase_facts(self._phases)))
        told = (
            f"{certain.promise.text} is {certain.verdict}"
            if certain.verdict == BROKEN
            else "all promises are kept"
        )
        self._screen.step(f"{told}, whatever the rest would do: the load ends", "bold")

    def _hear_nodes(self) -> None:
        """What has ended on a node that should run: the load goes on without it."""
        n_lost = len(self._deployment.nodes.lost)
        for trouble in self._deployment.nodes.beat():
            is_lost = len(self._deployment.nodes.lost) > n_lost
            (self._losses if is_lost else self._notes).append(trouble)
            self._screen.step(f"{trouble}; the load goes on", "red")

    def _collect(self, profiler: PhaseProfiler | None) -> StoreError | None:
        """Brings every record into the store; returns why the store took no more, None if it took all."""
        self._screen.step("collecting")
        self._fetching.stop()
        collection = Collection(
            self._plan, self._store, self._deployment, self._phases, self._start_ns, self._node_starts_ns,
            self._anchor_ns, self._fetching,
        )  # fmt: skip
        collection.collect(profiler)
        self._losses += collection.losses
        self._notes += collection.notes
        self._unfetched = collection.unfetched
        self._store_error = collection.store_error
        self._is_collected = not self._unfetched and self._store_error is None
        return collection.store_error
