"""The operations of the GPUs, kernels, copies and sets, in slices in order of start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Int64s
from squall.analysis.metrics.sweeps.batches import Batches
from squall.analysis.metrics.sweeps.numbering import Numbering
from squall.analysis.storage.in_time import RowGroups
from squall.analysis.storage.row_groups import Columns
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.nsys import DEVICE_TABLES
from squall.scenarios.errors import AnalysisError

KERNEL, COPY, SET = range(len(DEVICE_TABLES))

PLACE = ("node", "server", "gpu_uuid", "device", "process", "context", "stream", "start_ns", "end_ns")
TIE = ("instance", "instance_device", "batch_id", "launch_start_ns", "launch_end_ns")
KERNEL_CONFIG = (
    "name", "full_name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers_per_thread",
    "static_shared_bytes", "dynamic_shared_bytes", "theoretical_occupancy", "gpu_uuid",
)  # fmt: skip
"""What makes two kernels the same launch configuration, for `KernelConfigs`."""

_FAR_NS = 1 << 61
_ROW_BYTES = 2_500
"""Measured peak of memory per row of a slice, all sweeps together (2026-11-22, numpy 2.4)."""
_FEWEST, _MOST = 20_000, 1_000_000


class Ops(NamedTuple):
    """Operations in order of start; all arrays (n,) int64."""

    kind: Int64s
    """KERNEL, COPY or SET."""
    gpu: Int64s
    """Number of the GPU, see `DeviceOps.gpus`."""
    process: Int64s
    """Number of the process, see `DeviceOps.processes`."""
    stream: Int64s
    """Number of the stream."""
    start_ns: Int64s
    end_ns: Int64s
    launch_start_ns: Int64s
    """`NULL` where the launch was not recorded."""
    launch_end_ns: Int64s
    batch: Int64s
    """Row of `Batches`; -1 for one of no batch."""
    config: Int64s
    """Number of the kernel's configuration; -1 for copies and sets."""

    def taken(self, rows: Int64s | NDArray[np.bool_]) -> Ops:
        """Those of `rows`."""
        return Ops(*(column[rows] for column in self))


@dataclass(frozen=True)
class Gpu:
    """A GPU that operations ran on. `uuid` is empty where the report names none: `device` is then its ordinal for
    `server`, by which another server of the node may know another GPU."""

    node: str
    uuid: str
    device: int
    server: str

    @property
    def key(self) -> str:
        return self.uuid or f"{self.server}/device-{self.device}"


def slice_rows(memory_limit_bytes: int) -> int:
    """Rows of a slice, so that the sweeps over it take about a third of the memory limit."""
    return min(_MOST, max(_FEWEST, memory_limit_bytes // 3 // _ROW_BYTES))


class DeviceOps:
    """The operations of a run. Those that end before they start are left out. Raises AnalysisError in `slices`.

    Without `batches`, only what places an operation on a GPU is read: `batch`, `config` and launches are empty.
    """

    def __init__(self, store: RunStore, batches: Batches | None) -> None:
        self._batches = batches
        columns = dict.fromkeys(DEVICE_TABLES, PLACE if batches is None else (*PLACE, *TIE))
        if batches is not None:
            columns["kernels"] = (*columns["kernels"], *(set(KERNEL_CONFIG) - set(PLACE)))
        self._groups = RowGroups(store, columns)
        self._gpus, self._processes, self._streams = Numbering(4), Numbering(2), Numbering(3)
        self._owners = Numbering(3)
        self.configs = Numbering(len(KERNEL_CONFIG))

    def slices(self, n_rows: int) -> Iterator[Ops]:
        """Slices of about `n_rows`; no operation starts before one of an earlier slice."""
        for tables in self._groups.slices(n_rows):
            pieces = [self._ops(DEVICE_TABLES.index(table), rows) for table, rows in tables.items()]
            ops = Ops(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))
            if len(ops.start_ns):
                yield ops.taken(_order(ops))

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs seen so far, by number."""
        names = self._names
        rows = self._gpus.rows.tolist()
        return [Gpu(names[node], names[uuid], device, names[server]) for node, uuid, device, server in rows]

    @property
    def processes(self) -> list[tuple[str, int]]:
        """(node, process) seen so far, by number."""
        return [(self._names[node], process) for node, process in self._processes.rows.tolist()]

    @property
    def _names(self) -> list[str]:
        return self._groups.texts.names()

    def text(self, code: int) -> str:
        """The text of a column of `configs`."""
        return self._names[code]

    def _ops(self, kind: int, rows: Columns) -> Ops:
        is_whole = rows["end_ns"] >= rows["start_ns"]
        if not is_whole.all():
            rows = {name: values[is_whole] for name, values in rows.items()}
        n = len(rows["start_ns"])
        if n and (rows["start_ns"].min() < -_FAR_NS or rows["end_ns"].max() > _FAR_NS):
            table = DEVICE_TABLES[kind]
            raise AnalysisError(
                f"{table} has an instant that no clock shows: the report or its clock is broken"
            )
        nameless = self._groups.texts.code("")
        is_nameless = rows["gpu_uuid"] == nameless
        device = np.where(is_nameless, rows["device"], 0)
        server = np.where(is_nameless, rows["server"], nameless)
        process = self._processes.encode((rows["node"], rows["process"]))
        none = np.full(n, -1, np.int64)
        is_tied = self._batches is not None
        return Ops(
            np.full(n, kind, np.int64),
            self._gpus.encode((rows["node"], rows["gpu_uuid"], device, server)),
            process,
            self._streams.encode((process, rows["context"], rows["stream"])),
            rows["start_ns"],
            rows["end_ns"],
            rows["launch_start_ns"] if is_tied else none,
            rows["launch_end_ns"] if is_tied else none,
            self._batch(rows) if is_tied else none,
            self.configs.encode([rows[name] for name in KERNEL_CONFIG]) if is_tied and not kind else none,
        )

    def _batch(self, rows: Columns) -> Int64s:
        assert self._batches is not None
        owner = self._owners.encode((rows["server"], rows["instance"], rows["instance_device"]))
        known, names = self._batches.places, self._names
        place = [
            known.get((names[server], names[one], device), -1)
            for server, one, device in self._owners.rows.tolist()
        ]
        if not place:
            return owner
        return self._batches.locate(np.array(place, np.int64)[owner], rows["batch_id"])


def _order(ops: Ops) -> Int64s:
    """The order by start, and by end where two start together."""
    order = np.argsort(ops.start_ns, kind="stable")
    start = ops.start_ns[order]
    if (start[1:] == start[:-1]).any():
        return np.lexsort((ops.end_ns, ops.start_ns))
    return order
