"""From the nodes' spill files to the tables of the run directory, on the run clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from squall.actors.spill import read_spill
from squall.analysis.columns import PhaseAt
from squall.analysis.join.ties import tie_kernels
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.schema import TABLES, arrow_schema
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, assign_phase, to_run_clock
from squall.cluster.driver.node_files import NodeFiles, arrow_file
from squall.cluster.node.agent import FIRST_SERVER
from squall.cluster.node.spills import NodeFile
from squall.scenarios.errors import SquallError
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.deal import workers_of
from squall.scenarios.plan.plan import Plan

_MISSING_ROWS = 2**18
_NEVER_NS = np.iinfo(np.int64).max
_FARTHEST_NS = 2**62
RECORD_GONE = "its record was lost: it may have been sent"
WORKER_GONE = "its worker had ended before it was due"


def ingest_file(
    store: RunStore,
    files: NodeFiles,
    file: NodeFile,
    clock: ClockTrack,
    phases: Sequence[RunPhase],
    losses: list[str],
    kept: Callable[[pa.Table], pa.Table] = lambda data: data,
) -> Iterator[pa.Table]:
    """Appends a spill file of a node to the store; gives each table once stored, as it was on the node's clock.

    `losses` takes what of the file cannot be read; `kept`: what of each table is stored.
    """
    damages: list[str] = []
    for whole in read_spill(arrow_file(files, file), file.table, damages):
        data = _at_real_instants(file.table, kept(whole), damages)
        ingest_table(store, file.table, data, clock, phases)
        yield data
    losses.extend(f"{file.path}: {damage}" for damage in damages)


def _at_real_instants(table: str, data: pa.Table, damages: list[str]) -> pa.Table:
    """Rows without those at an instant that no machine's clock shows: on the run clock it would not fit 64 bits."""
    for name in TABLES[table].instants:
        column = data.column(name)
        is_real = pc.and_(pc.greater(column, -_FARTHEST_NS), pc.less(column, _FARTHEST_NS))
        n_before = len(data)
        data = data.filter(pc.fill_null(is_real, True))
        if len(data) < n_before:
            damages.append(f"{n_before - len(data)} rows are left out, whose {name} no clock shows")
    return data


def ingest_table(
    store: RunStore, table: str, data: pa.Table, clock: ClockTrack, phases: Sequence[RunPhase]
) -> None:
    """Appends rows on a node's clock to the store, on the run clock and with their phase."""
    data = assign_phase(table, to_run_clock(table, data, clock), phases)
    rule = TABLES[table].phase
    if isinstance(rule, PhaseAt) and rule.only_measured:
        measured = pa.array([phase.name for phase in phases if phase.kind == "measure"], pa.string())
        data = data.filter(pa.compute.is_in(data.column("phase").cast(pa.string()), measured))
    if len(data):
        store.append(table, data)


def notes_of_ties(store: RunStore) -> list[str]:
    """Ties kernels to batches, once all tables are in the store. A disk without room for it, or a table that squall did
    not write, costs the ties alone: that is told."""
    try:
        return tie_kernels(store)
    except SquallError as error:
        return [f"kernels are not tied to their batches: {error}"]


def model_names(manifest: Manifest) -> list[str]:
    """Of a run whose scenario has several models; else empty."""
    return [str(one["name"]) for one in (manifest.scenario or {}).get("models") or ()]


class Ledger:
    """Which arrivals of the plan have a row; the rest become rows `lost` or `unsent`, so that none is missing.

    `n_misplaced` counts rows whose instant or size is not that of the plan: every other figure of a run takes the
    worker's word for what was planned. `n_unplanned` counts rows of no arrival, which are left out.
    """

    def __init__(
        self,
        plan: Plan,
        labels: Mapping[str, str],
        nodes: Sequence[str],
        start_ns: int,
        targets: Sequence[str] = (FIRST_SERVER,),
        models: Sequence[str] = (),
    ) -> None:
        """`nodes[w]`: node of worker w, which has the arrivals that the plan's rule deals to it.

        `start_ns`: the start instant on the run clock; `targets`: names of the servers, as the plan counts them. Where
        the worker was to choose one of several, a missing row names none. `models`: their names, where several are
        under load.
        """
        self._plan = plan
        self._labels = dict(labels)
        self._nodes = list(nodes)
        self._targets = list(targets)
        self._models = list(models)
        self._start_ns = start_ns
        self._is_there = np.zeros(len(plan), bool)
        self.n_misplaced = 0
        self.n_unplanned = 0

    def planned(self, requests: pa.Table) -> pa.Table:
        """Rows of a worker, but for those of no arrival of the plan, which are counted."""
        n_rows, requests = len(requests), self._of_plan(requests)
        self.n_unplanned += n_rows - len(requests)
        return requests

    def note(self, requests: pa.Table, node_start_ns: int) -> None:
        """Marks rows that are still on their node's clock, and holds them to the plan, exactly.

        `node_start_ns`: the start instant that the node's workers were told.
        """
        requests = self._of_plan(requests)
        ids = requests.column("request_id").to_numpy()
        self._is_there[ids] = True
        offset_ns = requests.column("scheduled_ns").to_numpy() - node_start_ns
        is_as_planned = (offset_ns == self._plan.offset_ns[ids]) & (
            requests.column("rows").to_numpy() == self._plan.rows[ids]
        )
        self.n_misplaced += int(np.count_nonzero(~is_as_planned))

    def note_stored(self, requests: pa.Table) -> None:
        """Marks rows that are in the store already."""
        self._is_there[self._of_plan(requests).column("request_id").to_numpy()] = True

    def _of_plan(self, requests: pa.Table) -> pa.Table:
        ids = requests.column("request_id")
        return requests.filter(pc.and_(pc.greater_equal(ids, 0), pc.less(ids, self._is_there.size)))

    @property
    def n_missing(self) -> int:
        """Arrivals that no worker has recorded."""
        return int(self._is_there.size - np.count_nonzero(self._is_there))

    def missing_tables(self, ended_ns: Sequence[int | None]) -> Iterator[pa.Table]:
        """A row for each arrival without one, a few at a time: what is held does not grow with the plan.

        `ended_ns[w]`: an instant from which on worker w is known to have sent nothing, from the start instant on; None
        where nothing is known. What it had to send from then on is `unsent`, what it had to before is `lost`.
        """
        known = np.array([_NEVER_NS if one is None else one for one in ended_ns], np.int64)
        for start in range(0, self._is_there.size, _MISSING_ROWS):
            rows = np.flatnonzero(~self._is_there[start : start + _MISSING_ROWS]) + start
            if not rows.size:
                continue
            is_unsent = self._plan.offset_ns[rows] >= known[self._workers_of(rows)]
            for outcome, why, some in (
                ("lost", RECORD_GONE, rows[~is_unsent]),
                ("unsent", WORKER_GONE, rows[is_unsent]),
            ):
                if some.size:
                    yield self._table(some, outcome, why)

    def _workers_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        plan = self._plan
        affinity = None if plan.affinity is None else plan.affinity[rows]
        return workers_of(plan.deal, plan.seq[rows], affinity, len(self._nodes))

    def _targets_of(self, rows: NDArray[np.int64]) -> pa.Array:
        if self._plan.target is not None:
            return pa.array(self._targets, pa.string()).take(pa.array(self._plan.target[rows]))
        name = self._targets[0] if len(self._targets) == 1 else ""
        return pa.repeat(pa.scalar(name, pa.string()), len(rows))

    def _table(self, rows: NDArray[np.int64], outcome: str, why: str) -> pa.Table:
        plan, n = self._plan, len(rows)
        seq, workers = plan.seq[rows], self._workers_of(rows)
        texts = {**self._labels, "outcome": outcome, "detail": why}
        schema = arrow_schema("requests")
        kinds = {}
        if self._models:
            numbers = models_of(plan.variant[rows], plan.models)
            kinds = {"request_kind": pa.array(self._models, pa.string()).take(pa.array(numbers))}
        columns = {
            **{name: pa.repeat(pa.scalar(text, pa.string()), n) for name, text in texts.items()},
            **kinds,
            "target": self._targets_of(rows),
            "node": pa.array(self._nodes, pa.string()).take(pa.array(workers)),
            "phase": pa.array([span.name for span in plan.spans], pa.string()).take(
                pa.array(plan.phase[rows])
            ),
            "request_id": seq,
            "worker": workers,
            "scheduled_ns": plan.offset_ns[rows] + self._start_ns,
            "rows": plan.rows[rows].astype(np.int64),
            **{name: np.zeros(n, np.int64) for name in ("request_bytes", "response_bytes")},
            **{name: pa.nulls(n, pa.int64()) for name in ("sent_ns", "first_byte_ns", "done_ns")},
            **{
                name: pa.nulls(n, pa.string()) for name in ("method", "name")
            },  # of Locust, which has no schedule
        }
        return pa.table(
            {name: pa.array(columns[name]).cast(schema.field(name).type) for name in schema.names}, schema
        )


def add_missing(store: RunStore, ledger: Ledger, ended_ns: Sequence[int | None]) -> list[str]:
    """A row for each arrival without a record, see `Ledger.missing_tables`; what is to be told of them."""
    losses = []
    if ledger.n_misplaced:
        losses.append(
            f"{ledger.n_misplaced} arrivals were scheduled at another instant, or of another size, than the"
            " plan's: please report it with logs/"
        )
    if ledger.n_unplanned:
        losses.append(f"{ledger.n_unplanned} rows are of no arrival of the plan, and are left out")
    n_lost = 0
    for table in ledger.missing_tables(ended_ns):
        n_lost += pc.sum(pc.equal(table.column("outcome").cast(pa.string()), "lost")).as_py()
        store.append("requests", table)
    if ledger.n_missing:
        n_unsent = ledger.n_missing - n_lost
        losses.append(
            f"{ledger.n_missing} arrivals have no record: {n_lost} are lost and may have been sent, {n_unsent} were due"
            " after their worker had ended"
        )
    return losses
