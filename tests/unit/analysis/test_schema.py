from __future__ import annotations

import pyarrow as pa
import pytest

from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.schema import TABLES, arrow_schema, markdown, sections


def test_the_page_has_every_table_and_section_of_the_manifest() -> None:
    headings = [line.removeprefix("## ") for line in markdown().splitlines() if line.startswith("## ")]
    assert headings[: len(TABLES)] == [f"`{table}`" for table in TABLES]
    assert headings[len(TABLES) :] == ["manifest.json", *(one.__name__ for one in sections(Manifest)[1:])]


@pytest.mark.parametrize("table", list(TABLES))
def test_a_table_names_each_column_once_and_states_its_unit_and_meaning(table: str) -> None:
    columns = TABLES[table].columns
    assert len({column.name for column in columns}) == len(columns)
    for column in columns:
        assert column.unit, column.name
        assert column.meaning, column.name
        is_time = column.unit in ("instant", "ns")
        assert not is_time or (column.type == pa.int64() and column.name.endswith("_ns")), column.name


def test_joined_begins_with_all_columns_of_requests() -> None:
    requests = arrow_schema("requests").names
    assert arrow_schema("joined").names[: len(requests)] == requests
