"""What every tie of events to executions gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from squall.analysis.join.batch_ties import ByBatch, ByTime, Ties
from squall.analysis.storage.row_groups import NULL

ROWS = np.array([4, 2, 7])
"""Executions of the slice: one a second from 10 on, of batches 0 to 2."""
STARTS_NS = np.array([10, 20, 30])
NONE = np.array([], np.int64)


def by_batch(rows: NDArray[np.int64]) -> Ties:
    n = len(rows)
    return ByBatch(rows, ["m_0_0"] * n, np.zeros(n, np.int64), np.arange(n))


def by_batch_far_apart(rows: NDArray[np.int64]) -> Ties:
    """Whose ids are searched, not looked up."""
    n = len(rows)
    return ByBatch(rows, ["m_0_0"] * n, np.zeros(n, np.int64), np.arange(n) * 10**6)


def by_time(rows: NDArray[np.int64]) -> Ties:
    starts = STARTS_NS[: len(rows)]
    return ByTime(rows, starts, starts + 5)


MAKES = [by_batch, by_batch_far_apart, by_time]
every = pytest.mark.parametrize("make", MAKES, ids=lambda one: one.__name__)


def events(places: list[int | None], step: int) -> dict[str, NDArray[Any]]:
    """One within each execution of `places`, None: of no execution, in every column that a tie may go by."""
    known = [-1 if place is None else place for place in places]
    return {
        "instance": np.zeros(len(places), np.int32),
        "instance_device": np.zeros(len(places), np.int64),
        "batch_id": np.array([NULL if place < 0 else place * step for place in known], np.int64),
        "at_ns": np.array([NULL if place < 0 else STARTS_NS[place] + 3 for place in known], np.int64),
    }


@every
def test_each_event_has_the_row_of_its_execution_and_minus_1_without_one(make: Any) -> None:
    columns = events([2, 0, None, 1, 1], 10**6 if make is by_batch_far_apart else 1)
    rows = make(ROWS).rows(columns, "at_ns")
    assert rows.tolist() == [7, 4, -1, 2, 2]
    assert np.issubdtype(rows.dtype, np.integer)


@every
def test_a_slice_without_executions_ties_nothing(make: Any) -> None:
    assert make(NONE).rows(events([0, None, 2], 1), "at_ns").tolist() == [-1, -1, -1]


@every
def test_no_event_has_no_row(make: Any) -> None:
    assert make(ROWS).rows(events([], 1), "at_ns").shape == (0,)


@every
def test_a_tie_names_the_columns_that_it_reads(make: Any) -> None:
    ties = make(ROWS)
    columns = events([0], 1)
    needed = {name: columns[name] for name in (*ties.numbers, *ties.texts, "at_ns")}
    assert ties.rows(needed, "at_ns").tolist() == [4]
    assert all(words == sorted(set(words)) for words in ties.texts.values())
