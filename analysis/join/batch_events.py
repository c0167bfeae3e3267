"""What the report holds of the executions of a slice: arrays for `squall.analysis.join.batch_times`, each table read
once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.join.batch_slices import AT, RANGE, WINDOW, BatchSlice
from squall.analysis.join.batch_ties import ByBatch, ByTime, Ties
from squall.analysis.join.batch_times import ALLOCATION, LAUNCH, OTHER, SYNC, Calls, Copies, Executions, Ops
from squall.analysis.join.executions import TRACE
from squall.analysis.storage.row_groups import NULL, Columns, read_columns

_SPAN = ("start_ns", "end_ns")
_KINDS = {"launch": LAUNCH, "graph launch": LAUNCH, "blocking sync": SYNC, "allocation": ALLOCATION}
_DIRECTIONS = ("HtoD", "DtoH")
TO_DEVICE, TO_HOST, ELSEWHERE = 0, 1, 2
_PAGEABLE = "pageable"


class SliceReader:
    """Reads one slice. `rows` are its executions in order of start: `row` of an event counts them."""

    def __init__(self, part: BatchSlice) -> None:
        self._part = part
        rows = pq.read_table(
            part.executions, filters=[("server", "=", part.server), ("part", "=", part.part)]
        )
        keys = ("start_ns", "instance", "instance_device", "model", "batch_id")
        self.rows: pa.Table = rows.sort_by([(name, "ascending") for name in keys]).combine_chunks()
        start, end = (self.rows[name].to_numpy() for name in _SPAN)
        self.executions = Executions(start, np.maximum(start, end))
        self.tie = np.array(self.rows["tie"].to_pylist(), np.object_)
        self.is_by_library = bool(pc.any(self.rows["is_by_library"]).as_py())
        """Whether the kernel library recorded the server."""
        self.gpus: list[str] = []
        """UUIDs of the GPUs that operations named; `gpu` of an operation counts them."""
        self.ran_in: Int64s = np.full(self.rows.num_rows, -1)
        """Of a server that the library recorded the process of each execution's first operation; -1: it had none, or
        `ops` was not asked for."""
        self._ties = self._make_ties()

    def _make_ties(self) -> Ties:
        """Executions of a server are tied all by batch or all by time."""
        if WINDOW in self.tie:
            own = np.flatnonzero(self.tie == WINDOW)
            opens, closes = (self.rows[name].to_numpy()[own] for name in ("open_from_ns", "open_to_ns"))
            return ByTime(own, opens, closes)
        is_recorded = pc.not_equal(self.rows["source"], TRACE).to_numpy()
        own = np.flatnonzero((self.tie == RANGE) & is_recorded)
        instances = self.rows["instance"].take(pa.array(own)).to_pylist()
        devices, batch_ids = (self.rows[name].to_numpy()[own] for name in ("instance_device", "batch_id"))
        return ByBatch(own, instances, devices, batch_ids)

    def has(self, *tables: str) -> bool:
        """Whether the run has any of the tables."""
        return any(table in self._part.groups for table in tables)

    def _read(self, table: str, numbers: Sequence[str], texts: dict[str, list[str]]) -> Columns:
        """Events of the slice's executions: their span, the columns asked for, and `row`; broken ones are left out."""
        ties = self._ties if table != "osrt" else None
        groups = self._part.groups.get(table, ())
        of_ties = ties.texts if ties else {}
        if not all(group.bounds["server"].is_one_value for group in groups):
            of_ties = of_ties | {"server": [self._part.server]}
        needed = dict.fromkeys((*_SPAN, AT[table], *numbers, *(ties.numbers if ties else ())))
        found = read_columns(groups, list(needed), texts | of_ties)
        kept = found["end_ns"] >= found["start_ns"]  # an event that ends before it starts is broken
        if "server" in of_ties:
            kept &= found["server"] == 0
        names = [*_SPAN, *numbers, *texts]
        if ties:
            at = found[AT[table]]
            if self.is_by_library:  # it tells no launches unless asked
                found[AT[table]] = np.where(at == NULL, found["start_ns"], at)
            found["row"] = ties.rows(found, AT[table])
            found[AT[table]] = at
            kept &= found["row"] >= 0
            names.append("row")
        place = np.flatnonzero(kept)
        return {name: found[name] if len(place) == len(kept) else found[name][place] for name in names}

    def ops(self) -> tuple[Ops, Copies]:
        """Operations of the GPUs, kernels first, and what more is known of copies and sets."""
        gpus = {"gpu_uuid": self.gpus}
        of_process = ["process"] if self.is_by_library else []
        kernels = self._read("kernels", ("launch_start_ns", *of_process), gpus)
        memory: list[list[str]] = [[_PAGEABLE], [_PAGEABLE]]
        of_copy = {"copy_kind": list(_DIRECTIONS), "source_kind": memory[0], "destination_kind": memory[1]}
        copies = self._read(
            "memcpys", ("launch_start_ns", "bytes", "process", "correlation_id"), gpus | of_copy
        )
        sets = self._read("memsets", ("launch_start_ns", "bytes", *of_process), gpus)
        n, n_sets = len(kernels["row"]), len(sets["row"])
        names = ("row", *_SPAN, "launch_start_ns", "gpu_uuid")
        row, start, end, launch, gpu = (
            np.concatenate([one[name] for one in (kernels, copies, sets)]) for name in names
        )
        if self.is_by_library:
            process = np.concatenate([one["process"] for one in (kernels, copies, sets)])
            self.ran_in = _first(row, start, process, self.rows.num_rows)
        is_pageable = (copies["source_kind"] == 0) | (copies["destination_kind"] == 0)
        none = np.zeros(n_sets, np.int64)
        return Ops(row, start, end, launch, np.arange(len(row)) < n, gpu), Copies(
            row[n:],
            (end - start)[n:],
            np.concatenate([copies["bytes"], sets["bytes"]]),
            np.concatenate([copies["copy_kind"], none + ELSEWHERE]),
            np.concatenate([is_pageable, none > 0]),
            np.concatenate([_call(copies), none]),
        )

    def calls(self, copies: Copies) -> tuple[Calls, Int64s, Int64s]:
        """CUDA calls, and process and thread of each execution: of its range, else of its first call; -1: unknown.

        An asynchronous copy of pageable memory blocks as the blocking calls do.
        """
        classes = [*_KINDS, "blocking copy", "async copy"]
        process, thread = (
            pc.fill_null(self.rows[name], -1).to_numpy().copy() for name in ("process", "thread")
        )
        columns = ["process", "correlation_id", *(["thread"] if (process < 0).any() else [])]
        found = self._read("cuda_api", columns, {"call_class": classes})
        place = found["call_class"]
        kinds = np.array([*_KINDS.values(), *[OTHER] * (len(classes) - len(_KINDS))])
        blocks = (place == classes.index("blocking sync")) | (place == classes.index("blocking copy"))
        is_async = np.flatnonzero(place == classes.index("async copy"))
        call = _call({name: found[name][is_async] for name in ("process", "correlation_id")})
        blocks[is_async] = np.isin(call, copies.call[copies.is_pageable])
        calls = Calls(found["row"], found["start_ns"], found["end_ns"], kinds[place], blocks)
        if "thread" in found:
            lost = np.flatnonzero(process[calls.row] < 0)
            lost = lost[np.lexsort((calls.end_ns[lost], calls.start_ns[lost], calls.row[lost]))]
            row, first = np.unique(calls.row[lost], return_index=True)
            process[row], thread[row] = found["process"][lost[first]], found["thread"][lost[first]]
        return calls, process, thread

    def os_waits(
        self, process: Int64s, thread: Int64s, is_known: Bools, scope: Executions
    ) -> tuple[Int64s, Int64s, Int64s]:
        """Row, start and end of the OS-runtime calls of its thread that start in its half-open `scope`."""
        found = self._read("osrt", ("process", "thread"), {})
        row = np.full(len(found["start_ns"]), -1)
        known = np.flatnonzero(is_known)
        for one in np.unique(np.column_stack((process[known], thread[known])), axis=0):
            own = known[(process[known] == one[0]) & (thread[known] == one[1])]
            own = own[np.argsort(scope.start_ns[own], kind="stable")]
            mine = np.flatnonzero((found["process"] == one[0]) & (found["thread"] == one[1]))
            at = found["start_ns"][mine]
            place = np.searchsorted(scope.start_ns[own], at, side="right") - 1
            owner = own[np.maximum(place, 0)]
            row[mine] = np.where((place >= 0) & (at < scope.end_ns[owner]), owner, -1)
        kept = row >= 0
        return row[kept], found["start_ns"][kept], found["end_ns"][kept]


def _first(row: Int64s, at_ns: Int64s, values: Int64s, n_rows: int) -> Int64s:
    """Of each row its earliest value; -1 where it has none."""
    found = np.full(n_rows, -1)
    order = np.lexsort((values, at_ns, row))
    own, first = np.unique(row[order], return_index=True)
    found[own] = values[order[first]]
    return found


def _call(events: Columns) -> Int64s:
    """The call behind each event by number: process ids have 22 bits on Linux, CUPTI's correlation ids 32."""
    return np.asarray((events["process"] << 32) + events["correlation_id"])
