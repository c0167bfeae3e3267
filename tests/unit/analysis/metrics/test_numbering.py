"""Numbers of rows: every different row has its own, whatever small numbers it is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.metrics.sweeps.numbering import Numbering
from squall.analysis.storage.in_time import RowGroups
from tests.plain_runs import plain_run

rows_of_any_width = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(
            st.one_of(st.integers(-2, 40), st.integers(-(2**63), 2**63 - 1)),
            min_size=width,
            max_size=width,
        ),
        min_size=1,
        max_size=40,
    )
)


def encode(numbering: Numbering, rows: list[list[int]]) -> list[int]:
    codes = numbering.encode([np.array(column, np.int64) for column in zip(*rows, strict=True)])
    return [int(code) for code in codes]


def test_rows_that_differ_by_little_have_numbers_of_their_own() -> None:
    """(7, 0) and (1, 2) had one hash once: kernels of one instance were counted with the shape of another's."""
    found = encode(Numbering(2), [[7, 0], [1, 2], [7, 0]])
    assert found == [0, 1, 0]


@pytest.mark.parametrize(
    ("width", "n_values"), [(1, 100_000), (2, 512), (3, 64), (4, 22), (13, 3)], ids=lambda n: str(n)
)
def test_all_rows_of_small_numbers_have_numbers_of_their_own(width: int, n_values: int) -> None:
    """A quarter of a million rows: by chance two have one hash in one of 500 million tries, n^2 / 2^65."""
    n_rows = min(2**18, n_values**width)
    columns = np.stack(np.unravel_index(np.arange(n_rows), (n_values,) * width)).astype(np.int64) - 1
    numbering = Numbering(width)
    number = numbering.encode(list(columns))
    assert np.array_equal(number, np.arange(n_rows)), "as they come, none twice"
    assert np.array_equal(numbering.rows, columns.T)


def test_the_empty_text_has_its_code_before_another_thread_reads_texts(tmp_path: Path) -> None:
    """Who asks for it while texts are read would give it the code that another text gets just then."""
    store = plain_run(tmp_path, {"kernels": [{"name": "gemm", "gpu_uuid": "GPU-0"}]})
    assert RowGroups(store, {"kernels": ("name", "start_ns")}).texts.codes == {"": 0}


@given(st.lists(rows_of_any_width, min_size=1, max_size=3))
def test_rows_have_the_numbers_of_a_dictionary(slices: list[list[list[int]]]) -> None:
    width = len(slices[0][0])
    numbering = Numbering(width)
    numbers: dict[tuple[int, ...], int] = {}
    for rows in slices:
        own = [(row * width)[:width] for row in rows]
        expected = [numbers.setdefault(tuple(row), len(numbers)) for row in own]
        assert encode(numbering, own) == expected
    assert [tuple(row) for row in numbering.rows.tolist()] == list(numbers)
