"""Our tables of an nsys report: osrt, nvtx, cuda_api, kernels, memcpys, memsets, syncs, clock_marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from squall.analysis.nsys import queries
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
from squall.analysis.storage.part import conform
from squall.analysis.storage.schema import NO_DEVICE, arrow_schema
from squall.scenarios.errors import AnalysisError, SchemaMismatch

if TYPE_CHECKING:
    from squall.analysis.nsys.clock import Marks

Columns = dict[str, pa.Array]
_API = {0: "runtime", 1: "driver"}
WHOLE_GRAPH = "CUDA graph"
"""Name of a kernel that stands for a whole launch of a graph."""
_INSTANTS = (".start_ns", ".end_ns", ".launch_start_ns", ".launch_end_ns")
"""Columns on the report's clock."""
_FARTHEST_NS = 2**61
"""73 years: no instant of a report is so far from its start, and with a clock's offset it fits in 64 bits."""


class EventLabels(NamedTuple):
    """Whose report it is: the labels of every row."""

    run: str
    node: str
    server: str


class Clock(Protocol):
    """The report's clock on another, as `squall.analysis.storage.clock_track.ClockTrack`."""

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
        maker = _TableMaker(report, ready, labels, clock)
        for table, (sources, query) in queries.EVENTS.items():
            if any(map(report.has, sources)):
                parameters = {"least_ns": osrt_threshold_ns} if table == "osrt" else None
                reader = ready.connection.sql(query, params=parameters).to_arrow_reader(ROWS_AT_A_TIME)
                for piece in reader:
                    if piece.num_rows:
                        yield (
                            table,
                            maker.table(table, dict(zip(piece.schema.names, piece.columns, strict=True))),
                        )
        if marks is not None and len(marks):
            yield "clock_marks", maker.table("clock_marks", _mark_columns(marks))


class _TableMaker:
    """Our tables from pieces of the rows of `queries.EVENTS`."""

    def __init__(self, report: NsysReport, ready: Prepared, labels: EventLabels, clock: Clock) -> None:
        self._labels = {**labels._asdict(), "phase": "", "recorded_by": "nsys"}
        self._clock = clock
        self._ranges = ready.ranges
        strings = report.strings()
        calls = {id_: api_name(text) for id_, text in strings.items()}
        threads = ready.connection.execute(queries.THREADS).fetchall()

        def kinds(table: str, known: dict[int, str], name: Callable[[str, str], str]) -> Names:
            return Names({number: name(*texts) for number, texts in report.kinds(table).items()} or known)

        texts = Names({**strings, queries.WHOLE_GRAPH_ID: WHOLE_GRAPH})
        memory = kinds("ENUM_CUDA_MEM_KIND", MEMORY_KINDS, plain_kind)
        self._names = {
            "osrt.name": texts, "kernels.name": texts, "kernels.full_name": texts,
            "cuda_api.name": Names(calls), "syncs.name": Names(calls),
            "cuda_api.call_class": Names({id_: call_class(name) for id_, name in calls.items()}, "other"),
            "cuda_api.api": Names(_API),
            "memcpys.copy_kind": kinds("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS, copy_kind),
            "memcpys.source_kind": memory, "memcpys.destination_kind": memory, "memsets.memory_kind": memory,
            "syncs.kind": kinds("ENUM_CUPTI_SYNC_TYPE", SYNC_KINDS, plain_kind),
        }  # fmt: skip
        """What the numbers in a column stand for, by table and column."""
        thread_names = Names({thread: name or "" for thread, name in threads})
        self._names |= {f"{table}.thread_name": thread_names for table in ("osrt", "nvtx", "cuda_api")}
        self._instances = Names(dict(enumerate(ready.ranges.instance)))

    def table(self, table: str, columns: Columns) -> pa.Table:
        """The rows of `columns`, with their labels, as `table`."""
        made = {name: self._made(f"{table}.{name}", values) for name, values in columns.items()}
        made |= {name: same_text(text, len(columns["start_ns"])) for name, text in self._labels.items()}
        if "range" in columns:
            made |= self._batch(columns["range"])
        if table == "nvtx":
            made |= range_columns(columns["name"])
        if table == "kernels":
            made["theoretical_occupancy"] = _occupancy(columns)
        names = arrow_schema(table).names
        try:
            return conform(table, pa.table([made[name] for name in names], names=names))
        except SchemaMismatch as error:  # of a StoreError the run directory would get the blame
            raise AnalysisError(f"the nsys report is broken: {error}") from error

    def _made(self, column: str, values: pa.Array) -> pa.Array:
        if column in self._names:
            return self._names[column].encode(values)
        return self._instants(values) if column.endswith(_INSTANTS) else values

    def _batch(self, range_: pa.Array) -> Columns:
        row, is_known = numbers(range_)
        is_tied = is_known & (row >= 0)
        place = np.where(is_tied, row, 0)
        device, batch_id = (
            values[place] if len(values) else np.zeros_like(row)
            for values in (self._ranges.device, self._ranges.batch_id)
        )
        return {
            "instance": self._instances.encode(range_),
            "instance_device": pa.array(np.where(is_tied, device, NO_DEVICE)),
            "batch_id": pa.array(batch_id, mask=~is_tied),
        }

    def _instants(self, values: pa.Array) -> pa.Array:
        instants, is_valid = numbers(values)
        if len(instants) and (instants.min() < -_FARTHEST_NS or instants.max() > _FARTHEST_NS):
            raise AnalysisError("the nsys report has an event decades away from its start: it is broken")
        return pa.array(self._clock.convert(instants), pa.int64(), mask=~is_valid)


def _mark_columns(marks: Marks) -> Columns:
    return {
        "source": pc.if_else(pa.array(marks.is_sleep), "sleep", "range"),
        "read_before_ns": pa.array(marks.read_before_ns),
        "start_ns": pa.array(marks.start_ns),
        "end_ns": pa.array(marks.end_ns),
        "read_after_ns": pa.array(marks.read_after_ns, mask=~marks.is_sleep),
    }


def _occupancy(columns: Columns) -> pa.Array:
    """Null where the report lacks a size of the launch, or a limit of its GPU."""
    sizes = (
        "registers_per_thread",
        "static_shared_bytes",
        "dynamic_shared_bytes",
        "block_x",
        "block_y",
        "block_z",
    )
    limits = ("maxWarpsPerSm", "maxRegistersPerSm", "maxShmemPerSm", "maxBlocksPerSm", "computeMajor")
    of = {name: numbers(columns[name]) for name in (*sizes, *limits)}
    registers, static, dynamic, x, y, z, *most = (found for found, _ in of.values())
    launches = Launches(x * y * z, registers, static + dynamic)
    found = theoretical_occupancy(launches, np.stack([np.zeros_like(x), *most], axis=1))
    return pa.array(found, mask=~np.logical_and.reduce([known for _, known in of.values()]) | np.isnan(found))
