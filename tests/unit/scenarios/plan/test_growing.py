"""Columns that grow in memory and go over to files, always with the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from squall.scenarios.plan import growing as columns_module
from squall.scenarios.plan.growing import Column, pieces
from tests.merged_plans import is_in_file

MANY = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_LEAST_BLOCK_ROWS", 3)
    monkeypatch.setattr(columns_module, "_BLOCK_BYTES", 8 * 16)
    monkeypatch.setattr(columns_module, "PIECE_ROWS", 5)


@MANY
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 200), st.booleans())
def test_a_column_holds_what_was_added_in_order(sizes: list[int], most_rows: int, by_draw: bool) -> None:
    rng = np.random.default_rng(1)
    added = [rng.integers(0, 2**62, size) for size in sizes]
    column = Column("<i8", most_rows_in_memory=most_rows)
    for rows in added:
        if by_draw:
            left = iter(np.split(rows, range(5, rows.size, 5)))
            column.fill(rows.size, lambda n, left=left: next(left)[:n])  # type: ignore[misc]
        else:
            column.append(rows)
        assert len(column) <= sum(sizes)
    whole = column.join()
    assert whole.dtype == np.int64
    assert whole.tolist() == np.concatenate([*added, np.empty(0, np.int64)]).tolist()
    assert is_in_file(whole) == (sum(sizes) > most_rows)


def joined(dtype: str, n_rows: int, folder: Path) -> NDArray[Any]:
    """A column of 0 to `n_rows` - 1."""
    column = Column(dtype, folder, most_rows_in_memory=7)
    column.append(np.arange(n_rows, dtype=dtype))
    return column.join()


@pytest.mark.parametrize("n_rows", [0, 7, 8, 20_000])
def test_a_column_is_read_through_dropped_pages(n_rows: int, tmp_path: Path) -> None:
    column = joined("<i4", n_rows, tmp_path)
    assert is_in_file(column) == (n_rows > 7)
    seen = []
    for piece in pieces([column, np.arange(n_rows)], 4_096):
        assert column[piece].tolist() == list(range(piece.start, piece.stop))
        seen.append((piece.start, piece.stop))
    assert seen == [(start, min(start + 4_096, n_rows)) for start in range(0, n_rows, 4_096)]
    assert column.tolist() == list(range(n_rows))
    assert not list(tmp_path.iterdir())


def test_dropping_the_pages_of_a_view_loses_nothing(tmp_path: Path) -> None:
    column = joined("<i8", 10_000, tmp_path)
    tail = column[5_000:]
    assert [tail[piece].sum() for piece in pieces([tail], 4_096)] == [
        sum(range(5_000, 9_096)),
        sum(range(9_096, 10_000)),
    ]
    assert is_in_file(tail)
    assert column.tolist() == list(range(10_000))
