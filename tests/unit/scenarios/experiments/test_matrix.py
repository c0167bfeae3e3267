"""Cells of a matrix: the rules of GitHub Actions, held to its own example and to a brute force."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.experiments.matrix import combinations

VALUES = st.integers(0, 2)
KEYS = st.sampled_from("abcd")
MATRICES = st.dictionaries(
    st.sampled_from("abc"), st.lists(VALUES, min_size=1, max_size=3, unique=True), max_size=3
)
ENTRIES = st.lists(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3), max_size=4)


def test_the_example_of_githubs_page_gives_its_six_jobs() -> None:
    # docs.github.com, Workflow syntax, jobs.<job_id>.strategy.matrix.include, "Example: Expanding configurations"
    found = combinations(
        {"fruit": ["apple", "pear"], "animal": ["cat", "dog"]},
        [
            {"color": "green"},
            {"color": "pink", "animal": "cat"},
            {"fruit": "apple", "shape": "circle"},
            {"fruit": "banana"},
            {"fruit": "banana", "animal": "cat"},
        ],
    )
    assert found == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def brute(matrix: dict[str, list[int]], include: list[dict[str, int]], exclude: list[dict[str, int]]) -> Any:
    """Cell by cell, entry by entry, in the words of GitHub's page."""
    grid = []
    if matrix:
        for values in itertools.product(*matrix.values()):
            cell = dict(zip(matrix, values, strict=True))
            if not any(set(entry.items()) <= set(cell.items()) for entry in exclude):
                grid.append(cell)
    grown = [dict(cell) for cell in grid]
    lone = []
    for entry in include:
        was_added = False
        for place, cell in enumerate(grid):
            overwrites = [key for key in entry if key in cell and cell[key] != entry[key]]
            if not overwrites:
                for key, value in entry.items():
                    grown[place][key] = value
                was_added = True
        if not was_added:
            lone.append(entry)
    return grown + lone


@given(MATRICES, ENTRIES, ENTRIES)
def test_any_matrix_gives_the_cells_of_the_brute_force(
    matrix: dict[str, list[int]], include: list[dict[str, int]], exclude: list[dict[str, int]]
) -> None:
    product = brute(matrix, [], [])
    fitting = [entry for entry in exclude if any(set(entry.items()) <= set(cell.items()) for cell in product)]
    expected = brute(matrix, include, fitting)
    if not expected:
        with pytest.raises(ValueError, match="matrix: is empty"):
            combinations(matrix, include, fitting)
    else:
        assert combinations(matrix, include, fitting) == expected
    if len(fitting) < len(exclude):
        with pytest.raises(ValueError, match="no cell of the matrix has"):
            combinations(matrix, include, exclude)


def test_a_number_is_not_a_truth_value() -> None:
    assert combinations({"a": [1, True, 1.0]}, (), [{"a": True}]) == [{"a": 1}, {"a": 1.0}]


def test_more_cells_than_a_sweep_takes_are_refused_before_they_are_made() -> None:
    with pytest.raises(ValueError, match=r"1,000,000,000,000 cells are above the 10,000"):
        combinations({key: list(range(1_000)) for key in "abcd"})
