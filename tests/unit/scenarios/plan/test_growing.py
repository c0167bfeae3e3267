"""Columns that grow in memory and go over to files, always with the same rows."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.scenarios.plan import growing
from squall.scenarios.plan.growing import Column, pieces
from tests.merged_plans import is_in_file


@settings(max_examples=40)
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 200), st.booleans())
def test_a_column_holds_what_was_added_in_order(sizes: list[int], most_rows: int, by_draw: bool) -> None:
    rng = np.random.default_rng(1)
    added = [rng.integers(0, 2**62, size) for size in sizes]
    column = Column("<i8")
    with patch.object(growing, "MOST_ROWS_IN_MEMORY", most_rows), patch.object(growing, "PIECE_ROWS", 5):
        for rows in added:
            if by_draw:
                left = iter(np.split(rows, range(5, rows.size, 5)))
                column.fill(rows.size, lambda n, left=left: next(left)[:n])  # type: ignore[misc]
            else:
                column.append(rows)
        assert len(column) == sum(sizes)
        whole = column.join()
    assert whole.dtype == np.int64
    assert whole.tolist() == np.concatenate([*added, np.empty(0, np.int64)]).tolist()
    assert is_in_file(whole) == (sum(sizes) > most_rows)


def test_pieces_cover_columns_in_order() -> None:
    assert list(pieces([np.zeros(7), np.zeros(7)], 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(pieces([])) == list(pieces([np.zeros(0)])) == []
