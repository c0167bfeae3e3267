"""Our tables of an nsys report: osrt, nvtx, cuda_api, kernels, memcpys, memsets, syncs, clock_marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from squall.analysis.nsys import queries
from squall.analysis.nsys.allowed import GRAPHS, KERNELS, MEMCPYS, MEMSETS, NVTX, OSRT, RUNTIME, SYNCS
from squall.analysis.nsys.batches import Prepared, prepared
from squall.analysis.nsys.names import (
    COPY_KINDS,
    MEMORY_KINDS,
    SYNC_KINDS,
    Names,
    api_name,
    call_class,
    copy_kind,
    numbers,
    plain_kind,
    range_columns,
    same_text,
)
from squall.analysis.nsys.report import ROWS_AT_A_TIME, NsysReport
from squall.analysis.occupancy import Launches, theoretical_occupancy
from squall.analysis.schema import NO_DEVICE, arrow_schema
from squall.analysis.storage.part import conform
from squall.scenarios.errors import AnalysisError, SchemaMismatch

if TYPE_CHECKING:
    from squall.analysis.nsys.clock import Marks

Columns = dict[str, pa.Array]
_API = {0: "runtime", 1: "driver"}
WHOLE_GRAPH = "CUDA graph"
"""Name of a kernel that stands for a whole launch of a graph."""
_FARTHEST_NS = 2**61
"""73 years: no instant of a report is so far from its start, and with a clock's offset it fits in 64 bits."""


class EventLabels(NamedTuple):
    """Whose report it is: the labels of every row."""

    run: str
    node: str
    server: str


class Clock(Protocol):
    """The report's clock on another, as `squall.analysis.clocks.track.ClockTrack`."""

    def convert(self, source_ns: NDArray[np.int64], /) -> NDArray[np.int64]:
        """Instants of the other clock."""


def event_tables(
    report: NsysReport,
    labels: EventLabels,
    clock: Clock,
    marks: Marks | None = None,
    osrt_threshold_ns: int = 0,
) -> Iterator[tuple[str, pa.Table]]:
    """(table, rows) of each of our tables that has any, a table in pieces of bounded size, each ordered by start.

    Instants are the clock's that `clock` leads to; `phase` is empty. OS-runtime calls shorter than the threshold are
    left out. A range still open when the collection stopped has no end and is no row of `nvtx`.
    """
    with prepared(report) as ready:
        makers = _Makers(report, ready, labels, clock)
        shortest: dict[str, Any] = {"least_ns": osrt_threshold_ns}
        if report.has(OSRT):
            yield from makers.rows("osrt", queries.OSRT_EVENTS, makers.osrt, shortest)
        if report.has(NVTX):
            yield from makers.rows("nvtx", queries.NVTX_EVENTS, makers.nvtx)
        if report.has(RUNTIME):
            yield from makers.rows("cuda_api", queries.API_CALLS, makers.cuda_api)
        if report.has(KERNELS) or report.has(GRAPHS):
            yield from makers.rows("kernels", queries.KERNEL_EVENTS, makers.kernels)
        if report.has(MEMCPYS):
            yield from makers.rows("memcpys", queries.MEMCPY_EVENTS, makers.memcpys)
        if report.has(MEMSETS):
            yield from makers.rows("memsets", queries.MEMSET_EVENTS, makers.memsets)
        if report.has(SYNCS):
            yield from makers.rows("syncs", queries.SYNC_EVENTS, makers.syncs)
        if marks is not None and len(marks):
            yield "clock_marks", makers.table("clock_marks", len(marks), makers.clock_marks(marks))


class _Makers:
    """Columns of our tables from a piece of a query's rows."""

    def __init__(self, report: NsysReport, ready: Prepared, labels: EventLabels, clock: Clock) -> None:
        self._report = report
        self._ready = ready
        self._labels = {**labels._asdict(), "phase": "", "recorded_by": "nsys"}
        self._clock = clock
        self._strings = report.strings()
        threads = ready.connection.execute(queries.THREADS).fetchall()
        self._threads = Names({thread: name or "" for thread, name in threads})
        self._names = Names(self._strings)
        self._instances = Names(dict(enumerate(ready.ranges.instance)))
        self._devices, self._batch_ids = ready.ranges.device, ready.ranges.batch_id

    def rows(
        self,
        table: str,
        query: str,
        make: Callable[[pa.RecordBatch], Columns],
        parameters: dict[str, Any] | None = None,
    ) -> Iterator[tuple[str, pa.Table]]:
        reader = self._ready.connection.sql(query, params=parameters).to_arrow_reader(ROWS_AT_A_TIME)
        for piece in reader:
            if piece.num_rows:
                yield table, self.table(table, piece.num_rows, make(piece))

    def table(self, table: str, n_rows: int, columns: Columns) -> pa.Table:
        """`columns` and the labels as `table`."""
        columns = columns | {name: same_text(text, n_rows) for name, text in self._labels.items()}
        names = arrow_schema(table).names
        try:
            return conform(table, pa.table([columns[name] for name in names], names=names))
        except SchemaMismatch as error:  # of a StoreError the run directory would get the blame
            raise AnalysisError(f"the nsys report is broken: {error}") from error

    def osrt(self, piece: pa.RecordBatch) -> Columns:
        return self._event(piece) | {"name": self._names.encode(piece["nameId"])}

    def nvtx(self, piece: pa.RecordBatch) -> Columns:
        return self._event(piece) | {"name": piece["name"], **range_columns(piece["name"])}

    def cuda_api(self, piece: pa.RecordBatch) -> Columns:
        return {
            **self._event(piece),
            "name": self._api_names.encode(piece["nameId"]),
            "call_class": self._call_classes.encode(piece["nameId"]),
            "api": Names(_API).encode(piece["eventClass"]),
            "correlation_id": _filled(piece["cid"]),
            "return_value": piece["returnValue"],
            **self._batch(piece),
        }

    def kernels(self, piece: pa.RecordBatch) -> Columns:
        is_graph = pc.is_null(piece["gridX"])
        named = {
            "name": self._names.encode(piece["shortName"]),
            "full_name": self._names.encode(piece["fullName"]),
        }
        if pc.any(is_graph).as_py():
            named = {
                n: pc.if_else(is_graph, WHOLE_GRAPH, texts.cast(pa.string())) for n, texts in named.items()
            }
        sizes = {f"{what}_{axis}": f"{what}{axis.upper()}" for what in ("grid", "block") for axis in "xyz"}
        return {
            **self._device(piece),
            **named,
            **{ours: _filled(piece[theirs]) for ours, theirs in sizes.items()},
            "registers_per_thread": piece["registersPerThread"],
            "static_shared_bytes": piece["staticSharedMemory"],
            "dynamic_shared_bytes": piece["dynamicSharedMemory"],
            "theoretical_occupancy": _occupancy(piece),
        }

    def memcpys(self, piece: pa.RecordBatch) -> Columns:
        return {
            **self._device(piece),
            "copy_kind": self._copy_kinds.encode(piece["copyKind"]),
            "source_kind": self._memory_kinds.encode(piece["srcKind"]),
            "destination_kind": self._memory_kinds.encode(piece["dstKind"]),
            "bytes": _filled(piece["bytes"]),
        }

    def memsets(self, piece: pa.RecordBatch) -> Columns:
        kind = self._memory_kinds.encode(piece["memKind"])
        return {**self._device(piece), "memory_kind": kind, "bytes": _filled(piece["bytes"])}

    def syncs(self, piece: pa.RecordBatch) -> Columns:
        return {
            "process": _filled(piece["process"]),
            "thread": _thread(piece["launch_gt"]),
            "context": piece["contextId"],
            "stream": piece["streamId"],
            "start_ns": self._instants(piece["s"]),
            "end_ns": self._instants(piece["e"]),
            "correlation_id": _filled(piece["cid"]),
            "name": self._api_names.encode(piece["nameId"]),
            "kind": self._sync_kinds.encode(piece["syncType"]),
            **self._batch(piece),
        }

    def clock_marks(self, marks: Marks) -> Columns:
        after = pa.array(marks.read_after_ns, mask=~marks.is_sleep)
        return {
            "source": pc.if_else(pa.array(marks.is_sleep), "sleep", "range"),
            "read_before_ns": pa.array(marks.read_before_ns),
            "start_ns": self._instants(pa.array(marks.start_ns)),
            "end_ns": self._instants(pa.array(marks.end_ns)),
            "read_after_ns": after,
        }

    def _event(self, piece: pa.RecordBatch) -> Columns:
        """What every event on a thread begins with."""
        thread, _ = numbers(piece["gt"])
        return {
            "process": pa.array((thread >> queries.PID_SHIFT) & queries.ID_MASK),
            "thread": pa.array(thread & queries.ID_MASK),
            "thread_name": self._threads.encode(piece["gt"]),
            "start_ns": self._instants(piece["s"]),
            "end_ns": self._instants(piece["e"]),
        }

    def _device(self, piece: pa.RecordBatch) -> Columns:
        """What every event on a GPU begins and ends with."""
        uuid = pc.fill_null(piece["uuid"], "")
        is_bare = pc.match_substring_regex(uuid, "^[0-9a-fA-F]{8}-")  # NVML writes GPU- before it
        return {
            "process": _filled(piece["process"]),
            "thread": _thread(piece["launch_gt"]),
            "device": _filled(piece["deviceId"]),
            "gpu_uuid": pc.if_else(is_bare, pc.binary_join_element_wise("GPU", uuid, "-"), uuid),
            "context": _filled(piece["contextId"]),
            "stream": _filled(piece["streamId"]),
            "start_ns": self._instants(piece["s"]),
            "end_ns": self._instants(piece["e"]),
            "correlation_id": _filled(piece["cid"]),
            "launch_start_ns": self._instants(piece["launch_s"]),
            "launch_end_ns": self._instants(piece["launch_e"]),
            "graph_id": piece["graphId"],
            "graph_node_id": piece["graphNodeId"],
            **self._batch(piece),
        }

    def _batch(self, piece: pa.RecordBatch) -> Columns:
        row, is_known = numbers(piece["range"])
        is_tied = is_known & (row >= 0)
        place = np.where(is_tied, row, 0)
        device, batch_id = (
            values[place] if len(values) else np.zeros_like(row)
            for values in (self._devices, self._batch_ids)
        )
        return {
            "instance": self._instances.encode(piece["range"]),
            "instance_device": pa.array(np.where(is_tied, device, NO_DEVICE)),
            "batch_id": pa.array(batch_id, mask=~is_tied),
        }

    def _instants(self, values: pa.Array) -> pa.Array:
        instants, is_valid = numbers(values)
        if len(instants) and (instants.min() < -_FARTHEST_NS or instants.max() > _FARTHEST_NS):
            raise AnalysisError("the nsys report has an event decades away from its start: it is broken")
        return pa.array(self._clock.convert(instants), pa.int64(), mask=~is_valid)

    def _kinds(self, table: str, known: dict[int, str], name: Callable[[str, str], str]) -> Names:
        found = {number: name(*texts) for number, texts in self._report.kinds(table).items()}
        return Names(found or known)

    @cached_property
    def _api_names(self) -> Names:
        return Names({id_: api_name(text) for id_, text in self._strings.items()})

    @cached_property
    def _call_classes(self) -> Names:
        return Names({id_: call_class(api_name(text)) for id_, text in self._strings.items()}, "other")

    @cached_property
    def _copy_kinds(self) -> Names:
        return self._kinds("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS, copy_kind)

    @cached_property
    def _memory_kinds(self) -> Names:
        return self._kinds("ENUM_CUDA_MEM_KIND", MEMORY_KINDS, plain_kind)

    @cached_property
    def _sync_kinds(self) -> Names:
        return self._kinds("ENUM_CUPTI_SYNC_TYPE", SYNC_KINDS, plain_kind)


def _occupancy(piece: pa.RecordBatch) -> pa.Array:
    """Null where the report lacks a size of the launch, or a limit of its GPU."""
    sizes = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "blockX", "blockY", "blockZ")
    limits = ("maxWarpsPerSm", "maxRegistersPerSm", "maxShmemPerSm", "maxBlocksPerSm", "computeMajor")
    of = {name: numbers(piece[name]) for name in (*sizes, *limits)}
    registers, static, dynamic, x, y, z, *most = (found for found, _ in of.values())
    launches = Launches(x * y * z, registers, static + dynamic)
    found = theoretical_occupancy(launches, np.stack([np.zeros_like(x), *most], axis=1))
    return pa.array(found, mask=~np.logical_and.reduce([known for _, known in of.values()]) | np.isnan(found))


def _filled(values: pa.Array) -> pa.Array:
    return pc.fill_null(values, 0)


def _thread(global_tid: pa.Array) -> pa.Array:
    """Thread ids of nsys's globalTid; null stays null."""
    values, is_valid = numbers(global_tid)
    return pa.array(values & queries.ID_MASK, mask=~is_valid)
