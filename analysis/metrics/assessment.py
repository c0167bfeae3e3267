"""Everything that figures are made of: a pass over the operations, one over the CUDA calls, sums over small tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from squall.analysis.metrics.device_limits import read_device_limits
from squall.analysis.metrics.figures import request_figures
from squall.analysis.metrics.figures.batch_figures import (
    GroupKey,
    add_spans,
    batch_measures,
    batch_sums,
    pick_all,
    wall_measures,
    walls,
    window_tied,
)
from squall.analysis.metrics.figures.copy_figures import CopyFigures, copy_figures, copy_measures
from squall.analysis.metrics.figures.issue_figures import issue_measures
from squall.analysis.metrics.figures.request_figures import instance_requests, request_measures
from squall.analysis.metrics.figures.sample_figures import SampleFigures, sample_figures, sample_measures
from squall.analysis.metrics.figures.window_walls import window_walls
from squall.analysis.metrics.measures import Measures, empty_measures, ratio
from squall.analysis.metrics.spans import PhaseSpan
from squall.analysis.metrics.sweeps.batch_sweep import BatchSweep, Issue
from squall.analysis.metrics.sweeps.batches import Batches, read_batches
from squall.analysis.metrics.sweeps.call_sweep import CallSums
from squall.analysis.metrics.sweeps.device_ops import DeviceOps, Ops, slice_rows
from squall.analysis.metrics.sweeps.foreign import ForeignSweep
from squall.analysis.metrics.sweeps.gpu_sweep import GpuSweep, GpuTimes
from squall.analysis.metrics.sweeps.kernel_sweep import (
    KernelFigures,
    KernelSweep,
    kernel_figures,
    kernel_measures,
    read_configs,
)
from squall.analysis.recorded import TABLE as WINDOWS
from squall.analysis.recorded import library_windows
from squall.analysis.storage.query import connect
from squall.analysis.storage.row_groups import NULL
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.nsys import EVENT_TABLES

if TYPE_CHECKING:
    import duckdb

_SMALL = ("joined", "triton_samples", "gpu_samples", WINDOWS)


@contextmanager
def opened(store: RunStore, memory_limit_bytes: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection over the tables of the run, with views `batched` and `picked`, tables `waits` and `unserved`.

    Raises `MissingTable` where the run has no `batch_costs`.
    """
    tables = ["batch_costs", *(name for name in (*_SMALL, *EVENT_TABLES) if store.has(name))]
    with connect(store, tables, memory_limit_bytes // 2) as connection:
        pick_all(connection)
        request_figures.add_waits(connection, "joined" in tables)
        request_figures.add_unserved(connection, "joined" in tables)
        yield connection


@dataclass(frozen=True, eq=False)
class Assessment:
    """What was found, by phase and instance (`GroupKey`), by group of `batches`, or by number of the GPU."""

    phases: list[PhaseSpan]
    batches: Batches
    gpu_names: list[str]
    gpu_times: dict[int, GpuTimes]
    issues: list[Issue]
    kernels: list[KernelFigures]
    foreign_ns: list[int]
    n_ops: dict[tuple[int, str, int], tuple[int, int]]
    """(operations, those tied to a batch) by phase, node and process."""
    n_window_tied: dict[tuple[str, str, int], int]
    sums: dict[GroupKey, dict[str, Any]]
    walls: dict[GroupKey, dict[str, Any]]
    requests: dict[GroupKey, dict[str, Any]]
    samples: dict[str, dict[str, SampleFigures]]
    copies: dict[GroupKey, list[CopyFigures]]
    tables: frozenset[str]

    def group_of(self, key: GroupKey) -> int | None:
        """Group of `batches`."""
        for number, group in enumerate(self.batches.groups):
            if (group.phase, group.instance.key) == key:
                return number
        return None

    def processes(self, group: int) -> list[tuple[str, int]]:
        """(node, process) that executed the group's batches, as far as these are profiled."""
        node = self.batches.groups[group].instance.node
        found = np.unique(self.batches.process[self.batches.group == group])
        return [(node, process) for process in found.tolist() if process != NULL]

    def gpu_activity(self, phase: str, uuid: str) -> float | None:
        """Temporal activity of a GPU: any kernel over the recorded stretches of the phase."""
        place = [span.name for span in self.phases].index(phase)
        if not self.phases[place].covered_ns or uuid not in self.gpu_names:
            return None
        times = self.gpu_times[self.gpu_names.index(uuid)]
        return ratio(int(times.kernel_ns[place]), self.phases[place].profiled_ns)

    def measures(self, key: GroupKey) -> Measures:
        """The measures of an instance in a phase, every name of `MEASURES`."""
        phase, _ = key
        sums = self.sums[key]
        found = {
            **empty_measures(),
            **batch_measures(sums),
            **wall_measures(self.walls.get(key)),
            **request_measures(self.requests.get(key)),
            **sample_measures(self.samples.get(phase, {}).get(sums["gpu_uuid"])),
        }
        group = self.group_of(key)
        if group is None or not sums["n_tied"]:
            return found
        found["gpu_activity_ratio"] = self.gpu_activity(phase, sums["gpu_uuid"])
        if sums["kernel_busy_ns"] is not None:
            found["foreign_busy_ratio"] = ratio(self.foreign_ns[group], sums["tied_exec_ns"])
        found["attribution_ratio"] = self._attribution(group, phase)
        if not sums["n_ranged"]:
            return found  # what a window ties has no batch id on its row
        if "memcpys" in self.tables:
            found |= copy_measures(self.copies.get(key, []), sums["kernel_ns"])
        return {**found, **issue_measures(self.issues[group]), **kernel_measures(self.kernels[group])}

    def _attribution(self, group: int, phase: str) -> float | None:
        place = [span.name for span in self.phases].index(phase)
        n, n_tied = 0, 0
        for process in self.processes(group):
            n_own, n_ranged = self.n_ops.get((place, *process), (0, 0))
            n, n_tied = n + n_own, n_tied + n_ranged + self.n_window_tied.get((phase, *process), 0)
        return ratio(min(n_tied, n), n)


def assess(
    store: RunStore,
    connection: duckdb.DuckDBPyConnection,
    phases: list[PhaseSpan],
    memory_limit_bytes: int,
) -> Assessment:
    """Reads everything. `connection`: of `opened`."""
    add_spans(connection, phases)
    tables = frozenset(store.tables())
    batches = read_batches(connection, tables, [phase.name for phase in phases])
    ops = DeviceOps(store, batches)
    sweep = _Sweep(batches, phases)
    for piece in ops.slices(slice_rows(memory_limit_bytes)):
        sweep.add(piece, ops)
    sweep.finish(ops)
    configs = read_configs(ops, read_device_limits(store))
    durations = sweep.kernels.durations()
    sums = batch_sums(connection)
    for one in sums.values():  # without kernels that name it, the manifest may
        one["gpu_uuid"] = one["gpu_uuid"] or store.manifest.gpu_of(one["server"], one["instance_device"])
    return Assessment(
        phases=phases,
        batches=batches,
        gpu_names=[gpu.key for gpu in ops.gpus],
        gpu_times=sweep.gpus.times(),
        issues=sweep.issues.issues,
        kernels=[kernel_figures(durations.get(group, {}), configs) for group in range(len(batches.groups))],
        foreign_ns=sweep.foreign_ns,
        n_ops=sweep.n_ops(ops),
        n_window_tied=window_tied(connection),
        sums=sums,
        walls={**walls(connection), **window_walls(connection, library_windows(store), phases)},
        requests=instance_requests(connection) if "joined" in tables else {},
        samples=sample_figures(connection, phases) if "gpu_samples" in tables else {},
        copies=copy_figures(connection) if "memcpys" in tables else {},
        tables=tables,
    )


class _Sweep:
    """All that one pass over the operations finds."""

    def __init__(self, batches: Batches, phases: Sequence[PhaseSpan]) -> None:
        cells = [(*one, place) for place, phase in enumerate(phases) for one in phase.stretches]
        self._starts, self._ends, self._phases = np.array(cells, np.int64).reshape(-1, 3).T
        self.gpus = GpuSweep(self._starts, self._ends, True, self._phases)
        self.issues = BatchSweep(len(batches.groups), batches.whole, batches.closed_ns)
        self.kernels = KernelSweep(batches)
        self.foreign = ForeignSweep(batches, _rows_by_process(batches))
        self.foreign_ns: list[int] = []
        self._n_ops: dict[tuple[int, int], list[int]] = {}

    def add(self, ops: Ops, source: DeviceOps) -> None:
        self.gpus.add(ops)
        self.issues.add(ops)
        self.kernels.add(ops)
        self.foreign.add(ops, source.processes, [gpu.node for gpu in source.gpus])
        self._count(ops)

    def finish(self, source: DeviceOps) -> None:
        self.issues.finish()
        self.foreign_ns = self.foreign.finish(source.processes).tolist()

    def n_ops(self, source: DeviceOps) -> dict[tuple[int, str, int], tuple[int, int]]:
        processes = source.processes
        return {
            (phase, *processes[process]): (n, tied) for (phase, process), (n, tied) in self._n_ops.items()
        }

    def _count(self, ops: Ops) -> None:
        edges = zip(*(np.searchsorted(ops.start_ns, one) for one in (self._starts, self._ends)), strict=True)
        for place, (low, high) in zip(self._phases.tolist(), edges, strict=True):
            own = slice(low, high)
            n = np.bincount(ops.process[own])
            tied = np.bincount(ops.process[own][ops.batch[own] >= 0], minlength=len(n))
            for process in np.flatnonzero(n).tolist():
                one = self._n_ops.setdefault((place, process), [0, 0])
                one[0] += int(n[process])
                one[1] += int(tied[process])


def _rows_by_process(batches: Batches) -> dict[tuple[str, int], list[int]]:
    """Rows of the batches that count and are profiled, by (node, process)."""
    found: dict[tuple[str, int], list[int]] = {}
    for group, own in enumerate(batches.groups):
        rows = np.flatnonzero(batches.group == group)
        process = batches.process[rows]
        for one in np.unique(process).tolist():
            if one != NULL:
                found.setdefault((own.instance.node, one), []).extend(rows[process == one].tolist())
    return found


def read_calls(store: RunStore, found: Assessment) -> CallSums | None:
    """CUDA calls by class; None where the run has none."""
    return CallSums(store, found.batches, found.phases) if "cuda_api" in found.tables else None
