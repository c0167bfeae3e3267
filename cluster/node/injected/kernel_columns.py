"""Columns of tables kernels, memcpys, memsets, syncs and cuda_api from records of the kernel library."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.actors.inject.kernel_ring import recorded_activities
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
from squall.analysis.occupancy import DeviceLimits, Launches, theoretical_occupancy
from squall.analysis.storage.part import conform
from squall.analysis.storage.schema import NO_DEVICE, arrow_schema
from squall.cluster.node.injected.kernel_owners import Held, Int64s

Array = NDArray[Any]
Columns = dict[str, pa.Array]
_UNKNOWN_MEMORY = 0
"""Of CUPTI, which counts from it where `MEMORY_KINDS` counts from the next, pageable."""
_NONE = 2**32 - 1
"""What CUPTI gives as a stream where a wait is for none (CUPTI_SYNCHRONIZATION_INVALID_VALUE)."""
_ON_DEVICE = ("kernels", "memcpys", "memsets")


@dataclass(frozen=True, eq=False)
class Calls:
    """The CUDA calls of a process by correlation id, (n,) each and in its order; none where none were recorded."""

    correlation_id: Int64s
    start_ns: Int64s
    end_ns: Int64s
    thread: Int64s
    name: Int64s
    texts: Mapping[int, str]

    @classmethod
    def read(cls, path: Path | None) -> Calls:
        """Those of a file; None: of no file.

        Of several calls with one id, such as one of the runtime and that of the driver within it, the outermost.
        """
        fields = ("correlation_id", "start_ns", "end_ns", "thread", "name")
        pieces: list[Int64s] = [np.zeros((len(fields), 0), np.int64)]
        texts: dict[int, str] = {}
        for piece in recorded_activities(path) if path is not None else ():
            for rows in (piece.runtime_calls, piece.driver_calls):
                if len(rows):
                    texts = piece.names
                    pieces.append(np.stack([rows[field].astype(np.int64) for field in fields]))
        ids, start, end, thread, name = np.concatenate(pieces, axis=1)
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


class ColumnMaker:
    """Columns of the tables from records of one process."""

    def __init__(
        self,
        pid: int,
        gpus: tuple[str, ...],
        labels: EventLabels,
        owners: Sequence[tuple[str, int]],
        calls: Calls,
        limits: Mapping[str, DeviceLimits],
    ) -> None:
        """`gpus`: UUIDs of its CUDA devices by ordinal; `owners`: name and device of each instance; `limits`: of GPUs
        by UUID."""
        self.pid = pid
        self._gpus = gpus
        own = {"run": labels.run, "node": labels.node, "server": labels.server}
        self._labels = {**own, "phase": "", "recorded_by": "library"}
        self._instances = ("", *(name for name, _ in owners))
        self._devices = np.array([NO_DEVICE, *(device for _, device in owners)], np.int64)
        self._calls = calls
        unknown = DeviceLimits(0, 0, 0, 0, 0, 0)
        self._limits = np.array([limits.get(uuid, unknown) for uuid in (*gpus, "")], np.int64)

    def table(self, table: str, kind: str, rows: Array, held: Held, names: Mapping[int, str]) -> pa.Table:
        """Rows of one kind as `table`."""
        columns = {
            **{name: same_text(text, len(rows)) for name, text in self._labels.items()},
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
                columns["theoretical_occupancy"] = self._occupancy(rows)
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
        number = np.where(held.is_tied, held.instance + 1, 0)
        return {
            "instance": _texts(number, self._instances),
            "instance_device": pa.array(self._devices[number]),
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

    def _occupancy(self, rows: Array) -> pa.Array:
        """Null on a GPU whose limits are not known."""
        own = self._limits[np.minimum(rows["device"], len(self._gpus))]
        shared = rows["static_shared_bytes"].astype(np.int64) + rows["dynamic_shared_bytes"]
        block = rows["block"].astype(np.int64).prod(axis=1)
        launches = Launches(block, rows["registers"].astype(np.int64), shared)
        found = theoretical_occupancy(launches, own)
        return pa.array(found, mask=np.isnan(found))

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
        "thread_name": same_text("", len(rows)),
        "name": _named(rows["name"], plain),
        "api": same_text(api, len(rows)),
        "call_class": _named(rows["name"], {n: call_class(text) for n, text in plain.items()}, "other"),
        "return_value": _whole(rows["result"]),
    }


def _whole(values: Array) -> pa.Array:
    return pa.array(values.astype(np.int64))


def _texts(places: Array, words: Sequence[str]) -> pa.DictionaryArray:
    """Of each place its word."""
    unique = sorted(set(words))
    number = np.array([unique.index(word) for word in words], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(number[places.astype(np.int64)]), pa.array(unique, pa.string())
    )


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
