"""Events of an export are counted, in either form; a table that nsys left out is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.analysis.nsys.count import count_events
from squall.scenarios.errors import AnalysisError
from tests.nsys_exports import MadeExport


def export() -> MadeExport:
    """Two OS-runtime calls and a row of another class, three ranges and a row of another type."""
    made = MadeExport().add(
        "OSRT_API", *({"start": i, "eventClass": kind} for i, kind in enumerate((27, 27, 31)))
    )
    return made.add(
        "NVTX_EVENTS", *({"start": i, "eventType": kind} for i, kind in enumerate((59, 59, 60, 75)))
    )


def test_an_sqlite_export_is_counted(tmp_path: Path) -> None:
    assert count_events(export().to_sqlite(tmp_path / "x.sqlite")) == (2, 3)


def test_a_folder_of_parquet_files_is_counted(tmp_path: Path) -> None:
    assert count_events(export().to_parquet(tmp_path / "x-parquet")) == (2, 3)


def test_a_version_without_classes_has_calls_alone(tmp_path: Path) -> None:
    made = MadeExport().add("OSRT_API", {"start": 1}, {"start": 2})
    assert count_events(made.to_sqlite(tmp_path / "x.sqlite")) == (2, 0)


def test_tables_that_are_not_there_hold_no_events(tmp_path: Path) -> None:
    assert count_events(MadeExport().to_sqlite(tmp_path / "x.sqlite")) == (0, 0)
    assert count_events(MadeExport().to_parquet(tmp_path / "x-parquet")) == (0, 0)


def test_what_is_no_export_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_text("not an export" * 100)
    with pytest.raises(AnalysisError, match="cannot read the nsys export"):
        count_events(tmp_path / "x.sqlite")
