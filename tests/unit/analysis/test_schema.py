from __future__ import annotations

import pyarrow as pa
import pytest

from squall.analysis.schema import TABLES, arrow_schema, markdown, sections
from squall.analysis.tables.manifest import Manifest


def test_the_page_has_every_table_and_section_of_the_manifest() -> None:
    headings = [line.removeprefix("## ") for line in markdown().splitlines() if line.startswith("## ")]
    assert headings[: len(TABLES)] == [f"`{table}`" for table in TABLES]
    assert headings[len(TABLES) :] == ["manifest.json", *(one.__name__ for one in sections(Manifest)[1:])]


@pytest.mark.parametrize("table", list(TABLES))
def test_a_table_names_each_column_once_and_states_unit_and_meaning(table: str) -> None:
    schema = arrow_schema(table)
    assert len(set(schema.names)) == len(schema.names)
    for field in schema:
        assert field.metadata[b"unit"]
        assert field.metadata[b"meaning"]


@pytest.mark.parametrize("table", list(TABLES))
def test_every_instant_and_span_is_int64(table: str) -> None:
    for column in TABLES[table].columns:
        if column.unit in ("instant", "ns"):
            assert column.type == pa.int64(), column.name
            assert column.name.endswith("_ns")


def test_joined_begins_with_all_columns_of_requests() -> None:
    requests = arrow_schema("requests").names
    assert arrow_schema("joined").names[: len(requests)] == requests
