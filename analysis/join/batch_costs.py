"""Table `batch_costs`: what every execution did on CPU and GPU, and where its time went.

    length = head + (kernel busy + copy exposed + sync wait + launch idle) + tail

Operations are tied to executions by the batch that ingest gave them, never by correlation id alone; `batch_slices` says
how where they have none. An execution whose range was still open when the recording stopped is tied to what was
recorded of it; one without any event, of a server whose events have batches, was not recorded. Where no operation, or
no call, of its server was recorded in the phase, what that would tell of it is null.

Of what the kernel library recorded in windows an execution has all or nothing: one that no window holds from its start
to its end is tied `none`, whatever kernels of it there are, and one in a window that launched nothing has zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.join.batch_events import TO_DEVICE, TO_HOST, SliceReader
from squall.analysis.join.batch_slices import NONE, RANGE, BatchSlice, plan_slices
from squall.analysis.join.batch_times import Copies, Executions, Ops, batch_times, total, waits_within
from squall.analysis.schema import arrow_schema
from squall.analysis.storage.held_folder import held_folder
from squall.analysis.storage.part import NewParts
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES, Spread, connect, in_turn
from squall.analysis.storage.row_groups import NULL
from squall.analysis.storage.store import RunStore

_OF_CALLS = ("n_launches", "launch_ns", "blocked_ns", "n_blocks", "sync_ns", "alloc_ns", "api_ns")
"""Columns that calls alone tell."""
_OF_BOTH = ("blocked_busy_ns", "n_mid_blocks", "sync_wait_ns", "launch_idle_ns")
"""Columns that take calls and operations."""
_OF_KERNELS = ("n_kernels", "kernel_ns", "kernel_busy_ns")
"""Columns that kernels alone tell: what else operations tell takes copies too."""

Texts = NDArray[Any]


@dataclass(frozen=True)
class _Task:
    slice: BatchSlice
    new: NewParts


def write_batch_costs(
    store: RunStore, memory_limit_bytes: int = MEMORY_LIMIT_BYTES, spread: Spread = in_turn
) -> int:
    """Writes derived table `batch_costs`, a row per execution, and returns its rows; a part a slice.

    Rows come by server and start. Each slice is worked on within the memory limit, wherever `spread` has it done.
    Without a report every row is tied `none`. Raises AnalysisError where two batches have one key.
    """
    with (
        store.replacing("batch_costs") as new,
        held_folder(store.run_dir) as folder,
    ):
        with connect(store, [], memory_limit_bytes) as connection:
            slices = plan_slices(connection, store, folder / "executions.parquet", memory_limit_bytes)
        return sum(spread(_write_slice, [_Task(one, new) for one in slices]))


def _write_slice(task: _Task) -> int:
    reader = SliceReader(task.slice)
    rows = {name: reader.rows[name] for name in reader.rows.column_names}
    given = {**rows, **_costs(reader), "run": pa.array([task.slice.run] * reader.rows.num_rows, pa.string())}
    names = arrow_schema("batch_costs").names
    return task.new.write(task.slice.number, pa.table([given[name] for name in names], names=names))


def _costs(reader: SliceReader) -> dict[str, pa.Array]:
    """The columns that the report tells of, null where it does not: of a phase without operations what these tell."""
    n = reader.rows.num_rows
    ops, copies = reader.ops()
    calls, process, thread = reader.calls(copies)
    values = batch_times(reader.executions, ops, calls) | _of_copies(copies, n)
    gpu = _main_gpus(ops, n, reader.gpus)
    # its own events tell of an execution, whatever its phase: one at the edge of a recording begins in another
    has_ops, has_copies, has_calls = (
        reader.rows[name].to_numpy().copy() for name in ("has_ops", "has_copies", "has_calls")
    )
    has_events = np.zeros(n, np.bool_)
    own: tuple[tuple[Bools, Int64s], ...] = (
        (has_ops, ops.row),
        (has_copies, ops.row),
        (has_calls, calls.row),
    )
    for has, rows in own:
        has_events[rows] = True
        if not reader.is_by_library:  # whose windows say what was recorded
            has[rows] = True
    del ops, copies, calls
    tie = _ties(reader, has_events)
    is_tied = tie != NONE
    process = np.where(process < 0, reader.ran_in, process)
    has_process = is_tied & (process >= 0)
    has_thread = has_process & (thread >= 0)
    scope = _scope(reader)
    waits = reader.os_waits(process, thread, has_thread, scope)
    values |= {"process": process, "thread": thread, "os_wait_ns": waits_within(scope, *waits)}
    has_ops, has_calls = is_tied & has_ops, is_tied & has_calls
    known = dict.fromkeys(values, has_ops & has_copies) | dict.fromkeys(_OF_KERNELS, has_ops)
    known |= {"process": has_process, "thread": has_thread}
    known |= dict.fromkeys(_OF_CALLS, has_calls) | dict.fromkeys(_OF_BOTH, has_ops & has_copies & has_calls)
    known["os_wait_ns"] = has_thread & reader.has("osrt")
    arrays = {name: pa.array(values[name], pa.int64(), mask=~known[name]) for name in values}
    return {**arrays, "tie": pa.array(tie, pa.string()), "gpu_uuid": gpu}


def _ties(reader: SliceReader, has_events: Bools) -> Texts:
    """How each execution is tied: one that could be by its range is only if the report has that, or any event of it, or
    a window holds it."""
    is_seen = has_events | reader.rows["range_start_ns"].is_valid().to_numpy()
    is_seen |= reader.rows["is_in_window"].to_numpy()
    return np.where((reader.tie == RANGE) & ~is_seen, NONE, reader.tie)


def _scope(reader: SliceReader) -> Executions:
    """The range of each execution, else its own span."""
    start, end = reader.executions
    first, last = (
        reader.rows[name].fill_null(NULL).to_numpy() for name in ("range_start_ns", "range_end_ns")
    )
    return Executions(np.where(first == NULL, start, first), np.where(first == NULL, end, last))


def _of_copies(copies: Copies, n: int) -> dict[str, Int64s]:
    def totals(values: Int64s, chosen: Bools) -> Int64s:
        return total(copies.row[chosen], values[chosen], n)

    to_device, to_host = copies.direction == TO_DEVICE, copies.direction == TO_HOST
    return {
        "h2d_ns": totals(copies.length_ns, to_device),
        "d2h_ns": totals(copies.length_ns, to_host),
        "h2d_bytes": totals(copies.n_bytes, to_device),
        "d2h_bytes": totals(copies.n_bytes, to_host),
        "pageable_bytes": totals(copies.n_bytes, copies.is_pageable),
    }


def _main_gpus(ops: Ops, n: int, gpus: list[str]) -> pa.Array:
    """Of the GPUs with any operation of an execution the one with most kernel time, by name first; empty if none."""
    if not gpus:
        return pa.array([""] * n)
    ordered = sorted(gpus)
    place = ops.row * len(gpus) + np.array([ordered.index(uuid) for uuid in gpus])[ops.gpu]
    is_there = np.bincount(place, minlength=n * len(gpus)) > 0
    kernel_ns = np.where(ops.is_kernel, ops.end_ns - ops.start_ns, 0)
    spent = np.where(is_there, total(place, kernel_ns, n * len(gpus)), -1).reshape(n, len(gpus))
    best = np.where(spent.max(axis=1) >= 0, spent.argmax(axis=1), len(gpus))
    return pa.array([*ordered, ""]).take(pa.array(best))
