"""Planted truths: a machine that drifts while A = B, cells that are equal, a cell that is slower; on a simulated
clock."""

from __future__ import annotations

import pytest

from squall.analysis.experiments.result import Sweep
from squall.analysis.experiments.words import answer
from squall.scenarios.experiment import Order
from tests.simulated_sweeps import Machine, simulated_sweep

DRIFT = 0.005
REPEATS = 8
MOST_OF_200 = 16
"""How often at most what comes in 5 % of 200 trials: 10 expected, sd 3.1; more than 16 come in 2 % of such trials."""
MOST_OF_20 = 4
"""Of 20: 1 expected; more than 4 come in 0.3 %."""


def sweeps(n: int, machine: Machine, order: Order, n_cells: int = 2, repeats: int = REPEATS) -> list[Sweep]:
    return [simulated_sweep(machine, n_cells, repeats, order, trial, 2) for trial in range(n)]


def n_apart(found: list[Sweep]) -> int:
    return sum(any(one.is_apart for one in sweep.ranking.others) for sweep in found)


def n_drifting(found: list[Sweep]) -> int:
    return sum(sweep.drift is not None and sweep.drift.is_drifting for sweep in found)


def hold_drift(n: int, most: int) -> None:
    """Half a per cent slower with every run: a fixed order says that B is slower, blocks do not, the reference cell
    tells."""
    fixed, blocked = (sweeps(n, Machine({}, DRIFT), order) for order in ("fixed", "blocked-random"))
    assert n_apart(fixed) == n, "8 runs on: 4 % slower, and p95 at 80 % load grows five times as much"
    assert n_apart(blocked) <= most
    assert n_drifting(fixed) == n_drifting(blocked) == n
    assert all(
        answer(one).startswith("the machine drifted: p95 of the reference cell by +") for one in blocked
    )
    assert sum(", more than cells differ by; best by p95" in answer(one) for one in fixed) >= n - most


@pytest.mark.slow
def test_a_drift_makes_a_fixed_order_see_a_difference_and_blocks_see_none() -> None:
    hold_drift(20, MOST_OF_20)


@pytest.mark.slow
@pytest.mark.long
def test_a_drift_in_200_sweeps() -> None:
    hold_drift(200, MOST_OF_200)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("n_cells", "repeats", "cv"), [(2, 8, 1.0), (6, 5, 1.0), (4, 5, 3.0)])
def test_equal_cells_are_seldom_called_different_and_no_drift_seldom_a_drift(
    n_cells: int, repeats: int, cv: float
) -> None:
    found = sweeps(200, Machine({}, cv=cv), "blocked-random", n_cells, repeats)
    assert n_apart(found) <= MOST_OF_200, "any of the others, whichever leads"
    assert n_drifting(found) <= MOST_OF_200


def test_equal_cells_are_mostly_not_told_apart() -> None:
    found = sweeps(20, Machine({}), "blocked-random", 4, 4)
    assert n_apart(found) <= MOST_OF_20
    assert n_drifting(found) <= MOST_OF_20


def test_a_slower_cell_is_found_and_an_equal_one_is_a_rival() -> None:
    # Cells 0 and 1 are equal, 2 is 5 % slower: at 80 % load its p95 is about a quarter above theirs.
    found = sweeps(20, Machine({2: 1.05}), "blocked-random", 3)
    assert all(sweep.ranking.best in (0, 1) for sweep in found)
    assert all(2 not in sweep.ranking.rivals for sweep in found)
    assert sum(len(sweep.ranking.rivals) == 1 for sweep in found) >= 20 - MOST_OF_20
    assert all(
        1.15 < one.ratio < 1.45
        for sweep in found
        for one in sweep.ranking.others
        if one.cell == 2 and one.ratio
    )
