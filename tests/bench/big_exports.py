"""SQLite exports of any size: the real one of an H200 in tests/fixtures, its events repeated one after the other."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

REAL = Path(__file__).parents[1] / "fixtures" / "h200" / "two_heads.nsys.sqlite.xz"
KERNELS = 54_742
"""Kernels of the real export; it has 145,823 CUDA API calls, 91,575 OS-runtime calls and 8,289 copies and sets."""
_SHIFTED = {
    "start": "start + n * $span_ns",
    "end": '"end" + n * $span_ns',
    "correlationId": "correlationId + n * $n_ids",
}
"""What the columns are in which a repeat differs from the one before."""
_REPEATS = """WITH RECURSIVE repeats(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM repeats WHERE n + 1 < $n_repeats)
SELECT n FROM repeats"""
_EVENTS = (
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "OSRT_API",
    "NVTX_EVENTS",
)


def write_big_export(path: Path, n_repeats: int) -> Path:
    """The real export with its events `n_repeats` times, about 22 MB each; its `execute` ranges are named as ours."""
    path.write_bytes(lzma.decompress(REAL.read_bytes()))
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA journal_mode = OFF")
        file.execute("PRAGMA synchronous = OFF")
        runtime = "CUPTI_ACTIVITY_KIND_RUNTIME"
        (n_ids,) = file.execute(f"SELECT max(correlationId) + 1 FROM {runtime}").fetchone()
        (span_ns,) = file.execute("SELECT max(end) + 1000000 FROM NVTX_EVENTS").fetchone()
        numbers = {"span_ns": span_ns, "n_ids": n_ids, "n_repeats": n_repeats}
        for table in _EVENTS:
            file.execute(f"ALTER TABLE {table} RENAME TO one")
            file.execute(_creation(file, table))
            columns = [row[1] for row in file.execute("PRAGMA table_info(one)")]
            values = ", ".join(_SHIFTED.get(name, f'"{name}"') for name in columns)
            file.execute(f"INSERT INTO {table} SELECT {values} FROM ({_REPEATS}) CROSS JOIN one", numbers)
            file.execute("DROP TABLE one")
        ours = "'squall|m_' || ((globalTid >> 24) & 16777215) || '|' || rowid"
        file.execute(f"UPDATE NVTX_EVENTS SET text = {ours} WHERE text = 'execute'")
        file.commit()
    return path


def _creation(file: sqlite3.Connection, table: str) -> str:
    """The statement that makes `table`, now named `one`, once more."""
    (statement,) = file.execute("SELECT sql FROM sqlite_master WHERE name = 'one'").fetchone()
    return str(statement).replace('"one"', table, 1)
