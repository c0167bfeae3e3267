"""Texts of row groups as places in a list."""

from __future__ import annotations

from pathlib import Path
from typing import SupportsIndex

import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.storage.row_groups import read_columns, row_groups


class Counted(list[str]):
    """A list that counts how often it is searched through."""

    n_searches = 0

    def __contains__(self, one: object) -> bool:
        self.n_searches += 1
        return super().__contains__(one)

    def index(self, one: str, *between: SupportsIndex) -> int:
        self.n_searches += 1
        return super().index(one, *between)


def test_texts_get_their_places_without_a_search_for_each(tmp_path: Path) -> None:
    texts = ["b", "c", "a", "b", "d", "d"]
    column = pa.array(texts).dictionary_encode()
    pq.write_table(pa.table({"text": column}), tmp_path / "part.parquet", row_group_size=3)
    words = Counted(["a", "b"])
    found = read_columns(row_groups([tmp_path / "part.parquet"], []), [], {"text": words})["text"]
    assert list(words) == ["a", "b", "c", "d"]
    assert found.tolist() == [1, 2, 0, 1, 3, 3]
    assert words.n_searches == 0
