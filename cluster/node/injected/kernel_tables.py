"""Tables kernels, memcpys, memsets, syncs and cuda_api of what the kernel library recorded, each row with its batch.

The files are read twice, a piece at a time: first for whose batches hold the operations of each lane, then for the rows
(`squall.cluster.node.injected.kernel_owners`). Only where calls were recorded are those of a process held in memory, 24
bytes each, so that an operation finds the call that launched it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.actors.inject.kernel_ring import Activities, recorded_activities
from squall.actors.spill import read_spill
from squall.analysis.nsys.names import COPY_KINDS, MEMORY_KINDS, SYNC_KINDS, Names, api_name, call_class
from squall.analysis.nsys.tables import WHOLE_GRAPH, EventLabels
from squall.analysis.schema import NO_DEVICE, arrow_schema
from squall.analysis.storage.part import conform
from squall.analysis.tables.collected import KernelTies
from squall.cluster.node.injected.kernel_owners import Held, Instance, Int64s, Lane, Tally, by_lane, held_by

Array = NDArray[Any]
Columns = dict[str, pa.Array]
_UNKNOWN_MEMORY = 0
"""Of CUPTI, which counts from it where `MEMORY_KINDS` counts from the next, pageable."""
_NONE = 2**32 - 1
"""What CUPTI gives as a stream where a wait is for none (CUPTI_SYNCHRONIZATION_INVALID_VALUE)."""


@dataclass(frozen=True)
class ProcessRecords:
    """What one process of a server recorded."""

    path: Path
    """Drained pieces of its ring, one after another."""
    pid: int
    gpus: tuple[str, ...] = ()
    """UUIDs of the process's CUDA devices, by ordinal; of one beyond them the UUID is not known."""


@dataclass(frozen=True, eq=False)
class ServerBatches:
    """The batches of a server by instance; `names` and `devices` of each instance."""

    instances: tuple[Instance, ...]
    names: tuple[str, ...]
    devices: tuple[int, ...]


def read_instances(files: Iterable[Path]) -> ServerBatches:
    """Of spill files of table `batches`. An interval is what the backend reports, which holds the copies of inputs and
    outputs too, else what the model recorded."""
    tables = [data for path in files for data in read_spill(path)]
    columns = ("model", "instance", "instance_device", "batch_id", "start_ns", "end_ns", "exec_start_ns", "exec_end_ns")
    rows = pa.concat_tables([one.select(columns) for one in tables]) if tables else arrow_schema("batches").empty_table()
    start, end = (
        rows[f"exec_{edge}"].combine_chunks().fill_null(0).to_numpy() for edge in ("start_ns", "end_ns")
    )
    start = np.where(start > 0, start, rows["start_ns"].to_numpy())
    end = np.maximum(start, np.where(end > 0, end, rows["end_ns"].to_numpy()))
    keys = list(
        zip(
            rows["model"].to_pylist(), rows["instance"].to_pylist(), rows["instance_device"].to_pylist(), strict=True
        )
    )
    unique = sorted(set(keys))
    place = {key: number for number, key in enumerate(unique)}
    number = np.array([place[key] for key in keys], np.int64)
    batch_id = rows["batch_id"].to_numpy()
    return ServerBatches(
        tuple(Instance(*(one[number == own] for one in (start, end, batch_id))) for own in range(len(unique))),
        tuple(name for _, name, _ in unique),
        tuple(device for _, _, device in unique),
    )


class Windows:
    """Stretches in which all was recorded, (n, 2) int64 instants; they do not overlap."""

    def __init__(self, spans: Int64s) -> None:
        order = np.argsort(spans[:, 0])
        self._start, self._end = spans[order, 0], spans[order, 1]

    def hold(self, start_ns: Int64s, end_ns: Int64s) -> NDArray[np.bool_]:
        """Whether each interval lies whole in one of them."""
        if not len(self._start):
            return np.zeros(len(start_ns), np.bool_)
        row = np.searchsorted(self._start, start_ns, side="right") - 1
        return (row >= 0) & (end_ns <= self._end[np.maximum(row, 0)])


class _Kind(NamedTuple):
    """A table, and where its rows stand in `Activities`."""

    table: str
    fields: tuple[str, ...]


_KINDS = (
    _Kind("kernels", ("kernels", "graphs")),
    _Kind("memcpys", ("memcpys",)),
    _Kind("memsets", ("memsets",)),
    _Kind("syncs", ("syncs",)),
    _Kind("cuda_api", ("runtime_calls", "driver_calls")),
)
_ON_DEVICE = ("kernels", "memcpys", "memsets")


@dataclass(eq=False)
class KernelTables:
    """The tables of a server's processes; `ties` is filled while `rows` is read to its end."""

    processes: Sequence[ProcessRecords]
    windows: Windows
    batches: ServerBatches
    labels: EventLabels
    n: Counter[str] = field(default_factory=Counter)
    n_tied: Counter[str] = field(default_factory=Counter)
    n_ambiguous: Counter[str] = field(default_factory=Counter)
    n_outside: int = 0

    def rows(self) -> Iterator[tuple[str, pa.Table]]:
        """(table, rows) in pieces, each of one process and in order of start."""
        owners = self._owners()
        for process in self.processes:
            calls = _Calls.read(process.path)
            makers = _Makers(process, self.labels, self.batches, calls)
            for piece in recorded_activities(process.path):
                yield from self._of_piece(makers, piece, owners)

    def ties(self) -> dict[str, KernelTies]:
        """By table, for the manifest."""
        return {
            table: KernelTies(n=n, n_tied=self.n_tied[table], n_ambiguous=self.n_ambiguous[table])
            for table, n in self.n.items()
        }

    def _owners(self) -> dict[Lane, int]:
        tally = Tally(self.batches.instances)
        for process in self.processes:
            for piece in recorded_activities(process.path):
                for name in ("kernels", "graphs", "memcpys", "memsets"):
                    rows = self._recorded(getattr(piece, name))
                    for lane, own in by_lane(process.pid, rows["context"], rows["stream"]):
                        tally.add(lane, rows["start_ns"][own], rows["end_ns"][own])
                for name in ("runtime_calls", "driver_calls"):
                    rows = self._recorded(getattr(piece, name))
                    for (pid, thread), own in by_lane(process.pid, rows["thread"]):
                        tally.add(thread_lane(pid, thread), rows["start_ns"][own], rows["end_ns"][own], and_process=False)
        return tally.owners()

    def _recorded(self, rows: Array) -> Array:
        return rows[self.windows.hold(rows["start_ns"], rows["end_ns"])]

    def _of_piece(
        self, makers: _Makers, piece: Activities, owners: Mapping[Lane, int]
    ) -> Iterator[tuple[str, pa.Table]]:
        for kind in _KINDS:
            for name in kind.fields:
                found: Array = getattr(piece, name)
                rows = self._recorded(found)
                self.n_outside += len(found) - len(rows)
                if len(rows):
                    rows = rows[np.argsort(rows["start_ns"], kind="stable")]
                    held = self._held(kind.table, makers.pid, rows, owners)
                    yield kind.table, makers.table(kind.table, name, rows, held, piece.names)

    def _held(self, table: str, pid: int, rows: Array, owners: Mapping[Lane, int]) -> Held:
        if table == "cuda_api":
            lanes = [(thread_lane(*lane), own) for lane, own in by_lane(pid, rows["thread"])]
        else:
            lanes = list(by_lane(pid, rows["context"], rows["stream"]))
        held = held_by(self.batches.instances, owners, lanes, rows["start_ns"], rows["end_ns"])
        self.n[table] += len(rows)
        self.n_tied[table] += int(held.is_tied.sum())
        self.n_ambiguous[table] += int(held.is_ambiguous.sum())
        return held


def thread_lane(pid: int, thread: int) -> Lane:
    """The lane of the calls of a thread: none of a stream is as long."""
    return (pid, -1, -1, thread)


@dataclass(frozen=True, eq=False)
class _Calls:
    """The CUDA calls of a process by correlation id, (n,) each and in its order; none where none were recorded."""

    correlation_id: Int64s
    start_ns: Int64s
    end_ns: Int64s
    thread: Int64s
    name: Int64s
    texts: Mapping[int, str]

    @classmethod
    def read(cls, path: Path) -> _Calls:
        """Of several calls with one id, such as a call of the runtime and that of the driver within it, the outermost."""
        columns: list[list[Array]] = [[], [], [], [], []]
        texts: dict[int, str] = {}
        for piece in recorded_activities(path):
            for rows in (piece.runtime_calls, piece.driver_calls):
                if len(rows):
                    texts = piece.names
                    for column, name in zip(
                        columns, ("correlation_id", "start_ns", "end_ns", "thread", "name"), strict=True
                    ):
                        column.append(rows[name].astype(np.int64))
        ids, start, end, thread, name = (np.concatenate(one) if one else np.zeros(0, np.int64) for one in columns)
        order = np.lexsort((-end, start, ids))
        ids = ids[order]
        first = np.ones(len(ids), np.bool_)
        first[1:] = ids[1:] != ids[:-1]
        kept = order[first]
        return cls(ids[first], start[kept], end[kept], thread[kept], name[kept], texts)

    def find(self, correlation_id: Array) -> tuple[Int64s, NDArray[np.bool_]]:
        """Row of the call with each id, and whether there is one."""
        wanted = correlation_id.astype(np.int64)
        if not len(self.correlation_id):
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
        row = np.minimum(np.searchsorted(self.correlation_id, wanted), len(self.correlation_id) - 1)
        return row, self.correlation_id[row] == wanted

    def known(self, values: Int64s, found: tuple[Int64s, NDArray[np.bool_]]) -> pa.Array:
        """`values` of the calls found, null where there is none."""
        row, is_there = found
        if not len(values):
            return pa.nulls(len(row), pa.int64())
        return pa.array(values[row], pa.int64(), mask=~is_there)


class _Makers:
    """Columns of the tables from records of one process."""

    def __init__(
        self, process: ProcessRecords, labels: EventLabels, batches: ServerBatches, calls: _Calls
    ) -> None:
        self.pid = process.pid
        self._gpus = process.gpus
        self._labels = {**labels._asdict(), "phase": "", "recorded_by": "library"}
        self._batches = batches
        self._calls = calls

    def table(self, table: str, kind: str, rows: Array, held: Held, names: Mapping[int, str]) -> pa.Table:
        """Rows of one kind as `table`."""
        columns = {
            **{name: _same(text, len(rows)) for name, text in self._labels.items()},
            "process": pa.array(np.full(len(rows), self.pid, np.int64)),
            "start_ns": pa.array(rows["start_ns"]),
            "end_ns": pa.array(rows["end_ns"]),
            "correlation_id": pa.array(rows["correlation_id"].astype(np.int64)),
            **self._batch(held),
        }
        if table in _ON_DEVICE:
            columns |= self._device(rows)
        match kind:
            case "kernels":
                columns |= _kernels(rows, names)
            case "graphs":
                columns |= _graphs(len(rows))
            case "memcpys":
                columns |= _memcpys(rows)
            case "memsets":
                columns |= {"memory_kind": _memory(rows["source"]), "bytes": _whole(rows["bytes"])}
            case "syncs":
                columns |= self._syncs(rows)
            case _:
                columns |= _api(rows, "driver" if kind == "driver_calls" else "runtime", names)
        wanted = arrow_schema(table).names
        return conform(table, pa.table([columns[name] for name in wanted], names=wanted))

    def _batch(self, held: Held) -> Columns:
        device = np.array([*self._batches.devices, NO_DEVICE], np.int64)
        number = np.where(held.is_tied, held.instance, -1)
        return {
            "instance": _texts(number + 1, ("", *self._batches.names)),
            "instance_device": pa.array(device[number]),
            "batch_id": pa.array(held.batch_id, pa.int64(), mask=~held.is_tied),
        }

    def _device(self, rows: Array) -> Columns:
        device = rows["device"].astype(np.int64)
        found = self._calls.find(rows["correlation_id"])
        calls = self._calls
        return {
            "thread": calls.known(calls.thread, found),
            "launch_start_ns": calls.known(calls.start_ns, found),
            "launch_end_ns": calls.known(calls.end_ns, found),
            "device": pa.array(device),
            "gpu_uuid": _texts(np.minimum(device, len(self._gpus)), (*self._gpus, "")),
            "context": _whole(rows["context"]),
            "stream": _whole(rows["stream"]),
            "graph_id": pa.array(rows["graph"].astype(np.int64), mask=rows["graph"] == 0),
            "graph_node_id": pa.array(rows["graph_node"].astype(np.int64), mask=rows["graph_node"] == 0),
        }

    def _syncs(self, rows: Array) -> Columns:
        calls = self._calls
        found = calls.find(rows["correlation_id"])
        row, is_there = found
        name = np.where(is_there, calls.name[row] if len(calls.name) else 0, 0)
        return {
            "thread": calls.known(calls.thread, found),
            "context": pa.array(rows["context"].astype(np.int64), mask=rows["context"] == _NONE),
            "stream": pa.array(rows["stream"].astype(np.int64), mask=rows["stream"] == _NONE),
            "name": _named(name, {number: api_name(text) for number, text in calls.texts.items()}),
            "kind": _texts(np.minimum(rows["type"], len(SYNC_KINDS)), (*SYNC_KINDS.values(), "")),
        }


def _kernels(rows: Array, names: Mapping[int, str]) -> Columns:
    return {
        "name": _named(rows["name"], {number: short_name(text) for number, text in names.items()}),
        "full_name": _named(rows["name"], names),
        **{f"grid_{axis}": _whole(rows["grid"][:, place]) for place, axis in enumerate("xyz")},
        **{f"block_{axis}": _whole(rows["block"][:, place]) for place, axis in enumerate("xyz")},
        "registers_per_thread": _whole(rows["registers"]),
        "static_shared_bytes": _whole(rows["static_shared_bytes"]),
        "dynamic_shared_bytes": _whole(rows["dynamic_shared_bytes"]),
        "theoretical_occupancy": pa.nulls(len(rows), pa.float64()),
    }


def _graphs(n: int) -> Columns:
    sizes = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    unknown = ("registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes")
    return {
        **{name: _same(WHOLE_GRAPH, n) for name in ("name", "full_name")},
        **{name: pa.array(np.zeros(n, np.int64)) for name in sizes},
        **{name: pa.nulls(n, pa.int64()) for name in unknown},
        "theoretical_occupancy": pa.nulls(n, pa.float64()),
    }


def _memcpys(rows: Array) -> Columns:
    kinds = tuple(COPY_KINDS.values())
    return {
        "copy_kind": _texts(np.where(rows["copy_kind"] < len(kinds), rows["copy_kind"], 0), kinds),
        "source_kind": _memory(rows["source"]),
        "destination_kind": _memory(rows["destination"]),
        "bytes": _whole(rows["bytes"]),
    }


def _memory(kind: Array) -> pa.Array:
    """Words for CUPTI's kinds of memory."""
    words = ("", *MEMORY_KINDS.values())
    return _texts(np.where(kind < len(words), kind, _UNKNOWN_MEMORY), words)


def _api(rows: Array, api: str, names: Mapping[int, str]) -> Columns:
    plain = {number: api_name(text) for number, text in names.items()}
    return {
        "thread": _whole(rows["thread"]),
        "thread_name": _same("", len(rows)),
        "name": _named(rows["name"], plain),
        "api": _same(api, len(rows)),
        "call_class": _named(rows["name"], {n: call_class(text) for n, text in plain.items()}, "other"),
        "return_value": _whole(rows["result"]),
    }


def _whole(values: Array) -> pa.Array:
    return pa.array(values.astype(np.int64))


def _same(text: str, n: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([text], pa.string()))


def _texts(places: Array, words: Sequence[str]) -> pa.DictionaryArray:
    """Of each place its word."""
    unique = sorted(set(words))
    number = np.array([unique.index(word) for word in words], np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(number[places.astype(np.int64)]), pa.array(unique, pa.string()))


def _named(ids: Array, names: Mapping[int, str], unknown: str = "") -> pa.DictionaryArray:
    """Of each number its name; `unknown` where that was not told."""
    return Names(names, unknown).encode(pa.array(ids.astype(np.int64)))


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
