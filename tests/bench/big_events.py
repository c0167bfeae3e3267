"""Batches of any number, and what nsys records of each: all numbers follow from the row of the batch.

thread   ──[ head │ copy in, launch … launch, copy out, synchronise │ tail ]── wait ──[ …
stream 7              █    ████ ██ …            █
stream 14                ██        ██
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Columns = dict[str, Any]

START_NS = 1_795_250_252_000_000_000
US, MS, S = 1_000, 1_000_000, 1_000_000_000
BATCHES = 1_250_000
"""Profiled batches at scale 1; the warm-up has 1 % more."""
N_SERVERS, PER_SERVER = 2, 2
N_INSTANCES = N_SERVERS * PER_SERVER
KERNELS = 40
OPS = KERNELS + 2  # a copy in before, a copy out after
CALLS = OPS + 1  # one for each operation, and a synchronisation
LONGEST_NS = 5 * MS
"""More than any batch takes, with what it leaves behind on the GPU."""
_NAMES = tuple(f"kernel_{i}" for i in range(12))
_CALLS = ("cudaMemcpyAsync", "cudaLaunchKernel", "cudaStreamSynchronize")
_CLASSES = ("async copy", "launch", "blocking sync")
_COPY, _LAUNCH, _SYNC = range(3)


def noise(rows: Int64s, salt: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, by a hash of it (splitmix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(
            salt * 0xD1B54A32D192ED03 % 2**64
        )
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) / 2.0**64


@dataclass(frozen=True)
class Batches:
    """Executions, by instance and start: row = instance * n + batch_id."""

    n: int
    """Of each instance."""
    start_ns: Int64s
    end_ns: Int64s
    n_requests: Int64s
    offset: Int64s
    """Row of the first request of each batch; one more at the end."""

    @classmethod
    def make(cls, scale: float) -> Batches:
        n = max(round(BATCHES * scale * 1.01) // N_INSTANCES, 8)
        rows = np.arange(n * N_INSTANCES)
        n_requests = 1 + (noise(rows, 1) * 15).astype(np.int64)
        length = ((800 * US + 150 * US * n_requests) * (0.8 + 0.4 * noise(rows, 2))).astype(np.int64)
        gap = (-200 * US * np.log1p(-noise(rows, 3))).astype(np.int64) + 20 * US
        end = START_NS + 10 * MS + np.cumsum((length + gap).reshape(N_INSTANCES, n), axis=1).ravel()
        return cls(n, end - length, end, n_requests, np.r_[0, np.cumsum(n_requests)])


def events(batches: Batches, rows: Int64s) -> dict[str, Columns]:
    """Columns of each table of a report for the batches `rows`, `row` being the batch that an event belongs to.

    A call begins `issue` after the one before it; an operation when the one before it on its stream has ended, and no
    sooner than 4 us after its call began. Every fifth kernel runs on a stream of its own.
    """
    start, length = batches.start_ns[rows, None], (batches.end_ns - batches.start_ns)[rows, None]
    place = np.arange(OPS)[None, :]
    key = rows[:, None] * 64 + place
    issue = length * 72 // 100 // OPS
    called = start + length // 5 + place * issue + (noise(key, 9) * 0.3 * issue).astype(np.int64)
    returned = called + 3 * US + (noise(key, 10) * 0.2 * issue).astype(np.int64)
    took = ((0.2 + 1.2 * noise(key, 11)) * issue).astype(np.int64)
    is_aside = (place % 5 == 4) & (place < OPS - 1)
    queued = np.where(is_aside, 0, took)
    behind = np.cumsum(queued, axis=1)
    free = np.maximum.accumulate(np.where(is_aside, 0, called + 4 * US - behind + queued), axis=1)
    began = np.where(is_aside, called + 4 * US, free + behind - queued)
    ended = began + took
    returned[:, -1] = np.maximum(returned[:, -1], ended[:, -1])  # a copy to pageable memory blocks
    waited = np.maximum(ended.max(axis=1, keepdims=True), returned[:, -1:]) + 2 * US
    calls = {
        "row": np.repeat(rows, CALLS),
        "place": np.tile(np.arange(CALLS), len(rows)),
        "start_ns": np.hstack((called, returned[:, -1:] + US)).ravel(),
        "end_ns": np.hstack((returned, waited + US)).ravel(),
    }
    ops = {
        "row": np.repeat(rows, OPS), "place": np.tile(np.arange(OPS), len(rows)), "start_ns": began.ravel(),
        "end_ns": ended.ravel(), "launch_start_ns": called.ravel(), "launch_end_ns": returned.ravel(),
    }  # fmt: skip
    is_copy = (ops["place"] == 0) | (ops["place"] == OPS - 1)
    return {
        "osrt": _osrt(batches, rows),
        "nvtx": {"row": rows, "start_ns": start[:, 0], "end_ns": batches.end_ns[rows]},
        "cuda_api": calls,
        "kernels": {name: values[~is_copy] for name, values in ops.items()},
        "memcpys": {name: values[is_copy] for name, values in ops.items()},
    }


def _osrt(batches: Batches, rows: Int64s) -> Columns:
    """A wait for work before each batch, and a lock in its head."""
    start = batches.start_ns[rows]
    began = np.column_stack((start - 18 * US, start + 40 * US)).ravel()
    ended = np.column_stack((start - 2 * US, start + 70 * US)).ravel()
    return {
        "row": np.repeat(rows, 2),
        "place": np.tile([0, 1], len(rows)),
        "start_ns": began,
        "end_ns": ended,
    }


def described(table: str, batches: Batches, columns: Columns) -> Columns:
    """`columns` of `events` with everything else that `table` says of an event, but for run, phase and whose it is."""
    row = columns["row"]
    instance = row // batches.n
    own = {name: values for name, values in columns.items() if name not in ("row", "place")}
    own |= {"process": 1_000 + instance, "thread": 2_000 + instance, "batch_id": row % batches.n}
    return own | _DESCRIBED[table](own, columns.get("place"))


def _described_osrt(_own: Columns, place: Int64s) -> Columns:
    return {"thread_name": "triton_python_b", "name": texts(place, ("sem_timedwait", "pthread_mutex_lock"))}


def _described_nvtx(own: Columns, _place: None) -> Columns:
    clock_ns = own["start_ns"] - START_NS + S
    parts = (texts(own["process"] % 2, ("squall|seqlen_head_0|gpu0", "squall|seqlen_head_1|gpu0")).cast(pa.string()),
             pc.cast(pa.array(own["batch_id"]), pa.string()), pc.cast(pa.array(clock_ns), pa.string()))  # fmt: skip
    name = pc.binary_join_element_wise(*parts, "|")
    return {"thread_name": "triton_python_b", "name": name, "clock_ns": own["start_ns"] - US}


def _described_cuda_api(own: Columns, place: Int64s) -> Columns:
    kind = np.where(place == CALLS - 1, _SYNC, np.where((place == 0) | (place == OPS - 1), _COPY, _LAUNCH))
    return {
        "recorded_by": "nsys", "thread_name": "triton_python_b", "name": texts(kind, _CALLS), "api": "runtime",
        "call_class": texts(kind, _CLASSES), "correlation_id": _correlation(own, place),
        "return_value": np.zeros(len(place), np.int64),
    }  # fmt: skip


def _described_op(own: Columns, place: Int64s) -> Columns:
    same = np.ones(len(place), np.int64)
    gpu = (own["process"] - 1_000) // PER_SERVER
    return {
        "recorded_by": "nsys",
        "device": same - 1, "gpu_uuid": texts(gpu, [f"GPU-{i}" for i in range(N_SERVERS)]), "context": same,
        "stream": np.where((place % 5 == 4) & (place < OPS - 1), 14, 7), "correlation_id": _correlation(own, place),
    }  # fmt: skip


def _described_kernels(own: Columns, place: Int64s) -> Columns:
    kind = place % len(_NAMES)
    same = np.ones(len(place), np.int64)
    return {
        **_described_op(own, place), "name": texts(kind, _NAMES),
        "full_name": texts(kind, [f"void {name}<float>(float*, int)" for name in _NAMES]),
        "grid_x": 8 << (kind % 7), "grid_y": same, "grid_z": same, "block_x": 128 << (kind % 3), "block_y": same,
        "block_z": same, "registers_per_thread": 32 + 8 * kind, "static_shared_bytes": 0 * same,
        "dynamic_shared_bytes": 1024 * kind, "theoretical_occupancy": 0.25 + 0.0625 * kind,
    }  # fmt: skip


def _described_memcpys(own: Columns, place: Int64s) -> Columns:
    is_out = place > 0
    return {
        **_described_op(own, place), "copy_kind": texts(is_out, ("HtoD", "DtoH")),
        "source_kind": texts(is_out, ("pinned", "device")), "destination_kind": texts(is_out, ("device", "pageable")),
        "bytes": np.where(is_out, 1 << 10, 1 << 17),
    }  # fmt: skip


def _correlation(own: Columns, place: Int64s) -> Int64s:
    return np.asarray(own["batch_id"] * CALLS + place + 1)


_DESCRIBED: dict[str, Callable[[Columns, Any], Columns]] = {
    "osrt": _described_osrt,
    "nvtx": _described_nvtx,
    "cuda_api": _described_cuda_api,
    "kernels": _described_kernels,
    "memcpys": _described_memcpys,
}


def texts(places: NDArray[Any], words: Any) -> pa.DictionaryArray:
    """`words[place]` of each place."""
    return pa.DictionaryArray.from_arrays(
        pa.array(places.astype(np.int32)), pa.array(list(words), pa.string())
    )
