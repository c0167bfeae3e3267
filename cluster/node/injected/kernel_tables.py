"""Tables kernels, memcpys, memsets, syncs and cuda_api of what the kernel library recorded, each row with its batch.

The files are read twice, a piece at a time: first for whose batches hold the operations of each lane, then for the rows
(`squall.cluster.node.injected.kernel_owners`). Where calls were recorded, a file is read once more for these, which
are held in memory, 40 bytes each, so that an operation finds the call that launched it; and once more where batches of
an instance overlap and events were recorded (`squall.cluster.node.injected.execution_matching`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from squall.actors.inject.kernel_ring import Activities, recorded_activities
from squall.actors.spill import read_spill
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.occupancy import DeviceLimits, limits_of
from squall.analysis.recorded import Windows
from squall.analysis.storage.collected import KernelTies, RecordedGpu
from squall.analysis.storage.schema import arrow_schema
from squall.cluster.node.injected.execution_lanes import ExecutionLanes
from squall.cluster.node.injected.kernel_columns import Calls, ColumnMaker
from squall.cluster.node.injected.kernel_owners import Held, Instance, Lane, Tally, by_lane, held_by
from squall.cluster.node.injected.kernel_process import TakenProcess
from squall.cluster.node.spills import Spills

Array = NDArray[Any]
_KEY = ("model", "instance", "instance_device")
_OPERATIONS = {"kernels": "kernels", "memcpys": "memcpys", "memsets": "memsets"}
_NOTED_SHARE = 0.01
_HOW_TO_TELL = "; no CUDA event was recorded: add events to profile.kernel_kinds to tell them apart"
_CALLS = {"runtime_calls": "cuda_api", "driver_calls": "cuda_api"}
_TABLES = {**_OPERATIONS, "syncs": "syncs", **_CALLS}
"""By the name in `Activities` the table of its rows."""


@dataclass(frozen=True, eq=False)
class ServerBatches:
    """The batches of a server by instance; `owners`: name and device of each."""

    instances: tuple[Instance, ...]
    owners: tuple[tuple[str, int], ...]


def read_instances(files: Iterable[Path]) -> ServerBatches:
    """Of spill files of table `batches`. An interval is what the backend reports, which holds the copies of inputs and
    outputs too, else what the model recorded."""
    columns = [*_KEY, "batch_id", "start_ns", "end_ns", "exec_start_ns", "exec_end_ns"]
    empty = arrow_schema("batches").empty_table().select(columns)
    rows = pa.concat_tables([empty, *(data.select(columns) for path in files for data in _spilled(path))])
    start, end = (pc.coalesce(rows[f"exec_{edge}"], rows[edge]).to_numpy() for edge in ("start_ns", "end_ns"))
    end = np.maximum(start, end)
    keys = list(zip(*(rows[name].to_pylist() for name in _KEY), strict=True))
    unique = sorted(set(keys))
    place = {key: number for number, key in enumerate(unique)}
    number = np.array([place[key] for key in keys], np.int64)
    batch_id = rows["batch_id"].to_numpy()
    return ServerBatches(
        tuple(
            Instance(*(one[number == own] for one in (start, end, batch_id))) for own in range(len(unique))
        ),
        tuple((name, device) for _, name, device in unique),
    )


def _spilled(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as data:
        yield from read_spill(data)


@dataclass(eq=False)
class KernelTables:
    """The tables of a server's processes; `ties` is filled while `rows` is read to its end."""

    processes: Sequence[TakenProcess]
    windows: Windows
    batches: ServerBatches
    labels: EventLabels
    limits: Mapping[str, DeviceLimits] = field(default_factory=dict)
    """By UUID of the GPU."""
    n: Counter[str] = field(default_factory=Counter)
    n_tied: Counter[str] = field(default_factory=Counter)
    n_ambiguous: Counter[str] = field(default_factory=Counter)
    n_outside: int = 0
    n_events: int = 0
    _with_calls: set[Path] = field(default_factory=set)
    """Files with calls, within windows or not."""
    _executions: ExecutionLanes = field(init=False)

    def __post_init__(self) -> None:
        self._executions = ExecutionLanes(self.windows, self.batches.instances)

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """(table, rows) in pieces, each of one process and in order of start."""
        owners = self._owners()
        for process in self.processes:
            calls = Calls.read(process.path if process.path in self._with_calls else None)
            maker = ColumnMaker(
                process.pid, process.gpus, self.labels, self.batches.owners, calls, self.limits
            )
            for piece in recorded_activities(process.path):
                yield from self._of_piece(maker, piece, owners)

    def ties(self) -> dict[str, KernelTies]:
        """By table, for the manifest."""
        return {
            table: KernelTies(n=n, n_tied=self.n_tied[table], n_ambiguous=self.n_ambiguous[table])
            for table, n in self.n.items()
        }

    def _owners(self) -> dict[Lane, int]:
        begins = [one.begins_ns for one in self.batches.instances]
        n_begun = tuple(int(self.windows.hold(at_ns, at_ns).sum()) for at_ns in begins)
        tally = Tally(self.batches.instances, n_begun)
        for process in self.processes:
            for piece in recorded_activities(process.path):
                for name in (*_OPERATIONS, *_CALLS):
                    rows = self._recorded(getattr(piece, name))
                    if name in _CALLS and len(getattr(piece, name)):
                        self._with_calls.add(process.path)
                    for lane, own in _lanes(name, process.pid, rows):
                        spans = rows["start_ns"][own], rows["end_ns"][own]
                        tally.add(lane, *spans, and_process=name in _OPERATIONS)
                self._note_events(process.pid, piece)
        owners = tally.owners()
        self._executions.begin(owners)
        for process in self.processes:
            if process.pid in self._executions.processes():
                for piece in recorded_activities(process.path):
                    for name in _OPERATIONS:
                        rows = self._recorded(getattr(piece, name))
                        self._executions.add(_lanes(name, process.pid, rows), rows)
        self._executions.match(owners)
        return owners

    def _note_events(self, pid: int, piece: Activities) -> None:
        self.n_events += len(piece.events)
        self._executions.note(
            pid, piece.events, (self._recorded(getattr(piece, name)) for name in _OPERATIONS)
        )

    def _recorded(self, rows: Array) -> Array:
        return rows[self.windows.hold(rows["start_ns"], rows["end_ns"])]

    def _of_piece(
        self, maker: ColumnMaker, piece: Activities, owners: Mapping[Lane, int]
    ) -> Iterator[tuple[str, pa.Table]]:
        for name, table in _TABLES.items():
            found: Array = getattr(piece, name)
            rows = self._recorded(found)
            self.n_outside += len(found) - len(rows)
            if len(rows):
                rows = rows[np.argsort(rows["start_ns"], kind="stable")]
                lanes = list(_lanes(name, maker.pid, rows))
                told = self._executions.told(lanes, rows) if name in _OPERATIONS else None
                held = held_by(self.batches.instances, owners, lanes, rows["start_ns"], rows["end_ns"], told)
                self._count(table, held)
                yield table, maker.table(table, name, rows, held, piece.names)

    def _count(self, table: str, held: Held) -> None:
        self.n[table] += len(held.batch_id)
        self.n_tied[table] += int(held.is_tied.sum())
        self.n_ambiguous[table] += int(held.is_ambiguous.sum())


def _lanes(name: str, pid: int, rows: Array) -> Iterator[tuple[Lane, NDArray[np.intp]]]:
    """Lanes of operations are streams, those of calls threads, which no stream's are like."""
    if name in _CALLS:
        return (((pid, -1, -1, thread), own) for (_, thread), own in by_lane(pid, rows["thread"]))
    return by_lane(pid, rows["context"], rows["stream"])


@dataclass(frozen=True)
class SpilledKernels:
    """What became of the records: by table how many are tied, and sentences on what is missing and on the rest."""

    ties: dict[str, KernelTies]
    n_outside: int
    losses: list[str]
    notes: list[str]


def spill_kernels(
    processes: Sequence[TakenProcess],
    windows: Windows,
    batches: Iterable[Path],
    labels: EventLabels,
    spills: Spills,
    gpus: Iterable[RecordedGpu] = (),
) -> SpilledKernels:
    """Spills the tables of what `processes` recorded within `windows`; `batches`: spill files of table `batches`;
    `gpus`: of this node."""
    known = {one.uuid: limits_of(one.compute_capability, one.sm_count) for one in gpus}
    limits = {uuid: one for uuid, one in known.items() if one is not None}
    tables = KernelTables(processes, windows, read_instances(batches), labels, limits)
    losses = spills.write_all("library", tables.rows())
    return SpilledKernels(tables.ties(), tables.n_outside, losses, [*_notes(tables)])


def _notes(tables: KernelTables) -> Iterator[str]:
    n, n_ambiguous = tables.n.total(), tables.n_ambiguous.total()
    if n_ambiguous > _NOTED_SHARE * n:
        yield (
            f"kernels: {n_ambiguous} of {n} records lie in several batches of their instance, which overlap, and"
            f" are tied to none{'' if tables.n_events else _HOW_TO_TELL}"
        )
