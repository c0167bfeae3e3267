"""The figures of a run by phase: servers, instances, GPUs. What each means: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from squall.analysis.metrics.batches import batch_sums, pick, walls
from squall.analysis.metrics.calls import call_figures, copy_figures, copy_measures, os_waits
from squall.analysis.metrics.gpus import attribution, foreign_ns, gpu_activity, gpu_samples, sample_measures
from squall.analysis.metrics.kernels import kernel_figures, kernel_measures
from squall.analysis.metrics.launches import launch_figures, launch_measures
from squall.analysis.metrics.measures import NAMES, Measures, ratio
from squall.analysis.metrics.operations import Row, add_lanes, add_operations
from squall.analysis.metrics.records import GpuMetrics, RunMetrics
from squall.analysis.metrics.requests import add_requests, request_measures, server_figures
from squall.analysis.metrics.spans import PhaseSpan, add_spans, measured_phases
from squall.analysis.nsys.device_limits import read_device_limits
from squall.analysis.record import from_json
from squall.analysis.recorded import library_windows
from squall.analysis.storage.nsys import EVENT_TABLES
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, connect
from squall.analysis.storage.store import RunStore

if TYPE_CHECKING:
    import duckdb

_USED = ("joined", "triton_samples", "gpu_samples", *EVENT_TABLES)
_UNKNOWN_GPU: Row = dict.fromkeys(one.name for one in fields(GpuMetrics))
"""A GPU without a report or a sample."""


def run_metrics(store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> RunMetrics:
    """Figures of the measure phases. What the run has no data for is None.

    Needs `batch_costs` (raises `MissingTable`), uses `joined` where it is.
    """
    tables = ["batch_costs", *(name for name in _USED if store.has(name))]
    with connect(store, tables, memory_limit_bytes) as connection:
        phases = measured_phases(store, connection)
        windows = library_windows(store)
        add_spans(connection, phases, windows)
        pick(connection)
        add_requests(connection, "joined" in tables)
        servers = server_figures(connection, tables)
        found = _Figures(store, connection, tables, phases, bool(windows))
        rows = {
            phase.name: {
                "start_ns": phase.start_ns,
                "end_ns": phase.end_ns,
                "covered_ns": phase.covered_ns,
                "servers": {name: row for (of, name), row in servers.items() if of == phase.name},
                "instances": found.instances(phase.name),
                "gpus": found.gpus(phase.name),
            }
            for phase in phases
        }
    return from_json(RunMetrics, {"phases": rows})


class _Figures:
    """What the queries find, by group (an instance in a phase) or by phase and GPU."""

    def __init__(
        self,
        store: RunStore,
        connection: duckdb.DuckDBPyConnection,
        tables: Sequence[str],
        phases: Sequence[PhaseSpan],
        has_windows: bool,
    ) -> None:
        self._gpu_of = store.manifest.gpu_of
        self._gpus = add_lanes(connection, tables)
        has_operations = add_operations(connection, tables, "both")
        self._sums = batch_sums(connection)
        self._walls = walls(connection, has_windows)
        self._requests = request_measures(connection) if "joined" in tables else {}
        samples = gpu_samples(connection) if "gpu_samples" in tables else []
        self._samples = {(row["phase"], row["gpu"]): row for row in samples}
        self._foreign = foreign_ns(connection) if has_operations else {}
        self._attribution = attribution(connection) if has_operations else {}
        is_recorded = bool(self._gpus) and any(phase.covered_ns for phase in phases)
        self._activity = gpu_activity(connection, self._gpus) if is_recorded else {}
        self._launches = launch_figures(connection) if has_operations else {}
        self._kernels = kernel_figures(connection, read_device_limits(store)) if "kernels" in tables else None
        self._calls = call_figures(connection) if "cuda_api" in tables else None
        self._copies = copy_figures(connection) if "memcpys" in tables else None
        self._os_waits = os_waits(connection) if {"osrt", "nvtx"} <= set(tables) else None

    def instances(self, phase: str) -> dict[str, Row]:
        """By key."""
        return {row["key"]: self._instance(grp) for grp, row in self._sums.items() if row["phase"] == phase}

    def _instance(self, grp: int) -> Row:
        sums = self._sums[grp]
        row = {
            **sums,
            "gpu_uuid": sums["gpu_uuid"] or self._gpu_of(sums["server"], sums["instance_device"]),
            "wall_ns": self._walls.get(grp, {}).get("wall_ns"),
            **dict.fromkeys(("kernels", "launches", "calls", "copies")),
            "os_waits": None if self._os_waits is None else self._os_waits.get(grp, ()),
        }
        if sums["n_ranged"]:  # what a window ties has no batch id on its row
            if self._kernels is not None:
                row |= {"kernels": self._kernels[grp], "launches": self._launches[grp]}
            if self._calls is not None:
                row["calls"] = self._calls[grp]
            if self._copies is not None:
                row["copies"] = self._copies.get(grp, [])
        return {**row, "measures": self._measures(grp, row)}

    def _measures(self, grp: int, row: Row) -> Measures:
        """Every name of `MEASURES`."""
        place = row["phase"], row["gpu_uuid"]
        found = {
            **row["measures"],
            **(self._walls.get(grp, {}).get("measures") or {}),
            **self._requests.get(grp, {}),
            **sample_measures(self._samples.get(place)),
        }
        if row["n_tied"]:
            found["gpu_activity_ratio"] = self._activity.get(place, {}).get("kernel_ratio")
            found["attribution_ratio"] = self._attribution.get(grp, {}).get("ratio")
            if row["kernel_busy_ns"] is not None:
                found["foreign_busy_ratio"] = ratio(self._foreign.get(grp, 0), row["tied_exec_ns"])
        if row["n_ranged"] and self._launches:
            found |= launch_measures(self._launches[grp])
        if row["copies"] is not None:
            found |= copy_measures(row["copies"], row["kernel_ns"])
        if row["kernels"] is not None:
            found |= kernel_measures(row["kernels"])
        return {name: found.get(name) for name in NAMES}

    def gpus(self, phase: str) -> dict[str, Row]:
        """By UUID, or as its server knows it; those of the phase's samples too."""
        sampled = [gpu for of, gpu in self._samples if of == phase]
        return {
            name: {
                **_UNKNOWN_GPU,
                **self._activity.get((phase, name), {}),
                **self._samples.get((phase, name), {}),
            }
            for name in dict.fromkeys([*self._gpus, *sampled])
        }
