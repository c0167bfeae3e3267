"""The batches of a run as arrays, and which of them count towards which phase and instance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from squall.analysis.arrays import Int64s
from squall.analysis.metrics.measures import instance_key
from squall.analysis.metrics.sweeps.numbering import present
from squall.analysis.recorded import TABLE as WINDOWS
from squall.analysis.storage.row_groups import NULL
from squall.analysis.tables.nsys import DEVICE_TABLES

if TYPE_CHECKING:
    import duckdb


_BATCHES = """
SELECT server, instance, instance_device, model, node, phase, batch_id, start_ns, end_ns, process,
    coalesce(overrun_ns, 0) > 0 AS is_overrun, {is_cut} AS is_cut
FROM batch_costs ORDER BY server, instance, instance_device, model, batch_id
"""
_CUT = f"tie = 'none' AND server IN (SELECT server FROM {WINDOWS})"
"""A batch that no window of its server holds: operations of it that were recorded all the same are a part of them."""
_KEY = "server, instance, instance_device, batch_id"
_LAST_STARTS = f"""
SELECT {_KEY}, max(o.start_ns)
FROM ({{ops}}) o JOIN (SELECT {_KEY} FROM batch_costs WHERE overrun_ns > 0 AND tie = 'range') USING ({_KEY})
GROUP BY ALL
"""
_STARTS = f"SELECT {_KEY}, start_ns FROM {{table}} WHERE end_ns >= start_ns"


class Instance(NamedTuple):
    """A model instance; `instance` is empty where only Triton's trace tells of its batches."""

    server: str
    instance: str
    device: int
    model: str
    node: str

    @property
    def key(self) -> str:
        return instance_key(self.server, self.instance, self.device, self.model)


class Group(NamedTuple):
    """What instance figures are of: an instance in a phase."""

    phase: str
    instance: Instance


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of a run, a row each, in order of instance and batch id."""

    groups: list[Group]
    instances: list[Instance]
    first_row: Int64s
    """Where the rows of each instance begin; one more at the end."""
    batch_id: Int64s
    start_ns: Int64s
    end_ns: Int64s
    group: Int64s
    """Row of `groups`; -1 where the batch does not count."""
    whole: Int64s
    """The same; -1 too where an edge of a recording cuts the batch, so that its operations do not count."""
    process: Int64s
    """Process that executed it; `NULL` if not profiled."""
    closed_ns: Int64s
    """None of its operations starts later than this."""

    @cached_property
    def _padded(self) -> Int64s:
        return np.append(self.whole, np.int64(-1))

    @cached_property
    def places(self) -> dict[tuple[str, str, int], int]:
        """Row of `instances` by server, instance and its device, as events name them."""
        return {(one.server, one.instance, one.device): row for row, one in enumerate(self.instances)}

    def group_of(self, row: Int64s) -> Int64s:
        """Group of the operations of each row (`whole`); -1 for row -1."""
        found: Int64s = self._padded[row]
        return found

    def locate(self, instance: Int64s, batch_id: Int64s) -> Int64s:
        """Row of each (row of `instances`, batch id); -1 where there is none, and for instance -1."""
        found = np.full(len(batch_id), -1, np.int64)
        for one in present(instance):
            is_own = instance == one
            found[is_own] = self._locate_in(one, batch_id[is_own])
        return found

    def _locate_in(self, instance: int, wanted: Int64s) -> Int64s:
        first, last = int(self.first_row[instance]), int(self.first_row[instance + 1])
        ids = self.batch_id[first:last]
        guess = np.clip(wanted - ids[0], 0, len(ids) - 1)  # ids mostly count without a hole
        is_so = ids[guess] == wanted
        if is_so.all():
            return np.asarray(first + guess, np.int64)
        place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        found: Int64s = np.where(ids[place] == wanted, first + place, -1)
        return found


def read_batches(
    connection: duckdb.DuckDBPyConnection, tables: Collection[str], phases: Sequence[str]
) -> Batches:
    """The batches in view `batch_costs`; those that began in one of `phases` count.

    `tables`: those that the run has; the connection has views of its operations.
    """
    is_cut = _CUT if WINDOWS in tables else "false"
    found = connection.sql(_BATCHES.format(is_cut=is_cut)).to_arrow_table()
    texts = {name: found[name].to_pylist() for name in ("server", "instance", "model", "node", "phase")}
    devices = found["instance_device"].to_pylist()
    keys = zip(texts["server"], texts["instance"], devices, texts["model"], texts["node"], strict=True)
    places: dict[tuple[str, str, int, str, str], int] = {}
    instance = np.array([places.setdefault(key, len(places)) for key in keys], np.int64)
    instances = [Instance(*key) for key in places]
    phase_code = {phase: place for place, phase in enumerate(phases)}
    phase = np.array([phase_code.get(name, -1) for name in texts["phase"]], np.int64)
    pair = np.where(phase >= 0, phase * max(1, len(instances)) + instance, -1)
    pairs = np.unique(pair[pair >= 0])
    group = np.where(pair >= 0, np.searchsorted(pairs, pair), -1)
    n = max(1, len(instances))
    groups = [Group(list(phases)[int(one) // n], instances[int(one) % n]) for one in pairs]
    whole = np.where(found["is_cut"].to_numpy(), -1, group)
    process = found["process"].fill_null(NULL).to_numpy()
    batches = Batches(
        groups, instances, np.searchsorted(instance, np.arange(len(instances) + 1)),
        found["batch_id"].to_numpy(), found["start_ns"].to_numpy(), found["end_ns"].to_numpy(), group, whole,
        np.asarray(process, np.int64), found["end_ns"].to_numpy().copy(),
    )  # fmt: skip
    if bool(found["is_overrun"].to_numpy().any()):
        _close_late(connection, tables, batches)
    return batches


def _close_late(connection: duckdb.DuckDBPyConnection, tables: Collection[str], batches: Batches) -> None:
    """Puts off `closed_ns` of batches whose operations outlive them to the last start of one."""
    queries = [_STARTS.format(table=table) for table in DEVICE_TABLES if table in tables]
    if not queries:
        return
    places = batches.places
    rows = connection.execute(_LAST_STARTS.format(ops=" UNION ALL ".join(queries))).fetchall()
    for server, instance, device, batch_id, last_ns in rows:
        at = batches.locate(np.array([places[server, instance, device]]), np.array([batch_id]))[0]
        batches.closed_ns[at] = max(batches.closed_ns[at], last_ns)
