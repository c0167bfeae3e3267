"""Events of an export are counted, in either form; a table that nsys left out is none."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.nsys_count import count_events

KINDS = [59, 59, 60, 75]


def test_an_sqlite_export_is_counted(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as connection:
        connection.execute("CREATE TABLE OSRT_API (start INTEGER)")
        connection.execute("CREATE TABLE NVTX_EVENTS (eventType INTEGER)")
        connection.executemany("INSERT INTO OSRT_API VALUES (?)", [(1,), (2,)])
        connection.executemany("INSERT INTO NVTX_EVENTS VALUES (?)", [(kind,) for kind in KINDS])
        connection.commit()
    assert count_events(tmp_path / "x.sqlite") == (2, 3)


def test_a_folder_of_parquet_files_is_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"start": [1, 2]}), tmp_path / "OSRT_API.parquet")
    pq.write_table(pa.table({"eventType": KINDS}), tmp_path / "NVTX_EVENTS.parquet")
    assert count_events(tmp_path) == (2, 3)


def test_tables_that_are_not_there_hold_no_events(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "x.sqlite").close()
    assert count_events(tmp_path / "x.sqlite") == (0, 0)
    assert count_events(tmp_path) == (0, 0)


def test_a_file_that_is_no_export_raises(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_text("not an export" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        count_events(tmp_path / "x.sqlite")
