"""After the load: stops the collectors and brings all records into the store, whatever of it fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from actors.priority import MOST_SHARE
from analysis.store import RunStore
from analysis.timeline import RunPhase, assign_phase
from cluster.agent import SERVER
from cluster.client_workers import Worker
from cluster.deployment import Deployment, clock_facts
from cluster.ingest import Ledger, RemoteFile, ingest_file, ingest_table
from cluster.nodes import Nodes
from cluster.phase_profiler import TOO_LATE, PhaseProfiler
from cluster.spawn import Handle
from cluster.spills import NodeFile
from scenarios.closed import ClosedPlan
from scenarios.errors import LostActor, SquallError, StoreError
from scenarios.plan import Plan
from scenarios.units import NS_PER_S

_STOP_TIMEOUT_S = 120
_PIECE_BYTES = 2**20
_LOST = "its worker was lost before it was recorded"


class Collection:
    """Its steps go on after one that failed.

    `losses` says which requests or batches are missing: any makes the run invalid. `notes` says what else did not
    go as it should: samples, profiler, the server's end. `store_error`: why the store took no more.
    """

    def __init__(
        self,
        plan: Plan | ClosedPlan,
        store: RunStore,
        deployment: Deployment,
        phases: Sequence[RunPhase],
        start_ns: int,
        node_starts_ns: Mapping[str, int],
    ) -> None:
        """`start_ns`: the start instant on the run clock; `node_starts_ns`: as each node's workers were told it."""
        self.losses: list[str] = []
        self.notes: list[str] = []
        self.store_error: StoreError | None = None
        self._store = store
        self._deployment = deployment
        self._phases = phases
        self._start_ns = start_ns
        self._node_starts_ns = node_starts_ns
        self._clocks = deployment.nodes.clocks()
        nodes = [worker.node.label for worker in deployment.workers]
        labels = {"run": store.run, "target": SERVER, "request_kind": deployment.served_model}
        # a closed loop has no arrivals that could be missing: what was issued is what its workers say
        self._ledger = None if isinstance(plan, ClosedPlan) else Ledger(plan, labels, nodes, start_ns)

    def collect(self, profiler: PhaseProfiler | None) -> None:
        """Everything, requests first: a disk that fills up takes what matters most.

        The profiler's import and the server's end take seconds: they go on while files come in. `Deployment.release`
        waits for the server.
        """
        deployment = self._deployment
        if profiler is not None:
            self._try("profiler", profiler.begin_finish)
        if deployment.collectors.is_on("triton trace"):
            self._try_noting("trace", partial(self._server_call, "turn_tracing", False))
        self._try_noting("clocks", self._take_clocks)  # first: the observers answer the last probes
        for label, agent in deployment.nodes.agents.items():
            self._try_noting(f"samples of {label}", partial(self._stop_observer, label, agent))
        self._take_requests()
        if profiler is not None:
            self._try("profiler", profiler.finish)
        if deployment.server_agent is not None:
            self._try("batches", self._spill_server_tables)
            self._try_noting("stop_server", deployment.begin_stop)
        if profiler is not None:
            self._try_noting("profiler", partial(self._take_profile, profiler))
        files = self._files()
        self._ingest([entry for entry in files if entry[1].table not in ("", "requests")])
        self._try("other tables", self._store.flush)
        for label, file in files:
            if not file.table:
                self._try_noting(f"report of {label}", partial(self._take_report, label, file))
        self._try_noting("server log", deployment.keep_server_log)

    def _server_call(self, method: str, *arguments: Any) -> Any:
        assert self._deployment.server_agent is not None
        return self._deployment.server_agent.call(method, *arguments, timeout_s=_STOP_TIMEOUT_S)

    def _spill_server_tables(self) -> None:
        model, version = self._deployment.served_model, self._deployment.served_version
        losses, lost_traces = self._server_call("spill_server_tables", model, version)
        self.losses += losses
        self.notes += lost_traces

    def _stop_observer(self, label: str, agent: Handle) -> None:
        losses, facts = agent.call("stop_observer", timeout_s=_STOP_TIMEOUT_S)
        self.notes += losses
        if facts:
            observers = {**self._store.manifest.get("observers", {}), label: facts}
            self._store.update(observers=observers)

    def _take_clocks(self) -> None:
        """The last look at the clocks: the maps by which all that follows is stored, and the probes themselves."""
        nodes = self._deployment.nodes
        probes, losses = nodes.stop_clocks()
        self.notes += losses
        self._clocks = nodes.clocks()
        known = self._store.manifest["nodes"]
        load_ns = (self._phases[0].start_ns, self._phases[-1].end_ns)
        self._store.update(
            nodes={
                label: {**known[label], **clock_facts(clock, load_ns)}
                for label, clock in self._clocks.items()
            },
            clock_probing=nodes.clock_cost(),
        )
        for table in probes:
            if len(table):
                self._store.append("clock_probes", assign_phase(table, "sent_ns", self._phases))

    def _take_requests(self) -> None:
        """Every record of a request, and a row `unsent` for each arrival without one."""
        self._ingest([entry for entry in self._files() if entry[1].table == "requests"])
        for worker in self._deployment.workers:
            self._try(worker.handle.name, partial(self._take_leftovers, worker))
        self._try("unsent arrivals", self._add_missing)
        self._try_noting("scheduling", self._take_scheduling)
        if "value_checks" in self._store.manifest:
            self._try("value checks", self._add_checks)
        self._try("requests", partial(self._store.flush, "requests"))

    def _take_scheduling(self) -> None:
        """What the senders had while they ran, and whose priority was taken away because it computed too much."""
        facts = list(self._store.manifest["workers"])
        for index, worker in enumerate(self._deployment.workers):
            if worker.is_lost:
                continue
            n_demotions, demoted_ns = worker.handle.call("demotions")
            got = asdict(worker.handle.call("scheduling"))
            facts[index] = {
                **facts[index], "scheduling": got, "n_demotions": n_demotions, "demoted_ns": demoted_ns
            }  # fmt: skip
            if n_demotions:
                self.notes.append(
                    f"{worker.handle.name} used more than {MOST_SHARE:g} of a core and went on without its priority for"
                    f" {demoted_ns / NS_PER_S:.1f} s"
                )
        self._store.update(workers=facts)

    def _try(self, what: str, step: Callable[[], None]) -> None:
        """Runs a step; its failure is a loss, and the next step has its turn."""
        self._attempt(what, step, self.losses)

    def _try_noting(self, what: str, step: Callable[[], None]) -> None:
        """As `_try` for what the load figures do not need: its failure is a note."""
        self._attempt(what, step, self.notes)

    def _attempt(self, what: str, step: Callable[[], None], told: list[str]) -> None:
        try:
            step()
        except StoreError as error:
            self.store_error = self.store_error or error
            self.losses.append(str(error))
        except SquallError as error:
            if f"{what}: {error}" not in told:  # files are listed twice
                told.append(f"{what}: {error}")
        except Exception as error:  # a fault of ours must not cost the rows that other steps save
            told.append(f"{what}: {type(error).__name__}: {error}")

    def _take_profile(self, profiler: PhaseProfiler) -> None:
        profiler.collect()
        self.notes += profiler.losses
        facts: dict[str, Any] = {}
        self._try_noting("profiler", lambda: facts.update(self._server_call("profiler_facts")))
        clock = self._clocks[self._deployment.server_label]
        coverage = profiler.coverage(self._start_ns, clock.target_ns, facts.get("steps", ()))
        unprofiled = {name: one["reason"] for name, one in coverage.items() if not one["is_profiled"]}
        self.notes += [
            f"phase {name} is not profiled: {reason}"
            for name, reason in unprofiled.items()
            if reason == TOO_LATE
        ]
        if unprofiled and len(unprofiled) == len(coverage):
            reason = next(iter(unprofiled.values()))
            self._deployment.collectors.lose("nsys", reason, "the notes of the run have all")
        self._store.update(
            profiled_phases=coverage, nsys=facts, collectors=self._deployment.collectors.to_mapping()
        )

    def _take_report(self, label: str, file: NodeFile) -> None:
        """Copies a file of a scrubbed report into the run directory: reports/SERVER/… becomes nsys/SERVER/…"""
        remote = RemoteFile(self._deployment.nodes.agents[label], file.path, file.n_bytes)
        name = f"nsys/{file.path.partition('/')[2]}"
        self._store.write_file(name, iter(lambda: remote.read(_PIECE_BYTES), b""))

    def _files(self) -> list[tuple[str, NodeFile]]:
        """(node, file) of every file there is; those of a node that does not answer are left out."""
        found: list[tuple[str, NodeFile]] = []
        for label in self._deployment.nodes.agents:
            self._try(f"files of {label}", partial(self._list_files, label, found))
        return found

    def _list_files(self, label: str, found: list[tuple[str, NodeFile]]) -> None:
        found.extend((label, file) for file in files_of(self._deployment.nodes, label, self.losses))

    def _ingest(self, files: Sequence[tuple[str, NodeFile]]) -> None:
        for label, file in files:
            self._try(f"{file.path} of {label}", partial(self._ingest_one, label, file))

    def _ingest_one(self, label: str, file: NodeFile) -> None:
        agent, clock = self._deployment.nodes.agents[label], self._clocks[label]
        for data in ingest_file(self._store, agent, file, clock, self._phases):
            self._note(file.table, label, data)

    def _take_leftovers(self, worker: Worker) -> None:
        """Rows that the worker's spill file did not take."""
        tables: list[Any] = [] if worker.is_lost else worker.handle.call("leftovers")
        for data in tables:
            label = worker.node.label
            ingest_table(self._store, "requests", data, self._clocks[label], self._phases)
            self._note("requests", label, data)

    def _add_checks(self) -> None:
        """How many replies were compared; a lost worker cannot say how many it did."""
        workers = [worker for worker in self._deployment.workers if not worker.is_lost]
        tallies = [worker.handle.call("tally") for worker in workers]
        counts = {
            "n_checked": sum(one.n_checked for one in tallies),
            "n_wrong": sum(one.n_wrong for one in tallies),
        }
        self._store.update(value_checks={**self._store.manifest["value_checks"], **counts})

    def _note(self, table: str, label: str, data: Any) -> None:
        if table == "requests" and self._ledger is not None:
            self._ledger.note(data, self._node_starts_ns[label])

    def _add_missing(self) -> None:
        if self._ledger is None:
            workers = [worker for worker in self._deployment.workers if not worker.is_lost]
            n_issued = sum(worker.handle.call("n_issued") for worker in workers)
            self._store.update(plan={**self._store.manifest["plan"], "n_arrivals": n_issued})
            return
        if self._ledger.n_misplaced:
            self.losses.append(
                f"{self._ledger.n_misplaced} arrivals were scheduled at another instant, or of another size, than the"
                " plan's: please report it with logs/"
            )
        if self._ledger.n_missing:
            self.losses.append(f"{self._ledger.n_missing} arrivals have no record: {_LOST}")
            for table in self._ledger.missing_tables(_LOST):
                self._store.append("requests", table)


def files_of(nodes: Nodes, label: str, losses: list[str]) -> list[NodeFile]:
    """The files of a node. An agent that died since it was last heard is told in `losses`, and its files adopted.

    Raises ClusterError where nobody can be put in its place.
    """
    try:
        files: list[NodeFile] = nodes.agents[label].call("files")
    except LostActor as error:
        losses += nodes.adopt(label, error)
        files = nodes.agents[label].call("files")
    return files
