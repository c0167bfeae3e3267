"""One server of a run: its start or where it runs already, what is collected of it, and what it leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from squall.actors.doctor.tools import GPU_MEND, NSYS_MEND
from squall.actors.sampling.observer import Observer
from squall.actors.sampling.observer_settings import ServerTarget
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.deployed import ControlFacts, ModelFacts, ServerFacts, ServerScheduling
from squall.analysis.storage.store import RunStore
from squall.analysis.wording import names_text
from squall.cluster.control.changes import told_loaded
from squall.cluster.control.controlled import Controlled, log_of, where_of
from squall.cluster.driver.observed_collectors import ELSEWHERE, Collectors
from squall.cluster.driver.server_libraries import ServerLibraries
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.endpoint import HEADERS_MEND, STATISTICS_API, Endpoint, access_of, attach
from squall.cluster.node.server import LOOPBACK
from squall.cluster.placement import Seat
from squall.cluster.progress import Screen
from squall.cluster.remote.spawn import Handle
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, SquallError
from squall.scenarios.plan.plan import PhaseSpan

_TRACE_MEND = "docs/triton.md tells which servers can be traced"
_START_TIMEOUT_S = 900.0  # fetching and unpacking the server on first use is part of it


class DeployedServer:
    """In this order: `find_collectors`, `begin` and `finish`, `describe`, `observe`, `choose_tracing`; while it is
    loaded `record_kernels`; `begin_stop` after it. `agent` is its own, `observer` that of its node."""

    def __init__(
        self,
        seat: Seat,
        site: str,
        agent: Handle[NodeAgent],
        observer: Handle[Observer],
        scenario: Scenario,
        screen: Screen,
        run_dir: Path,
    ) -> None:
        """`site`: that of `agent`, as `squall.cluster.driver.nodes.Nodes` has it."""
        self.name = seat.name
        self.label = seat.node.label
        self.site = site
        self.agent = agent
        self.collectors = Collectors(screen, seat.name if scenario.has_named_servers else "")
        self._models = scenario.models_at(seat.name)
        self.libraries = ServerLibraries(self._models, scenario.profile, self.collectors)
        self.stopping: Future[list[str]] | None = None
        self._seat = seat
        self._observer = observer
        self._scenario = scenario
        self._screen = screen
        self._run_dir = run_dir
        self._starting: Future[Endpoint] | None = None
        self._endpoint: Endpoint | None = None
        self._controlled: Controlled | None = None
        self._own_control: ControlFacts | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers; once it is there."""
        assert self._endpoint is not None
        return self._endpoint

    @property
    def is_here(self) -> bool:
        """Whether it is on one of the nodes."""
        return self._seat.is_here

    @property
    def is_started(self) -> bool:
        """Whether squall starts it, and so ends it."""
        return self._seat.entry.url is None

    def find_collectors(self) -> None:
        """Decides what is collected and says once what is not. Raises ClusterError for a required one."""
        profile, collectors = self._scenario.profile, self.collectors
        collectors.turn_on("triton")
        collectors.turn_on("host")
        if self.is_started:
            self.libraries.choose_batches(self.agent)
        reason_nvml = None
        if not self.is_here:
            reason_nvml = ELSEWHERE
        elif profile.nvml != "off":
            reason_nvml = self.agent.call(NodeAgent.missing_nvml)
        collectors.choose("nvml", profile.nvml, reason_nvml, GPU_MEND)
        collectors.choose("nsys", profile.nsys, self._missing_nsys(), NSYS_MEND)
        if self.is_started:
            self.libraries.choose_kernels(self.agent)

    def _missing_nsys(self) -> str | None:
        entry, profile = self._seat.entry, self._scenario.profile
        if profile.nsys == "off":
            return None
        if entry.image is not None or (entry.url is not None and profile.nsys_session is None):
            return (
                "nsys profiles a server that squall starts itself, and one at server.url whose session"
                " profile.nsys_session names"
            )
        if not self.is_here:
            return ELSEWHERE
        return self.agent.call(NodeAgent.missing_nsys, profile.trace)

    def begin(self, cores: tuple[int, ...]) -> None:
        """Starts it, without waiting, on `cores` (empty: any), or finds the one that runs. Raises TargetError and
        ClusterError."""
        scenario, entry = self._scenario, self._seat.entry
        if entry.url is not None:
            self._screen.step(f"attaching to {entry.url}")
            if entry.control is not None:
                where = where_of(entry, access_of(scenario, entry))
                log = log_of(self._run_dir, self.name)
                self._controlled = Controlled(entry.control, where, log)
                self._controlled.begin([one.name for one in self._models], self._screen.step)
            self._endpoint = attach(self._models, entry, access_of(scenario, entry))
            if self.collectors.is_on("nsys"):
                self.agent.call(NodeAgent.attach_profiler, scenario.profile)
            self.libraries.follow(self.agent, self.endpoint.port if self.is_here else None)
            return
        what = self.name if scenario.has_named_servers else "Triton"
        self._screen.step(f"starting {what} with {names_text([model.name for model in self._models])}")
        address = self._seat.node.address if entry.listen == "cluster" else LOOPBACK
        self._starting = self.agent.begin(
            NodeAgent.start_server, scenario, self.collectors.is_on("nsys"), cores,
            self.libraries.has_batches, self.libraries.kernel_kinds, entry, address,
        )  # fmt: skip

    def finish(self, store: RunStore) -> None:
        """Waits until it is ready. Raises SquallError; its log is in the store then."""
        if self._starting is not None:
            try:
                self._endpoint = self.agent.wait(self._starting, _START_TIMEOUT_S)
            except SquallError:
                with contextlib.suppress(SquallError):  # why the server failed matters more than its log
                    self.keep_log(store)
                raise
            reason = self.agent.call(NodeAgent.why_without_nsys)
            if reason is not None:
                self.collectors.lose("nsys", reason, "squall doctor tries a recording on its own")
            self.libraries.confirm(self.agent)
            if self._seat.entry.control is not None:
                self._own_control = self.agent.call(NodeAgent.server_control) or ControlFacts()
                for model, taken_ns in self._own_control.loading_ns.items():
                    self._screen.step(told_loaded(model, taken_ns))
        found, name = self.endpoint, f"{self.name}: " if self._scenario.has_named_servers else ""
        served = names_text([one.spec.name for one in found.models])
        self._screen.step(f"{name}Triton {found.server_version} ({found.source}) serves {served}")
        for line in found.told_refused:
            self._screen.step(f"{name}{line}; {HEADERS_MEND}", "yellow")
        if found.servers:
            self._screen.step(f"{name}{found.told_servers}", "yellow")
        if not found.has_statistics:
            why = found.refused.get(
                STATISTICS_API, "several servers answer to its name, and a call reaches one"
            )
            self.collectors.leave_out("triton", why)
        if found.note:
            self._screen.step(f"{name}{found.note}", "yellow")
        for line in told_of_rows(self._models, found):
            self._screen.step(f"{name}{line}", "yellow")

    def describe(self) -> ServerFacts:
        """For the manifest."""
        endpoint = self.endpoint
        first, *others = [
            ModelFacts(
                model=one.spec.name,
                version=one.spec.version,
                steps=one.steps,
                batch_record=endpoint.has_records,
            )
            for one in endpoint.models
        ]
        return ServerFacts(
            node=self.label,
            model=first.model,
            version=first.version,
            source=endpoint.source,
            server_version=endpoint.server_version,
            batch_record=first.batch_record,
            steps=first.steps,
            others=tuple(others),
            decoupled=tuple(endpoint.decoupled),
            scheduling=self._scheduling(),
            gpus=self._gpus(),
            uptime_ns=self.agent.call(NodeAgent.server_uptime_ns, self._foreign_port)
            if self.is_here
            else None,
            control=self.control,
            serving=dict(endpoint.serving),
        )

    @property
    def control(self) -> ControlFacts | None:
        """What was loaded and unloaded for the run, and whether it has been put back; None where nothing is asked."""
        return self._own_control if self._controlled is None else self._controlled.facts

    def restore_models(self) -> list[str]:
        """Puts the models of a server at a url back; what could not be, as sentences. Raises nothing."""
        if self._controlled is None:
            return []
        return [f"{self.name}: {one}" for one in self._controlled.restore()]

    @property
    def _foreign_port(self) -> int | None:
        """Where one listens that somebody else started; None of our own."""
        return None if self.is_started else self.endpoint.port

    def _gpus(self) -> tuple[str, ...]:
        """UUIDs of those that it was given; empty where it sees all, or NVML tells none."""
        chosen = self._seat.entry.gpus
        found = self.agent.call(NodeAgent.server_gpus, chosen) if chosen is not None else ()
        return found if all(not one.isdecimal() for one in found) else ()

    def _scheduling(self) -> ServerScheduling:
        """How it is scheduled and limited, told where nobody deploys one so; empty where it is elsewhere."""
        if not self.is_here:
            return ServerScheduling()
        niceness = self._seat.entry.nice if self.is_started else 0
        found = self.agent.call(NodeAgent.server_scheduling, self._foreign_port, niceness)
        for what in found.unusual:
            told = f"the server is not scheduled as one that is deployed: {what}"
            self._screen.step(told, "yellow")
        return found

    def observe(self) -> None:
        """Has its node sample it, and the GPUs there."""
        pids, endpoint = self.agent.call(NodeAgent.server_pids), self.endpoint
        target = ServerTarget(
            self.name, endpoint.url if endpoint.has_statistics else None, endpoint.metrics_url,
            tuple(one.spec.name for one in endpoint.models), endpoint.access, pids,
            endpoint.port if self.is_here and not pids else None,
        )  # fmt: skip
        self._observer.call(Observer.add_server, target)

    def observe_again(self) -> list[str]:
        """After it was started again: its processes are others. What does not go on, as sentences."""
        try:
            pids = self.agent.call(NodeAgent.server_pids)
            self._observer.call(Observer.set_server_pids, self.name, pids)
        except ClusterError as error:
            return [f"after the server was started again: {error}"]
        return []

    def observe_gpus(self) -> None:
        """Has the GPUs of its node sampled; once for each node. Raises ClusterError where that is required."""
        profile = self._scenario.profile
        if self.collectors.is_on("nvml"):
            try:
                self._observer.call(Observer.add_gpus, profile.gpm == "auto")
            except ClusterError as error:
                self.collectors.choose("nvml", profile.nvml, str(error), GPU_MEND)

    def choose_tracing(self) -> None:
        """Triton's trace API, where the server holds it. Batch records tell more, so that its lack is no loss."""
        wanted, reason = self._scenario.profile.triton_trace, None
        if wanted != "off":
            reason = self.agent.call(NodeAgent.missing_trace)
        self.collectors.choose("triton trace", wanted, reason, _TRACE_MEND, is_quiet=True)
        if self.collectors.is_on("triton trace"):
            self.agent.call(NodeAgent.turn_tracing, True)

    def record_kernels(self, clock: ClockTrack, start_ns: int, spans: Sequence[PhaseSpan]) -> None:
        """See `ServerLibraries.record`; `clock`: its node's."""
        self.libraries.record(self.agent, clock, start_ns, spans)

    def keep_log(self, store: RunStore) -> None:
        """Copies its log into the run directory, if it was started here."""
        log = self.agent.call(NodeAgent.server_log)
        if log:
            store.write_text(f"logs/{self.name}.log", log.decode(errors="replace"))

    def begin_stop(self) -> None:
        """Asks it to end, without waiting for it."""
        if self.stopping is None:
            self.stopping = self.agent.begin(NodeAgent.stop_server)


def told_of_rows(models: Sequence[ModelConfig], found: Endpoint) -> list[str]:
    """Where a scenario states a `max_batch_size` that the server's configuration does not have."""
    lines = []
    for model in models:
        own = found.serving.get(model.name)
        most = None if own is None else max(own.max_batch_size, 1)
        if most is not None and "max_batch_size" in model.model_fields_set and model.max_batch_size != most:
            lines.append(
                f"max_batch_size of {model.name} is {most} at the server: the {model.max_batch_size} of the scenario"
                " bounds the rows of a request, not those of a batch"
            )
    return lines
