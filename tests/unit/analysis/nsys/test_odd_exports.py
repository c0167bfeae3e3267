"""SQLite files that are no exports of nsys, though they say so."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from squall.analysis.nsys.source import SqliteExport, open_export
from squall.scenarios.errors import AnalysisError
from tests.nsys_exports import MadeExport


def made(path: Path, *statements: str) -> Path:
    MadeExport().strings(s1="a").to_sqlite(path)
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()
    return path


def test_a_view_and_a_table_that_a_module_computes_are_no_tables(tmp_path: Path) -> None:
    path = made(
        tmp_path / "a.sqlite", "CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start",
        "CREATE VIRTUAL TABLE OSRT_API USING rtree(a,b,c)",
    )  # fmt: skip
    with open_export(path) as export:
        assert export.columns("NVTX_EVENTS") == export.columns("OSRT_API") == ()
        assert not {"NVTX_EVENTS", "OSRT_API"} & set(export.tables())
        assert export.columns("StringIds") == ("id", "value")


@pytest.mark.parametrize("value", ["'text'", "1.5", "x'00'"])
def test_a_number_that_is_none_is_told_in_one_line(tmp_path: Path, value: str) -> None:
    path = made(tmp_path / "a.sqlite", f"INSERT INTO StringIds VALUES ({value}, 'b')")
    told = "the nsys export's StringIds.id holds something that is no whole number"
    with open_export(path) as export, pytest.raises(AnalysisError, match=told):
        list(export.read("StringIds", ["id"], ["value"]))


def test_a_value_larger_than_any_of_nsys_is_told_in_one_line(tmp_path: Path) -> None:
    path = made(tmp_path / "a.sqlite", "INSERT INTO StringIds VALUES (2, zeroblob(20000000))")
    with (
        pytest.raises(AnalysisError, match=r"cannot read the nsys export a.sqlite: string or blob too big"),
        open_export(path) as export,
    ):
        list(export.read("StringIds", ["id"], ["value"]))


def test_pages_in_circles_end_with_more_rows_than_bytes(tmp_path: Path) -> None:
    """The root of the table names one page of rows again and again."""
    rows = ", ".join(f"({number}, '')" for number in range(3_000))
    path = made(tmp_path / "a.sqlite", f"INSERT INTO StringIds VALUES {rows}")
    with closing(sqlite3.connect(path)) as file:
        (root,) = file.execute("SELECT rootpage FROM sqlite_master WHERE name = 'StringIds'").fetchone()
        (size,) = file.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    page = (root - 1) * size
    assert data[page] == 5, "a page that names others"
    child = int.from_bytes(data[page + 12 : page + 13], "big") << 8 | data[page + 13]
    cell = data[page + child : page + child + 4] + b"\x01"
    n_cells = (size - 8) // 6  # the most that SQLite takes
    data[page + 3 : page + 5] = n_cells.to_bytes(2, "big")
    data[page + size - 5 : page + size] = cell
    for number in range(n_cells):
        data[page + 12 + 2 * number : page + 14 + 2 * number] = (size - 5).to_bytes(2, "big")
    path.write_bytes(data)
    with closing(SqliteExport(path)) as export, pytest.raises(AnalysisError, match="more rows than bytes"):
        list(export.read("StringIds", ["id"], ["value"]))
