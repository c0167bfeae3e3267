"""A run as the kernel library would have recorded it, made of one that nsys recorded as a whole.

    asked for  holds                                  asked to end  nothing costs any more
    begun_ns ─ start_ns ══════════════════════════════ end_ns ───── done_ns
                  kernels and copies that begin and end in [begun_ns, done_ns) are in the tables

No ranges, no calls, no launches: operations, the batches that they belong to, and table `recordings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from squall.analysis.storage.manifest import OWN_FIELDS, Manifest
from squall.analysis.storage.nsys import DEVICE_TABLES
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.store import RunStore
from tests.planted_runs import as_table

Row = dict[str, Any]
DROPPED = ("nvtx", "cuda_api", "syncs", "osrt", "recordings")
UNKNOWN: Row = {"thread": None, "launch_start_ns": None, "launch_end_ns": None, "recorded_by": "library"}
KINDS = "kernels,copies"


def window(start_ns: int, end_ns: int, edge_ns: int = 0, kinds: str = KINDS) -> Row:
    """A recording that is asked for, and whose end is answered, `edge_ns` off what it holds."""
    return {
        "begun_ns": start_ns - edge_ns, "start_ns": start_ns, "end_ns": end_ns, "done_ns": end_ns + edge_ns,
        "n_processes": 1, "kinds": kinds,
    }  # fmt: skip


def windows_of(first_ns: int, last_ns: int, on_ns: int, period_ns: int, edge_ns: int = 0) -> list[Row]:
    """A window at the beginning of each period from `first_ns` on; the last is cut at `last_ns`."""
    return [
        window(at_ns + edge_ns, min(at_ns + on_ns, last_ns), edge_ns)
        for at_ns in range(first_ns, last_ns - edge_ns, period_ns)
    ]


def by_library(store: RunStore, parent: Path, windows: Mapping[str, Sequence[Row]]) -> RunStore:
    """The run in `store` in a new directory below `parent`, each server recorded in its `windows` alone."""
    own = {name: getattr(Manifest(), name) for name in OWN_FIELDS}
    manifest = replace(store.manifest, profiled_phases={}, **own)
    made = RunStore.create(parent, "windows", store.manifest.start_ns or 0, manifest)
    for table in store.tables():
        if table not in DROPPED and not TABLES[table].is_derived:
            rows = store.read(table).to_pylist()
            kept = [one for one in rows if table not in DEVICE_TABLES or _is_recorded(one, windows)]
            more = UNKNOWN if table in DEVICE_TABLES else {}
            if kept or table not in DEVICE_TABLES:
                _append(made, table, ({**one, **more} for one in kept))
    recordings = [
        {**one, "server": server, "node": store.manifest.servers[server].node, "phase": ""}
        for server, own in windows.items()
        for one in own
    ]
    _append(made, "recordings", recordings)
    if store.manifest.verdict is not None:
        made.seal(store.manifest.verdict)
    return made


def _is_recorded(op: Row, windows: Mapping[str, Sequence[Row]]) -> bool:
    own = windows.get(op["server"], ())
    return any(one["begun_ns"] <= op["start_ns"] and op["end_ns"] < one["done_ns"] for one in own)


def _append(store: RunStore, table: str, rows: Iterable[Row]) -> None:
    store.append(table, as_table(table, [{**row, "run": store.run} for row in rows]))
