"""Tables kernels, memcpys, memsets, syncs, cuda_api and cuda_events of what the kernel library recorded.

No row has a batch: which it belongs to is found where all of a run is together (`squall.analysis.join.ties`). A file is
read twice, a piece at a time: first for the calls, which are held in memory, 40 bytes each, so that an operation finds
the one that launched it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.actors.inject.kernel_ring import recorded_activities
from squall.analysis.arrays import Int64s
from squall.analysis.nsys.names import (
    COPY_KINDS,
    MEMORY_KINDS,
    SYNC_KINDS,
    Names,
    api_name,
    call_class,
    same_text,
)
from squall.analysis.nsys.tables import EventLabels
from squall.analysis.occupancy import DeviceLimits, Launches, limits_of, theoretical_occupancy
from squall.analysis.recorded import Windows
from squall.analysis.storage.collected import RecordedGpu
from squall.analysis.storage.nsys import DEVICE_TABLES
from squall.analysis.storage.part import conform
from squall.analysis.storage.schema import NO_DEVICE, arrow_schema
from squall.cluster.node.injected.kernel_process import TakenProcess

Array = NDArray[Any]
_TABLES = {
    "kernels": "kernels", "memcpys": "memcpys", "memsets": "memsets", "syncs": "syncs",
    "runtime_calls": "cuda_api", "driver_calls": "cuda_api", "events": "cuda_events",
}  # fmt: skip
"""By the name in `Activities` the table of its rows."""
_NONE = 2**32 - 1
"""What CUPTI gives as a stream where a wait is for none (CUPTI_SYNCHRONIZATION_INVALID_VALUE)."""
_CALL = ("correlation_id", "launch_start_ns", "launch_end_ns", "thread", "name")


@dataclass(eq=False)
class KernelTables:
    """The tables of a server's processes; `n_outside` counts while `rows` is read to its end."""

    processes: Sequence[TakenProcess]
    windows: Windows
    labels: EventLabels
    gpus: Iterable[RecordedGpu] = ()
    """Those of the node."""
    n_outside: int = 0

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """(table, rows) in pieces, each of one process and in order of start, of all that windows hold whole; and all
        events, which have no instants."""
        limits = {one.uuid: limits_of(one.compute_capability, one.sm_count) for one in self.gpus}
        for process in self.processes:
            maker = _TableMaker(process, self.labels, limits)
            for piece in recorded_activities(process.path):
                for kind, table in _TABLES.items():
                    rows = found = getattr(piece, kind)
                    if kind != "events":
                        rows = found[self.windows.hold(found["start_ns"], found["end_ns"])]
                        rows = rows[np.argsort(rows["start_ns"], kind="stable")]
                    self.n_outside += len(found) - len(rows)
                    if len(rows):
                        yield table, maker.table(table, kind, rows, piece.names)


def _calls(path: Path) -> tuple[Int64s, dict[int, str]]:
    """`_CALL` of each CUDA call in a file of records by correlation id, (5, n + 1): none has the last; and their names.

    Of several calls with one id, such as one of the runtime and that of the driver within it, the outermost.
    """
    fields = ("correlation_id", "start_ns", "end_ns", "thread", "name")
    texts: dict[int, str] = {}
    pieces = [np.full((len(fields), 1), np.iinfo(np.int64).max)]
    for piece in recorded_activities(path):
        for rows in (piece.runtime_calls, piece.driver_calls):
            if len(rows):
                texts = piece.names
                pieces.append(np.stack([rows[field].astype(np.int64) for field in fields]))
    found = np.concatenate(pieces, axis=1)
    ids, start, end, *_ = found
    found = found[:, np.lexsort((-end, start, ids))]
    return found[:, np.unique(found[0], return_index=True)[1]], texts


class _TableMaker:
    """The tables from records of one process."""

    def __init__(
        self, process: TakenProcess, labels: EventLabels, limits: Mapping[str, DeviceLimits | None]
    ) -> None:
        """`limits`: of GPUs by UUID."""
        self._process = process
        self._labels = {
            **labels._asdict(),
            "phase": "",
            "recorded_by": "library",
            "instance": "",
            "thread_name": "",
        }
        self._calls, self._call_names = _calls(process.path)
        unknown = DeviceLimits(0, 0, 0, 0, 0, 0)
        self._limits = np.array([limits.get(uuid) or unknown for uuid in (*process.gpus, "")], np.int64)

    def table(self, table: str, kind: str, rows: Array, names: Mapping[int, str]) -> pa.Table:
        """Rows of one kind as `table`, tied to no batch."""
        own = {name: rows[name].astype(np.int64) for name in rows.dtype.names or ()}
        columns = {name: pa.array(values) for name, values in own.items() if values.ndim == 1}
        columns |= {name: same_text(text, len(rows)) for name, text in self._labels.items()}
        columns |= {
            "process": pa.array(np.full(len(rows), self._process.pid)),
            "instance_device": pa.array(np.full(len(rows), NO_DEVICE)),
            "batch_id": pa.nulls(len(rows), pa.int64()),
        }
        plain = {
            number: api_name(text)
            for number, text in (names if table == "cuda_api" else self._call_names).items()
        }
        if table in DEVICE_TABLES:
            columns |= self._launched(own) | {
                "gpu_uuid": _named(own["device"], dict(enumerate(self._process.gpus))),
                "graph_id": pa.array(own["graph"], mask=own["graph"] == 0),
                "graph_node_id": pa.array(own["graph_node"], mask=own["graph_node"] == 0),
            }
        match table:
            case "kernels":
                columns |= {
                    "full_name": _named(own["name"], names),
                    "name": _named(own["name"], {number: short_name(text) for number, text in names.items()}),
                    **{f"grid_{axis}": pa.array(own["grid"][:, place]) for place, axis in enumerate("xyz")},
                    **{f"block_{axis}": pa.array(own["block"][:, place]) for place, axis in enumerate("xyz")},
                    "registers_per_thread": columns["registers"],
                    "theoretical_occupancy": self._occupancy(own),
                }
            case "memcpys":
                columns["copy_kind"] = _named(own["copy_kind"], COPY_KINDS)
                columns |= {f"{end}_kind": _memory(own[end]) for end in ("source", "destination")}
            case "memsets":
                columns["memory_kind"] = _memory(own["source"])
            case "syncs":
                columns |= {
                    name: pa.array(own[name], mask=own[name] == _NONE) for name in ("context", "stream")
                }
                columns |= self._launched(own)
                columns |= {
                    "name": Names(plain).encode(columns["name"]),
                    "kind": _named(own["type"], SYNC_KINDS),
                }
            case "cuda_api":
                classes = {number: call_class(text) for number, text in plain.items()}
                columns |= {
                    "name": _named(own["name"], plain),
                    "call_class": _named(own["name"], classes, "other"),
                    "api": same_text(kind.removesuffix("_calls"), len(rows)),
                    "return_value": columns["result"],
                }
        wanted = arrow_schema(table).names
        return conform(table, pa.table([columns[name] for name in wanted], names=wanted))

    def _launched(self, own: Mapping[str, Int64s]) -> dict[str, pa.Array]:
        """The rest of `_CALL` of the call with each record's id, null where there is none."""
        at = np.searchsorted(self._calls[0], own["correlation_id"])
        is_missing = self._calls[0][at] != own["correlation_id"]
        found = zip(_CALL[1:], self._calls[1:], strict=True)
        return {name: pa.array(values[at], mask=is_missing) for name, values in found}

    def _occupancy(self, own: Mapping[str, Int64s]) -> pa.Array:
        """Null on a GPU whose limits are not known."""
        shared = own["static_shared_bytes"] + own["dynamic_shared_bytes"]
        launches = Launches(own["block"].prod(axis=1), own["registers"], shared)
        limits = self._limits[np.minimum(own["device"], len(self._process.gpus))]
        found = theoretical_occupancy(launches, limits)
        return pa.array(found, mask=np.isnan(found))


def _memory(kind: Int64s) -> pa.Array:
    """CUPTI counts its kinds of memory from unknown = 0, `MEMORY_KINDS` from the next."""
    return _named(kind - 1, MEMORY_KINDS)


def _named(ids: Int64s, names: Mapping[int, str], unknown: str = "") -> pa.DictionaryArray:
    """Of each number its name; `unknown` where that was not told."""
    return Names(names, unknown).encode(pa.array(ids))


@lru_cache(maxsize=1 << 15)
def short_name(full: str) -> str:
    """A kernel's name without result, namespaces, template parameters and arguments, as nsys's `shortName`.

    `void at::native::reduce<512, at::Sum<float> >(at::Op)` -> `reduce`.
    """
    text = full.replace("(anonymous namespace)", "_")
    text = re.sub(r"operator(<=>|<<=?|>>=?|<=?|>=?|->|\(\))", "operator", text)
    depth, kept = 0, []
    for mark in text:
        if mark in "<{[":
            depth += 1
        elif mark in ">}]":
            depth = max(0, depth - 1)
        elif mark == "(" and not depth:
            break
        elif not depth:
            kept.append(mark)
    name = "".join(kept).rstrip()
    return re.split(r"::|\s", name)[-1] or full
