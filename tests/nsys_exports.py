"""nsys exports made of rows, in either form that nsys writes."""

from __future__ import annotations

import io
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import scrub
from squall.analysis.nsys.tables import Clock, EventLabels, event_tables
from squall.analysis.storage.clock_track import ClockTrack

UTC_START_NS = 1_795_250_252_713_561_538
PID, TID = 0xABCDEF, 0xFEDCBA  # all 24 bits in use
GLOBAL_PID = (1 << 56) | (PID << 24)
GLOBAL_TID = GLOBAL_PID | TID

LABELS = EventLabels("run-1", "node-1", "server-0")
NO_OFFSET = ClockTrack.constant(0)

Row = dict[str, Any]


@dataclass
class MadeExport:
    """Rows of each table by nsys's names; a column that a row lacks is null."""

    tables: dict[str, list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables.setdefault("TARGET_INFO_SESSION_START_TIME", [{"utcEpochNs": UTC_START_NS}])

    def add(self, table: str, *rows: Row) -> MadeExport:
        self.tables.setdefault(table, []).extend(rows)
        return self

    def strings(self, **ids: str) -> MadeExport:
        """`s7="text"` is the string of id 7."""
        return self.add("StringIds", *({"id": int(key[1:]), "value": text} for key, text in ids.items()))

    def to_sqlite(self, path: Path) -> Path:
        with closing(sqlite3.connect(path)) as file:
            for table, rows in self.tables.items():
                names = list(dict.fromkeys(name for row in rows for name in row))
                columns = ", ".join(f'"{name}"' for name in names)
                file.execute(f"CREATE TABLE {table} ({columns})")
                marks = ", ".join("?" * len(names))
                file.executemany(
                    f"INSERT INTO {table} ({columns}) VALUES ({marks})",
                    [[row.get(name) for name in names] for row in rows],
                )
            file.commit()
        return path

    def to_parquet(self, folder: Path) -> Path:
        """As `parquetdir` might: ids unsigned, texts as dictionaries, rows in any order."""
        folder.mkdir()
        for table, rows in self.tables.items():
            names = list(dict.fromkeys(name for row in rows for name in row))
            arrays = [_parquet_column(name, [row.get(name) for row in reversed(rows)]) for name in names]
            pq.write_table(pa.table(arrays, names=names), folder / f"{table}.parquet")
        return folder

    def write(self, parent: Path, form: str = "sqlite") -> Path:
        """In the `form` sqlite or parquet, below `parent`."""
        path = parent / f"made.{form}"
        return self.to_parquet(path) if form == "parquet" else self.to_sqlite(path)

    def report(self, parent: Path, form: str = "sqlite") -> NsysReport:
        """Scrubbed."""
        scrub(self.write(parent, form), parent / "scrubbed")
        return NsysReport(parent / "scrubbed")


def tables_of(report: NsysReport, clock: Clock = NO_OFFSET, **options: Any) -> dict[str, pa.Table]:
    """Our tables of the report by name, each whole; `options` are those of `event_tables`."""
    pieces: dict[str, list[pa.Table]] = {}
    for name, rows in event_tables(report, LABELS, clock, **options):
        pieces.setdefault(name, []).append(rows)
    return {name: pa.concat_tables(rows).unify_dictionaries() for name, rows in pieces.items()}


def _parquet_column(name: str, values: list[Any]) -> pa.Array:
    if any(isinstance(value, str) for value in values):
        return pa.array([None if v is None else str(v) for v in values]).dictionary_encode()
    if name.startswith("global"):
        return pa.array([None if v is None else v % 2**64 for v in values], pa.uint64())
    return pa.array(values)


def api_call(start: int, end: int, cid: int, name: int = 1, tid: int = GLOBAL_TID, kind: int = 0) -> Row:
    return {
        "start": start, "end": end, "eventClass": kind, "globalTid": tid, "correlationId": cid, "nameId": name,
        "returnValue": 0,
    }  # fmt: skip


def on_gpu(start: int, end: int, cid: int, pid: int = GLOBAL_PID, **more: Any) -> Row:
    return {
        "start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": cid,
        "globalPid": pid, **more,
    }  # fmt: skip


def kernel(start: int, end: int, cid: int, pid: int = GLOBAL_PID, **more: Any) -> Row:
    sizes = {"gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
    own = {
        "shortName": 5, "demangledName": 6, "registersPerThread": 32, "staticSharedMemory": 0,
        "dynamicSharedMemory": 0,
    }  # fmt: skip
    return on_gpu(start, end, cid, pid, **(sizes | own | more))


def nvtx(text: str | None, start: int, end: int | None, tid: int = GLOBAL_TID, **more: Any) -> Row:
    return {"start": start, "end": end, "eventType": 59, "text": text, "globalTid": tid, **more}


def all_bytes(data: pa.Table) -> bytes:
    """Every value and all metadata of `data`, uncompressed."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, data.schema) as stream:
        stream.write_table(data)
    return sink.getvalue()
