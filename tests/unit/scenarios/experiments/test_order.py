"""The order of runs: every cell once a block, blocks and their reverse, the reference cell at its places."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.experiments.order import (
    CELL,
    REFERENCE,
    PlannedRun,
    cell_runs,
    confirming_runs,
    with_reference,
)
from tests.sweep_runs import load

DIGESTS = ("one", "two", "three", "four", "five")


def blocks(runs: list[PlannedRun], n_cells: int) -> list[list[int]]:
    return [[run.cell for run in runs[first : first + n_cells]] for first in range(0, len(runs), n_cells)]


@given(st.integers(1, 5), st.integers(0, 10**9), st.integers(1, 7))
def test_every_block_holds_every_cell_once_with_a_seed_of_its_own(
    n_cells: int, seed: int, repeats: int
) -> None:
    runs = cell_runs(DIGESTS[:n_cells], seed, repeats, "blocked-random")
    found = blocks(runs, n_cells)
    assert len(found) == repeats
    assert all(sorted(block) == list(range(n_cells)) for block in found)
    assert [run.seed for run in runs] == [seed + place // n_cells for place in range(len(runs))]
    assert all(odd == even[::-1] for even, odd in zip(found[::2], found[1::2], strict=False))


def test_a_drift_that_is_linear_in_the_runs_number_cancels_in_two_blocks() -> None:
    runs = cell_runs(DIGESTS, 3, 2, "blocked-random")
    sums = Counter[int]()
    for position, run in enumerate(runs):
        sums[run.cell] += position
    assert set(sums.values()) == {9}


def test_orders_are_drawn_alike_whichever_they_are() -> None:
    # 6 orders of 3 cells over 600 seeds: 100 each, sd sqrt(600 / 6 * 5 / 6) = 9.1; 4 sd = 37
    drawn = Counter(
        tuple(run.cell for run in cell_runs(DIGESTS[:3], seed, 1, "blocked-random")) for seed in range(600)
    )
    assert len(drawn) == 6
    assert all(abs(n - 100) <= 37 for n in drawn.values())


def test_an_order_is_the_same_on_every_machine() -> None:
    assert [run.cell for run in cell_runs(DIGESTS, 1, 1, "blocked-random")] == [4, 3, 0, 2, 1]
    moved = [DIGESTS[run.cell] for run in cell_runs(DIGESTS, 1, 1, "blocked-random")]
    again = tuple(reversed(DIGESTS))
    assert [again[run.cell] for run in cell_runs(again, 1, 1, "blocked-random")] == moved, (
        "wherever it stands in the file"
    )


def test_a_fixed_order_runs_all_seeds_of_a_cell_then_those_of_the_next() -> None:
    runs = cell_runs(DIGESTS[:2], 4, 3, "fixed")
    assert [(run.cell, run.seed) for run in runs] == [(0, 4), (0, 5), (0, 6), (1, 4), (1, 5), (1, 6)]


@given(st.integers(0, 30), st.integers(1, 9))
def test_the_reference_cell_is_run_first_last_and_after_every_so_many(n: int, every: int) -> None:
    runs = [PlannedRun(CELL, k, 0, 1) for k in range(n)]
    found = with_reference(runs, 1, 1, every)
    assert [run for run in found if run.role == CELL] == runs
    if not n:
        assert found == []
        return
    places = [place for place, run in enumerate(found) if run.role == REFERENCE]
    gaps = [after - before - 1 for before, after in pairwise(places)]
    assert (places[0], places[-1]) == (0, len(found) - 1)
    assert all(gap == every for gap in gaps[:-1])
    assert 1 <= gaps[-1] <= every
    assert [found[place].number for place in places] == list(range(len(places)))


def test_fresh_runs_have_seeds_that_chose_nothing(tmp_path: Path) -> None:
    experiment = load(tmp_path, seed=10, repeats=3, confirm=2)
    assert [run.seed for run in experiment.confirming_runs(1)] == [13, 14]
    assert [run.seed for run in confirming_runs(0, 10, 3, 2)] == [13, 14]
    one = load(tmp_path, matrix={"model.max_batch_size": [4]}, confirm=2)
    assert one.confirming_runs(0) == [], "one cell was not chosen among others"
