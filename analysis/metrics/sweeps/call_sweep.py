"""CUDA calls by class: what the threads of an instance spent in each, within its batches and outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.metrics.measures import ratio
from squall.analysis.metrics.spans import PhaseSpan
from squall.analysis.metrics.sweeps.batches import Batches
from squall.analysis.metrics.sweeps.numbering import Numbering
from squall.analysis.storage.in_time import RowGroups
from squall.analysis.storage.store import RunStore

_COLUMNS = (
    "node", "process", "server", "instance", "instance_device", "batch_id", "call_class", "start_ns", "end_ns",
)  # fmt: skip
_ROOM = 1 << 12
"""Most classes of calls, and most phases: their numbers share a key."""


class CallSums:
    """Counts and ns of calls: by (group, class) within batches that count, by (process, phase, class) outside any."""

    def __init__(self, store: RunStore, batches: Batches, phases: Sequence[PhaseSpan]) -> None:
        self._groups = RowGroups(store, {"cuda_api": _COLUMNS})
        self._batches = batches
        self._starts = np.array([phase.wall_ns[0] for phase in phases], np.int64)
        self._ends = np.array([phase.wall_ns[1] for phase in phases], np.int64)
        self._owners, self._processes = Numbering(3), Numbering(2)
        self._within: dict[int, list[int]] = {}
        self._outside: dict[int, list[int]] = {}
        for _, rows in self._groups.tables():
            self._add(rows)

    def _add(self, rows: dict[str, Int64s]) -> None:
        length = rows["end_ns"] - rows["start_ns"]
        owner = self._owners.encode((rows["server"], rows["instance"], rows["instance_device"]))
        batch = self._batches.locate(self._instance_of_owner()[owner], rows["batch_id"])
        group = self._batches.group_of(batch)
        is_whole = length >= 0
        is_within = is_whole & (group >= 0)
        _count(self._within, group[is_within] * _ROOM + rows["call_class"][is_within], length[is_within])
        if not len(self._starts):
            return
        phase = np.searchsorted(self._starts, rows["start_ns"], side="right") - 1
        is_outside = is_whole & (batch < 0) & (phase >= 0) & (rows["start_ns"] < self._ends[phase])
        process = self._processes.encode((rows["node"], rows["process"]))
        key = (process * _ROOM + phase) * _ROOM + rows["call_class"]
        _count(self._outside, key[is_outside], length[is_outside])

    def _instance_of_owner(self) -> Int64s:
        names = self._groups.texts.names()
        places = [
            self._batches.places.get((names[server], names[instance], device), -1)
            for server, instance, device in self._owners.rows.tolist()
        ]
        return np.array(places, np.int64)

    def within(self, group: int) -> dict[str, tuple[int, int]]:
        """(n, ns) by class of the calls of the group's batches."""
        names = self._groups.texts.names()
        return {names[key % _ROOM]: (n, ns) for key, (n, ns) in self._within.items() if key // _ROOM == group}

    def outside(self, processes: Sequence[tuple[str, int]], phase: int) -> dict[str, tuple[int, int]]:
        """(n, ns) by class of calls of `processes` (node, process) that belong to no batch and start in the phase."""
        names = self._groups.texts.names()
        wanted = set(processes)
        numbers = {
            number
            for number, (node, process) in enumerate(self._processes.rows.tolist())
            if (names[node], process) in wanted
        }
        found: dict[str, tuple[int, int]] = {}
        for key, (n, ns) in self._outside.items():
            owner, name = key // _ROOM, names[key % _ROOM]
            if owner // _ROOM in numbers and owner % _ROOM == phase:
                before = found.get(name, (0, 0))
                found[name] = before[0] + n, before[1] + ns
        return found


def _count(sums: dict[int, list[int]], keys: Int64s, length_ns: Int64s) -> None:
    found, place = np.unique(keys, return_inverse=True)
    n = np.bincount(place, minlength=len(found))
    total = np.zeros(len(found), np.int64)
    np.add.at(total, place, length_ns)
    for key, count, ns in zip(found.tolist(), n.tolist(), total.tolist(), strict=True):
        one = sums.setdefault(key, [0, 0])
        one[0] += count
        one[1] += ns


@dataclass(frozen=True)
class CallClass:
    """Calls of one class within the batches of an instance; `…outside…`: of its processes, outside any batch."""

    call_class: str
    n: int
    ns: int
    n_outside: int
    outside_ns: int
    per_batch_count: float | None
    of_api_ratio: float | None
    of_exec_ratio: float | None
    of_wall_ratio: float | None


@dataclass(frozen=True)
class CallFigures:
    """Calls of an instance by class, most time first, and its blocking split: waits by name against copies of pageable
    memory. `api_ns`: time of all calls."""

    api_ns: int
    classes: tuple[CallClass, ...]
    explicit_wait_of_exec_ratio: float | None
    pageable_copy_of_exec_ratio: float | None


def call_figures(
    within: Mapping[str, tuple[int, int]],
    outside: Mapping[str, tuple[int, int]],
    sums: Mapping[str, Any],
    wall_ns: int | None,
) -> CallFigures:
    """Shares of each class of calls: in the time of all calls, in the time of the batches, in the wall.

    `sums`: over the batches of the instance, see `squall.analysis.metrics.figures.batch_figures.batch_sums`.
    """
    total_ns = sum(ns for _, ns in (*within.values(), *outside.values()))
    exec_ns, blocked_ns = sums["tied_exec_ns"], sums["blocked_ns"]
    rows = []
    for name in sorted({*within, *outside}):
        n, ns = within.get(name, (0, 0))
        n_outside, outside_ns = outside.get(name, (0, 0))
        one = CallClass(
            call_class=name,
            n=n,
            ns=ns,
            n_outside=n_outside,
            outside_ns=outside_ns,
            per_batch_count=ratio(n, sums["n_tied"]),
            of_api_ratio=ratio(ns + outside_ns, total_ns),
            of_exec_ratio=ratio(ns, exec_ns),
            of_wall_ratio=ratio(ns + outside_ns, wall_ns),
        )
        rows.append(one)
    explicit_ns, copy_ns = (within.get(name, (0, 0))[1] for name in ("blocking sync", "blocking copy"))
    hidden_ns = None if blocked_ns is None else blocked_ns - explicit_ns - copy_ns
    return CallFigures(
        api_ns=total_ns,
        classes=tuple(sorted(rows, key=lambda row: -row.ns - row.outside_ns)),
        explicit_wait_of_exec_ratio=ratio(explicit_ns, exec_ns),
        pageable_copy_of_exec_ratio=ratio(hidden_ns, exec_ns),
    )
