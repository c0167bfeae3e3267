"""After the load: stops the collectors and brings all records into the store, whatever of it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from analysis.store import RunStore
from analysis.timeline import ClockMap, RunPhase
from cluster.agent import SERVER
from cluster.deployment import Deployment, Worker
from cluster.ingest import Ledger, ingest_file, ingest_table
from cluster.phase_profiler import PhaseProfiler
from cluster.spawn import Handle
from scenarios.closed import ClosedPlan
from scenarios.errors import SquallError, StoreError
from scenarios.plan import Plan

_STOP_TIMEOUT_S = 120
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
    ) -> None:
        """`start_ns`: the start instant on the run clock."""
        self.losses: list[str] = []
        self.notes: list[str] = []
        self.store_error: StoreError | None = None
        self._store = store
        self._deployment = deployment
        self._phases = phases
        self._start_ns = start_ns
        nodes = [worker.node.label for worker in deployment.workers]
        labels = {"run": store.run, "target": SERVER, "request_kind": deployment.served_model}
        # a closed loop has no arrivals that could be missing: what was issued is what its workers say
        self._ledger = None if isinstance(plan, ClosedPlan) else Ledger(plan, labels, nodes, start_ns)

    def collect(self, profiler: PhaseProfiler | None) -> None:
        """Everything, requests first: a disk that fills up takes what matters most.

        The profiler's import and the server's end take seconds: they go on while files come in. `Deployment.release`
        waits for the server.
        """
        if profiler is not None:
            self._try("profiler", profiler.begin_finish)
        for label, agent in self._deployment.agents.items():
            self._try(f"samples of {label}", partial(self._note_from, agent, "stop_samplers"))
        self._take_requests()
        if profiler is not None:
            self._try("profiler", profiler.finish)
        server = self._deployment.server_agent
        if server is not None:
            self._try("spill_batches", partial(self._lose_from, server, "spill_batches"))
            self._try("stop_server", self._deployment.begin_stop)
        if profiler is not None:
            self._try("profiler", partial(self._take_profile, profiler))
        self._ingest([entry for entry in self._spill_files() if entry[1] != "requests"])
        self._try("other tables", self._store.flush)
        self._try("server log", self._deployment.keep_server_log)

    def _take_requests(self) -> None:
        """Every record of a request, and a row `unsent` for each arrival without one."""
        self._ingest([entry for entry in self._spill_files() if entry[1] == "requests"])
        for worker in self._deployment.workers:
            self._try(worker.handle.name, partial(self._take_leftovers, worker))
        self._try("unsent arrivals", self._add_missing)
        if "value_checks" in self._store.manifest:
            self._try("value checks", self._add_checks)
        self._try("requests", partial(self._store.flush, "requests"))

    def _try(self, what: str, step: Callable[[], None]) -> None:
        """Runs a step; its failure is a loss, and the next step has its turn."""
        try:
            step()
        except StoreError as error:
            self.store_error = self.store_error or error
            self.losses.append(str(error))
        except SquallError as error:
            self.losses.append(f"{what}: {error}")
        except Exception as error:  # a fault of ours must not cost the rows that other steps save
            self.losses.append(f"{what}: {type(error).__name__}: {error}")

    def _note_from(self, agent: Handle, method: str) -> None:
        self.notes += agent.call(method, timeout_s=_STOP_TIMEOUT_S)

    def _lose_from(self, agent: Handle, method: str) -> None:
        self.losses += agent.call(method, timeout_s=_STOP_TIMEOUT_S)

    def _take_profile(self, profiler: PhaseProfiler) -> None:
        profiler.collect()
        self.notes += profiler.losses
        if profiler.losses:
            self._deployment.set_collector(
                "nsys", "missing", profiler.losses[0], "the notes of the run have all"
            )
            self._store.update(collectors=self._deployment.collectors)
        self._store.update(profiled_phases=profiler.coverage(self._start_ns))

    def _spill_files(self) -> list[tuple[str, str, str, int]]:
        """(node, table, file name, bytes) of every spill file; those of a node that does not answer are left out."""
        found: list[tuple[str, str, str, int]] = []
        for label, agent in self._deployment.agents.items():
            self._try(f"spill files of {label}", partial(_list_files, label, agent, found))
        return found

    def _ingest(self, files: Sequence[tuple[str, str, str, int]]) -> None:
        for label, table, name, n_bytes in files:
            self._try(f"{name} of {label}", partial(self._ingest_one, label, table, name, n_bytes))

    def _ingest_one(self, label: str, table: str, name: str, n_bytes: int) -> None:
        agent, clock = self._deployment.agents[label], self._deployment.clocks[label]
        for data in ingest_file(self._store, agent, (table, name, n_bytes), clock, self._phases):
            self._note(table, data, clock)

    def _take_leftovers(self, worker: Worker) -> None:
        """Rows that the worker's spill file did not take."""
        tables: list[Any] = [] if worker.is_lost else worker.handle.call("leftovers")
        for data in tables:
            clock = self._deployment.clocks[worker.node.label]
            ingest_table(self._store, "requests", data, clock, self._phases)
            self._note("requests", data, clock)

    def _add_checks(self) -> None:
        """How many replies were compared; a lost worker cannot say how many it did."""
        workers = [worker for worker in self._deployment.workers if not worker.is_lost]
        tallies = [worker.handle.call("tally") for worker in workers]
        counts = {
            "n_checked": sum(one.n_checked for one in tallies),
            "n_wrong": sum(one.n_wrong for one in tallies),
        }
        self._store.update(value_checks={**self._store.manifest["value_checks"], **counts})

    def _note(self, table: str, data: Any, clock: ClockMap) -> None:
        if table == "requests" and self._ledger is not None:
            self._ledger.note(data, clock)

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


def _list_files(label: str, agent: Handle, found: list[tuple[str, str, str, int]]) -> None:
    found.extend((label, *entry) for entry in agent.call("spill_files"))
