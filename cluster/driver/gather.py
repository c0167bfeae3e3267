"""After the load: stops the collectors and brings all records into the store, whatever of it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from squall.actors.client_worker import ClientWorker
from squall.actors.locust.locust_master import MasterAccount
from squall.analysis.storage.collected import KernelRecordingFacts, NsysFacts
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, assign_phase
from squall.cluster.driver.client_workers import Worker
from squall.cluster.driver.deployed_server import DeployedServer
from squall.cluster.driver.deployment import Deployment, with_clock
from squall.cluster.driver.fetching import Fetching, in_order
from squall.cluster.driver.ingest import (
    Ledger,
    add_missing,
    ingest_file,
    ingest_table,
    model_names,
    notes_of_ties,
)
from squall.cluster.driver.issued import Issued
from squall.cluster.driver.locust_crew import Crew
from squall.cluster.driver.locust_facts import ended_workers, last_facts, with_last_users
from squall.cluster.driver.locust_outputs import kept_logs, kept_outputs
from squall.cluster.driver.node_files import pieces_of
from squall.cluster.driver.nodes import Nodes, label_of
from squall.cluster.driver.observed_collectors import BATCHES_MEND
from squall.cluster.driver.phase_profiler import TOO_LATE, PhaseProfiler
from squall.cluster.driver.server_libraries import kernels_together
from squall.cluster.driver.side_by_side import as_they_end, side_by_side
from squall.cluster.driver.worker_answers import answers_of, with_accounts
from squall.cluster.node.agent import NodeAgent
from squall.cluster.node.spills import NodeFile
from squall.scenarios.errors import LostActor, SquallError, StoreError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan
from squall.scenarios.run_plan import RunPlan

_STOP_TIMEOUT_S = 60.0
_SPILL_TIMEOUT_S = 1800.0

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Collection:
    """Its steps go on after one that failed.

    `losses` says which requests or batches are missing: any makes the run invalid. `notes` says what else did not
    go as it should: samples, profiler, the server's end. `store_error`: why the store took no more; nothing is written
    after that, and `unfetched` names the nodes whose files the store has not all, with the reason.
    """

    def __init__(
        self,
        plan: RunPlan,
        store: RunStore,
        deployment: Deployment,
        phases: Sequence[RunPhase],
        start_ns: int,
        node_starts_ns: Mapping[str, int],
        anchor_ns: int,
        fetching: Fetching,
    ) -> None:
        """`start_ns`: the start instant on the run clock; `node_starts_ns`: as each node's workers were told it.

        `anchor_ns`: the run clock minus the driver's monotonic clock.
        """
        self.losses: list[str] = []
        self.notes: list[str] = []
        self.store_error: StoreError | None = None
        self.unfetched: dict[str, str] = {}
        self._gone: set[str] = set()
        self._kernels: dict[str, KernelRecordingFacts] = {}
        self._anchor_ns = anchor_ns
        self._fetching = fetching
        self._store = store
        self._deployment = deployment
        self._phases = phases
        self._start_ns = start_ns
        self._node_starts_ns = node_starts_ns
        self._clocks = deployment.nodes.clocks()
        nodes = [worker.node.label for worker in deployment.workers]
        served = store.manifest.servers
        labels = {"run": store.run, "request_kind": next((one.model or "" for one in served.values()), "")}
        # users have no arrivals that could be missing: what was issued is what their workers say
        self._ledger = None
        self._issued = Issued(plan.n_users if isinstance(plan, ClosedPlan) else None, len(nodes))
        if isinstance(plan, Plan):
            self._ledger = Ledger(plan, labels, nodes, start_ns, tuple(served), model_names(store.manifest))

    def collect(self, profiler: PhaseProfiler | None) -> None:
        """Everything, requests first: a disk that fills up takes what matters most.

        The profiler's import and the server's end take seconds: they go on while files come in. `Deployment.release`
        waits for the server.
        """
        deployment = self._deployment
        if profiler is not None:
            self._try("profiler", profiler.begin_finish)
        side_by_side([partial(self._end_recording, server) for server in deployment.servers])
        self._try("agents", self._wake_agents)
        self._try_noting("clocks", self._take_clocks)  # first: the observers answer the last probes
        self._try_noting("samples", self._stop_observers)
        self._take_requests()
        if profiler is not None:
            self._try("profiler", profiler.finish)
        side_by_side([partial(self._spill_server, server) for server in deployment.servers])
        for server in deployment.servers:
            if server.name in self._kernels:
                self._try_noting("kernels", partial(self._note_kernels, server))
        if profiler is not None:
            self._try_noting("profiler", partial(self._take_profile, profiler))
        files = self._files()
        for _ in self._fetch(files):
            pass
        self._try_noting("fetching", partial(self._note_fetched, files))
        self._ingest([entry for entry in files if entry[1].table not in ("", "requests")])
        self._try("other tables", self._store.flush)
        if self.store_error is None:
            self._try_noting("kernels", lambda: self.notes.extend(notes_of_ties(self._store)))
        self._try_noting("batches", self._tell_no_batches)
        for label, file in files:
            if not file.table and label not in self.unfetched:
                self._try_noting(f"report of {label}", partial(self._take_report, label, file))
        self._try_noting("server log", deployment.keep_server_logs)
        if deployment.locust is not None:
            self._try_noting("Locust", partial(self._take_locust, deployment.locust))

    def _take_locust(self, crew: Crew) -> None:
        """What it says of the run, and its files: what the disk does not take of these is a note."""
        is_lost = [worker.is_lost for worker in self._deployment.workers]
        ended = ended_workers(crew.workers, is_lost)
        if any(one.n_users is None for one in ended):
            ended, losses = with_last_users(ended, self._store, self._issued)
            self.losses += losses
        account = crew.account or MasterAccount()
        facts = last_facts(crew.settings, account, self._clocks[crew.node.label], ended)
        self._store.amend(replace(self._store.manifest, locust=facts))
        files, notes = kept_outputs(self._store, account.files)
        self._store.amend(replace(self._store.manifest, locust=replace(facts, files=files)))
        self.notes += notes + kept_logs(self._store, self._deployment.nodes.hosts)

    def _end_recording(self, server: DeployedServer) -> None:
        """May run beside others, as `_spill_server`: one slow node does not hold up the rest."""
        if server.collectors.is_on("kernels"):
            self._try_noting("kernels", partial(server.libraries.stop, server.agent))
        if server.collectors.is_on("triton trace"):
            self._try_noting("trace", partial(self._server_call, server, NodeAgent.turn_tracing, False))

    def _spill_server(self, server: DeployedServer) -> None:
        """All that was recorded of a server, into spill files of its node, which takes as long as that is much."""
        self._try("batches", partial(self._spill_server_tables, server))
        self._try_noting("stop_server", server.begin_stop)
        if server.collectors.is_on("kernels"):
            self._try_noting("kernels", partial(self._spill_kernels, server))

    def _server_call(
        self,
        server: DeployedServer,
        method: Callable[Concatenate[NodeAgent, Arguments], Answer],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Answer:
        return server.agent.wait(server.agent.begin(method, *arguments, **named), _STOP_TIMEOUT_S)

    def _spill_server_tables(self, server: DeployedServer) -> None:
        spec, from_ns = server.endpoint.models[0].spec, self._node_starts_ns[server.label]
        losses, notes = self._server_call(
            server, NodeAgent.spill_server_tables, spec.name, spec.version, from_ns
        )
        self.losses += losses
        self.notes += notes

    def _tell_no_batches(self) -> None:
        """Of a collector that was on and gave nothing."""
        servers = [one for one in self._deployment.servers if one.collectors.is_on("batches")]
        if not servers:
            return
        rows = self._store.read("batches", ["server"]) if self._store.has("batches") else None
        found = set() if rows is None else set(rows.column("server").unique().to_pylist())
        silent = [server for server in servers if server.name not in found]
        for server in silent:
            server.collectors.lose("batches", "no batch of the load was recorded", BATCHES_MEND)
        if silent:
            self._deployment.note_collectors()

    def _spill_kernels(self, server: DeployedServer) -> None:
        told, facts = server.agent.wait(server.agent.begin(NodeAgent.spill_kernels), _SPILL_TIMEOUT_S)
        self.notes += told
        self._kernels[server.name] = facts

    def _note_kernels(self, server: DeployedServer) -> None:
        facts = self._kernels[server.name]
        server.libraries.judge(facts)
        known = self._store.manifest
        self._store.amend(replace(known, kernels=kernels_together(known.kernels, facts)))
        self._deployment.note_collectors()

    def _wake_agents(self) -> None:
        self.losses += self._deployment.nodes.wake()

    def _stop_observers(self) -> None:
        notes, found = self._deployment.nodes.stop_observers(_STOP_TIMEOUT_S)
        self.notes += notes
        known = self._store.manifest  # written once: it holds facts of every node
        self._store.amend(replace(known, observers={**known.observers, **found}))

    def _take_clocks(self) -> None:
        """The last look at the clocks: the maps by which all that follows is stored, and the probes themselves."""
        nodes = self._deployment.nodes
        probes, losses = nodes.stop_clocks()
        self.notes += losses
        self._clocks = nodes.clocks()
        known = self._store.manifest
        start_ns, end_ns = self._phases[0].start_ns, self._phases[-1].end_ns
        now_ns = time.monotonic_ns() + self._anchor_ns  # a drain may have ended early
        load_ns = (start_ns, max(start_ns, min(end_ns, now_ns)))
        described = {
            label: with_clock(known.nodes[label], clock, load_ns) for label, clock in self._clocks.items()
        }
        self._store.amend(replace(known, nodes=described, clock_probing=nodes.clock_cost()))
        for table in probes:
            if len(table):
                self._store.append("clock_probes", assign_phase("clock_probes", table, self._phases))

    def _take_requests(self) -> None:
        """Every record of a request, and a row `lost` or `unsent` for each arrival without one."""
        files = [entry for entry in self._files() if entry[1].table == "requests"]
        for of_node in self._fetch(files):  # those of a slow node come last
            self._ingest(of_node)
        for worker, tables in self._of_workers(ClientWorker.leftovers):
            self._try(worker.handle.name, partial(self._take_leftovers, worker, tables))
        self._try("arrivals without a record", self._add_missing)
        self._try_noting("scheduling", self._take_accounts)
        if self._store.manifest.value_checks is not None:
            self._try("value checks", self._add_checks)
        self._try("requests", partial(self._store.flush, "requests"))

    def _take_accounts(self) -> None:
        """What the senders had while they ran."""
        answers = self._of_workers(ClientWorker.account, self.notes)
        facts, told = with_accounts(self._store.manifest.workers, self._deployment.workers, answers)
        self.notes += told
        self._store.amend(replace(self._store.manifest, workers=facts))

    def _of_workers(
        self, method: Callable[[ClientWorker], Answer], troubles: list[str] | None = None
    ) -> list[tuple[Worker, Answer]]:
        """See `answers_of`. What goes wrong is told in `troubles`, else a loss."""
        return answers_of(self._deployment.workers, method, self.losses if troubles is None else troubles)

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
        except SquallError as error:
            if f"{what}: {error}" not in told:  # files are listed twice
                told.append(f"{what}: {error}")
        except Exception as error:  # a fault of ours must not cost the rows that other steps save
            told.append(f"{what}: {type(error).__name__}: {error}")

    def _take_profile(self, profiler: PhaseProfiler) -> None:
        profiler.collect()
        self.notes += profiler.losses
        (server,) = self._deployment.servers  # nsys profiles a run of one server
        told: list[NsysFacts] = []
        self._try_noting("profiler", lambda: told.append(self._server_call(server, NodeAgent.profiler_facts)))
        facts = told[0] if told else NsysFacts()
        clock = self._clocks[server.label]
        coverage = profiler.coverage(self._start_ns, clock.target_ns, facts.steps)
        unprofiled = {name: one.reason for name, one in coverage.items() if not one.is_profiled}
        self.notes += [
            f"phase {name} is not profiled: {reason}"
            for name, reason in unprofiled.items()
            if reason == TOO_LATE
        ]
        if unprofiled and len(unprofiled) == len(coverage):
            reason = next(iter(unprofiled.values()))
            server.collectors.lose("nsys", reason, "the notes of the run have all")
        self._store.amend(
            replace(
                self._store.manifest,
                profiled_phases=coverage,
                nsys=facts,
            )
        )
        self._deployment.note_collectors()

    def _take_report(self, label: str, file: NodeFile) -> None:
        """Copies a file of a scrubbed report into the run directory: reports/SERVER/… becomes nsys/SERVER/…"""
        name = f"nsys/{file.path.partition('/')[2]}"
        self._store.write_file(name, pieces_of(self._deployment.nodes.files[label], file))

    def _files(self) -> list[tuple[str, NodeFile]]:
        """(site, file) of every file there is; those of an agent that does not answer are left out."""
        found: dict[str, list[NodeFile]] = {label: [] for label in self._deployment.nodes.agents}
        side_by_side(
            [
                partial(self._try, f"files of {label}", partial(self._list_files, label, of_site))
                for label, of_site in found.items()
            ]
        )
        return [(label, file) for label, of_site in found.items() for file in of_site]

    def _list_files(self, label: str, found: list[NodeFile]) -> None:
        with self._noting_unfetched(label):
            found.extend(files_of(self._deployment.nodes, label, self.losses))

    def _fetch(self, files: Sequence[tuple[str, NodeFile]]) -> Iterator[Sequence[tuple[str, NodeFile]]]:
        """To where they can be read: one stream a node, all nodes at once. Gives those of each node that is done."""
        by_node: dict[str, list[tuple[str, NodeFile]]] = {}
        for label, file in sorted(files, key=lambda entry: in_order(entry[1])):
            by_node.setdefault(label_of(label), []).append((label, file))
        steps = {label: partial(self._fetch_from_node, of_node) for label, of_node in by_node.items()}
        for label in as_they_end(steps):
            yield by_node[label]

    def _fetch_from_node(self, files: Sequence[tuple[str, NodeFile]]) -> None:
        for label, file in files:
            if label not in self._gone:
                self._try(f"{file.path} of {label}", partial(self._fetch_one, label, file))

    def _fetch_one(self, label: str, file: NodeFile) -> None:
        with self._noting_unfetched(label):
            if self.store_error is not None:
                raise self.store_error
            try:
                self._fetching.bring(label, file, self._put_again)
            except LostActor:
                self._gone.add(label)
                raise

    def _put_again(self, label: str, error: LostActor) -> None:
        self.losses += self._deployment.nodes.put_again(label, error)

    def _note_fetched(self, files: Sequence[tuple[str, NodeFile]]) -> None:
        """What it took; and that a node's files are all here, should the driver end before the run is sealed."""
        self.notes += self._fetching.told()
        if facts := self._fetching.facts():
            self._store.amend(replace(self._store.manifest, fetched=facts))
        for label in self._deployment.nodes.agents:
            if label not in self.unfetched:
                self._fetching.note_whole(label, [file for site, file in files if site == label])

    def _ingest(self, files: Sequence[tuple[str, NodeFile]]) -> None:
        for label, file in files:
            self._try(f"{file.path} of {label}", partial(self._ingest_one, label, file))

    def _ingest_one(self, label: str, file: NodeFile) -> None:
        seen, clock = self._deployment.nodes.files[label], self._clocks[label_of(label)]
        with self._noting_unfetched(label):
            if self.store_error is not None:
                raise self.store_error
            kept = self._kept(file.table)
            for data in ingest_file(self._store, seen, file, clock, self._phases, self.losses, kept):
                self._note(file.table, label, data)

    @contextmanager
    def _noting_unfetched(self, label: str) -> Iterator[None]:
        """Notes that the store has not all of the node's files, where it has not."""
        try:
            yield
        except Exception as error:
            self.unfetched.setdefault(label, str(error))
            raise

    def _take_leftovers(self, worker: Worker, tables: Sequence[Any]) -> None:
        """Rows that the worker's spill files did not take."""
        label = worker.node.label
        for data in tables:
            table = data.schema.metadata[b"table"].decode()
            kept = self._kept(table)(data)
            ingest_table(self._store, table, kept, self._clocks[label], self._phases)
            self._note(table, label, kept)

    def _add_checks(self) -> None:
        """How many replies were compared; a lost worker cannot say how many it did."""
        tallies = [tally for _, tally in self._of_workers(ClientWorker.tally)]
        known = self._store.manifest
        assert known.value_checks is not None
        counted = replace(
            known.value_checks,
            n_checked=sum(one.n_checked for one in tallies),
            n_wrong=sum(one.n_wrong for one in tallies),
        )
        self._store.amend(replace(known, value_checks=counted))

    def _kept(self, table: str) -> Callable[[pa.Table], pa.Table]:
        if table == "requests" and self._ledger is not None:
            return self._ledger.planned
        return lambda data: data

    def _note(self, table: str, label: str, data: Any) -> None:
        if table != "requests":
            return
        if self._ledger is not None:
            self._ledger.note(data, self._node_starts_ns[label_of(label)])
        else:
            self._issued.note(data)

    def _add_missing(self) -> None:
        if self._ledger is None:
            numbers = {id(worker): number for number, worker in enumerate(self._deployment.workers)}
            told = {numbers[id(one)]: n for one, n in self._of_workers(ClientWorker.n_issued)}
            n_issued = self._issued.total(told)
            known = self._store.manifest
            self._store.amend(replace(known, plan=replace(known.plan, n_arrivals=n_issued)))
            return
        if self.store_error is None:
            self.losses += add_missing(
                self._store, self._ledger, [self._end_of(w) for w in self._deployment.workers]
            )

    def _end_of(self, worker: Worker) -> int | None:
        """From when on, after the start instant, the worker is known to have sent nothing; None: not known."""
        if worker.running is None:
            return 0
        ended_ns = worker.handle.ended_ns
        if ended_ns is None:
            return None
        error_ns = self._clocks[worker.node.label].largest_error_ns
        return ended_ns + self._anchor_ns + error_ns - self._start_ns


def files_of(nodes: Nodes, label: str, losses: list[str]) -> list[NodeFile]:
    """The files of a node. An agent that died since it was last heard is told in `losses`, and its files adopted.

    Raises ClusterError where nobody can be put in its place.
    """
    try:
        return nodes.files[label].list()
    except LostActor as error:
        losses += nodes.adopt(label, error)
        return nodes.files[label].list()
