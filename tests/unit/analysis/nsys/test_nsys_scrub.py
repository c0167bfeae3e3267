"""What leaves a node of an export: nothing that is not allowed, every event; one line where the export is broken."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import count_events, scrub
from squall.scenarios.errors import AnalysisError
from tests.nsys_exports import MadeExport, Row, all_bytes, api_call, kernel, on_gpu, tables_of

SECRETS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("secrets.yaml").read_text())
NEEDLES = (b"hunter2", "hunter2".encode("utf-16-le"))
FORMS = pytest.mark.parametrize("form", ["sqlite", "parquet"])


def leaked(folder: Path) -> set[str]:
    """Tables of `folder` in which a secret stands, raw or decompressed."""
    contents = {
        path.stem: path.name.encode() + path.read_bytes() + all_bytes(pq.read_table(path))
        for path in folder.rglob("*")
    }
    return {table for table, content in contents.items() if any(needle in content for needle in NEEDLES)}


@FORMS
def test_no_secret_leaves_and_events_and_safe_names_stay(form: str, tmp_path: Path) -> None:
    kept = SECRETS["kept"]
    folder = tmp_path / "scrubbed"
    scrubbed = scrub(MadeExport(dict(SECRETS["export"])).write(tmp_path, form), folder)
    assert leaked(folder) == set()
    assert (scrubbed.rows, list(scrubbed.dropped_tables)) == (kept["rows"], kept["dropped_tables"])
    report = NsysReport(folder)
    assert report.strings() == kept["strings"]
    ranges = pq.read_table(folder / "NVTX_EVENTS.parquet")["text"].to_pylist()
    assert sorted(text or "" for text in ranges) == kept["ranges"]
    assert pq.read_table(folder / "DIAGNOSTIC_EVENT.parquet").to_pylist() == kept["diagnostics"]
    tables = tables_of(report)
    assert {name: rows.num_rows for name, rows in tables.items()} == kept["tables"]
    assert not any(needle in all_bytes(rows) for rows in tables.values() for needle in NEEDLES)
    with pytest.raises(AnalysisError, match="scrubbed is there already"):
        scrub(tmp_path / f"made.{form}", folder)


def test_the_search_finds_what_was_planted(tmp_path: Path) -> None:
    assert leaked(MadeExport(dict(SECRETS["export"])).to_parquet(tmp_path / "made")) == set(
        SECRETS["planted"]
    )


def altered(path: Path, *statements: str) -> Path:
    """An SQLite export with one string, changed by SQL."""
    MadeExport().strings(s1="a").to_sqlite(path)
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def torn_sqlite(folder: Path) -> Path:
    rows = ({"id": number, "value": "text" * 10} for number in range(500))
    path = MadeExport().add("StringIds", *rows).write(folder)
    cut(path)
    return path


def torn_parquet(folder: Path) -> Path:
    path = MadeExport(dict(SECRETS["export"])).to_parquet(folder / "export")
    cut(path / "NVTX_EVENTS.parquet")
    return path


def text(folder: Path) -> Path:
    (folder / "export").write_text("not a database, though it is long enough to be read as one" * 20)
    return folder / "export"


def of_others(folder: Path) -> Path:
    export = MadeExport({"OTHER": [{"a": 1}]})
    del export.tables["TARGET_INFO_SESSION_START_TIME"]
    return export.write(folder)


def pages_in_circles(folder: Path) -> Path:
    """The root of the table names one page of rows again and again."""
    rows = ", ".join(f"({number}, '')" for number in range(3_000))
    path = altered(folder / "export", f"INSERT INTO StringIds VALUES {rows}")
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
    return path


def with_string(value: str) -> Callable[[Path], Path]:
    return lambda folder: altered(folder / "export", f"INSERT INTO StringIds VALUES ({value})")


def with_word(form: str) -> Callable[[Path], Path]:
    rows: list[Row] = [on_gpu("hunter2", 1, 2)]  # type: ignore[arg-type]
    return lambda folder: MadeExport().add("CUPTI_ACTIVITY_KIND_MEMSET", *rows).write(folder, form)


NO_NUMBER = r"StringIds\.id holds something that is no whole number"
NO_START = r"MEMSET\.start holds something that is no whole number"
BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "none": (lambda folder: folder / "none.sqlite", r"there is no nsys export none\.sqlite"),
    "torn SQLite file": (torn_sqlite, r"cannot read the nsys export made\.sqlite"),
    "torn Parquet file": (torn_parquet, "cannot read the nsys export export"),
    "text": (text, "cannot read the nsys export export: file is not a database"),
    "of others": (of_others, "has none of the tables of nsys"),
    "text for a number": (with_string("'text', 'b'"), NO_NUMBER),
    "fraction for a number": (with_string("1.5, 'b'"), NO_NUMBER),
    "bytes for a number": (with_string("x'00', 'b'"), NO_NUMBER),
    "word for an instant": (with_word("sqlite"), NO_START),
    "word for an instant in Parquet": (with_word("parquet"), NO_START),
    "a value larger than any of nsys": (with_string("2, zeroblob(20000000)"), "string or blob too big"),
    "pages in circles": (pages_in_circles, "more rows than bytes"),
}


@pytest.mark.parametrize(("make", "words"), BROKEN.values(), ids=BROKEN)
def test_a_broken_export_is_one_line_and_leaves_nothing(
    make: Callable[[Path], Path], words: str, tmp_path: Path
) -> None:
    with pytest.raises(AnalysisError, match=words) as failed:
        scrub(make(tmp_path), tmp_path / "scrubbed")
    assert not [one for one in ("\n", "hunter2", str(tmp_path)) if one in str(failed.value)]
    assert not list(tmp_path.glob("scrubbed*"))


def test_a_view_and_a_table_that_a_module_computes_are_no_tables(tmp_path: Path) -> None:
    path = altered(
        tmp_path / "a.sqlite", "CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start",
        "CREATE VIRTUAL TABLE OSRT_API USING rtree(a,b,c)",
    )  # fmt: skip
    assert scrub(path, tmp_path / "scrubbed").rows.keys() == {"TARGET_INFO_SESSION_START_TIME", "StringIds"}


def test_a_sqlite_file_cut_anywhere_is_refused_or_whole(tmp_path: Path) -> None:
    """SQLite reads pages on demand: what lies behind the cut must not be taken for absent."""
    export = MadeExport().strings(s1="cudaLaunchKernel_v7000", s5="gemm", s6="gemm<1>")
    export.add("CUPTI_ACTIVITY_KIND_RUNTIME", *(api_call(i, i + 1, i) for i in range(200)))
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", *(kernel(i, i + 1, i) for i in range(200)))
    path = export.to_sqlite(tmp_path / "made.sqlite")
    content, whole = path.read_bytes(), scrub(path, tmp_path / "whole").rows
    n_refused = 0
    for n_bytes in (0, 15, 99, *range(512, len(content), 1024), len(content) - 1):
        path.write_bytes(content[:n_bytes])
        try:
            assert scrub(path, tmp_path / f"cut-{n_bytes}").rows == whole
        except AnalysisError:
            n_refused += 1
    assert n_refused >= len(content) // 1024 - 2  # the last page may end in bytes that hold nothing


@FORMS
@pytest.mark.parametrize(
    ("tables", "counts"),
    [
        ({}, (0, 0)),
        ({"OSRT_API": [{"start": 1}, {"start": 2}]}, (2, 0)),  # a version that tells no classes
        ({"OSRT_API": [{"eventClass": 27}, {"eventClass": 27}, {"eventClass": 31}],
          "NVTX_EVENTS": [{"eventType": 59}, {"eventType": 59}, {"eventType": 60}, {"eventType": 75}]}, (2, 3)),
    ],
)  # fmt: skip
def test_events_of_an_export_are_counted(
    tables: dict[str, list[Row]], counts: tuple[int, int], form: str, tmp_path: Path
) -> None:
    assert count_events(MadeExport(dict(tables)).write(tmp_path, form)) == counts
