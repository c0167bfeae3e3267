"""How many events of a kind an export of nsys holds, whichever form it has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

_OSRT, _NVTX = "OSRT_API", "NVTX_EVENTS"
_RANGES = (59, 60)
"""eventType of push/pop and start/end ranges (nsys's ENUM_NSYS_EVENT_TYPE); others name domains and threads."""


class EventCounts(NamedTuple):
    """OS-runtime calls, and NVTX ranges."""

    n_osrt: int
    n_nvtx: int


def count_events(export: Path) -> EventCounts:
    """Of a folder of Parquet files or an SQLite file; 0 without the table, which nsys leaves out when it is empty.

    Raises OSError or the library's error for a file that is no export.
    """
    return _in_parquet(export) if export.is_dir() else _in_sqlite(export)


def _in_parquet(folder: Path) -> EventCounts:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    n_osrt = sum(pq.read_metadata(part).num_rows for part in folder.glob(f"{_OSRT}*.parquet"))
    n_nvtx = 0
    for part in folder.glob(f"{_NVTX}*.parquet"):
        kinds = pq.read_table(part, columns=["eventType"]).column("eventType")
        n_nvtx += sum(pc.sum(pc.equal(kinds, kind)).as_py() or 0 for kind in _RANGES)
    return EventCounts(n_osrt, n_nvtx)


def _in_sqlite(file: Path) -> EventCounts:
    import sqlite3

    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}

        def count(table: str, condition: str) -> int:
            if table not in tables:
                return 0
            return int(connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()[0])

        return EventCounts(count(_OSRT, "true"), count(_NVTX, f"eventType IN {_RANGES}"))
