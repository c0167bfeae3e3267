"""What every form of an nsys export gives of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from squall.analysis.nsys import source
from squall.analysis.nsys.source import Export, open_export
from squall.scenarios.errors import AnalysisError
from tests.nsys_exports import GLOBAL_TID, MadeExport, api_call

N_CALLS = 50


def made() -> MadeExport:
    """Calls, some without a label, with ids above int64; and a word that is no number."""
    export = MadeExport().strings(s1="cudaLaunchKernel")
    high = (0xFF << 56 | GLOBAL_TID) - 2**64
    calls = [
        {**api_call(i, i + 1, i, tid=high), "label": f"größe {i}" if i % 3 else None, "note": i or None}
        for i in range(N_CALLS)
    ]
    return export.add("CUPTI_ACTIVITY_KIND_RUNTIME", *calls).add(
        "WORDS", {"start": "soon"}, {"start": "late"}
    )


@pytest.fixture(params=["sqlite", "parquet"])
def export(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Export]:
    """Read in pieces of a few rows."""
    monkeypatch.setattr(source, "ROWS_AT_A_TIME", 7)
    monkeypatch.setattr(source, "_VALUES_AT_A_TIME", 8)
    is_folder = request.param == "parquet"
    path = made().to_parquet(tmp_path / "made") if is_folder else made().to_sqlite(tmp_path / "made.sqlite")
    with open_export(path) as opened:
        yield opened


def test_tables_and_columns_are_told_by_name(export: Export) -> None:
    names = ("CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds", "TARGET_INFO_SESSION_START_TIME", "WORDS")
    assert export.tables() == names
    assert set(export.columns("StringIds")) == {"id", "value"}
    assert export.columns("NO_SUCH_TABLE") == ()


def test_rows_come_in_pieces_of_bounded_size_as_numbers_and_texts_in_the_order_asked_for(
    export: Export,
) -> None:
    pieces = list(export.read("CUPTI_ACTIVITY_KIND_RUNTIME", ["start", "globalTid", "note"], ["label"]))
    assert all(piece.num_rows > 0 for piece in pieces)
    assert len(pieces) > 1
    for piece in pieces:
        assert piece.column_names == ["start", "globalTid", "note", "label"]
        assert piece.schema.types == [pa.int64(), pa.int64(), pa.int64(), pa.string()]
    rows = pa.concat_tables(pieces).to_pylist()
    if rows[0]["start"]:  # as made for Parquet: the last first
        rows.reverse()
    assert [row["start"] for row in rows] == list(range(N_CALLS))
    assert {row["globalTid"] for row in rows} == {(0xFF << 56 | GLOBAL_TID) - 2**64}
    assert [row["label"] for row in rows] == [f"größe {i}" if i % 3 else None for i in range(N_CALLS)]
    assert [row["note"] for row in rows] == [i or None for i in range(N_CALLS)]


def test_what_is_no_text_is_null_and_what_is_no_number_is_refused(export: Export) -> None:
    ((texts,),) = [list(export.read("TARGET_INFO_SESSION_START_TIME", [], ["utcEpochNs"]))]
    assert texts.to_pylist() == [{"utcEpochNs": None}]
    with pytest.raises(AnalysisError, match=r"WORDS.start holds something that is no whole number"):
        list(export.read("WORDS", ["start"], []))
