"""Planted truths: a machine that drifts while A = B, cells that are equal, a cell that is slower; on a simulated
clock."""

from __future__ import annotations

import pytest

from squall.analysis.studies.sweep_result import Sweep
from squall.analysis.studies.sweep_words import answer
from squall.scenarios.experiment import Order
from tests.known import known
from tests.simulated_sweeps import Machine, simulated_sweep

MOST_OF = {20: 4, 200: 16}
"""How often at most what comes in 5 % of trials: of 200 10 expected, sd 3.1; more than 16 come in 2 % of such trials.
Of 20: 1 expected; more than 4 come in 0.3 %."""
LONG = [pytest.mark.slow, pytest.mark.long]


def sweeps(n: int, machine: Machine, order: Order, n_cells: int = 2, repeats: int = 8) -> list[Sweep]:
    return [simulated_sweep(machine, n_cells, repeats, order, trial, 2) for trial in range(n)]


def n_apart(found: list[Sweep]) -> int:
    return sum(any(one.is_apart for one in sweep.ranking.others) for sweep in found)


def n_drifting(found: list[Sweep]) -> int:
    return sum(known(sweep.drift).is_drifting for sweep in found)


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, pytest.param(200, marks=pytest.mark.long)])
def test_a_drift_makes_a_fixed_order_see_a_difference_and_blocks_see_none(n: int) -> None:
    """Half a per cent slower with every run: a fixed order says that B is slower, blocks do not, the reference cell
    tells."""
    fixed, blocked = (sweeps(n, Machine({}, 0.005), order) for order in ("fixed", "blocked-random"))
    assert n_apart(fixed) == n, "8 runs on: 4 % slower, and p95 at 80 % load grows five times as much"
    assert n_apart(blocked) <= MOST_OF[n]
    assert n_drifting(fixed) == n_drifting(blocked) == n
    head = "the machine drifted: p95 of the reference cell by +"
    assert all(answer(one).startswith(head) for one in blocked)
    assert sum(", more than cells differ by; best by p95" in answer(one) for one in fixed) >= n - MOST_OF[n]


@pytest.mark.parametrize(
    ("n", "n_cells", "repeats", "cv"),
    [
        (20, 4, 4, 1.0),
        *(pytest.param(200, *one, marks=LONG) for one in ((2, 8, 1.0), (6, 5, 1.0), (4, 5, 3.0))),
    ],
)
def test_equal_cells_are_seldom_called_different_and_no_drift_seldom_a_drift(
    n: int, n_cells: int, repeats: int, cv: float
) -> None:
    found = sweeps(n, Machine({}, cv=cv), "blocked-random", n_cells, repeats)
    assert n_apart(found) <= MOST_OF[n], "any of the others, whichever leads"
    assert n_drifting(found) <= MOST_OF[n]


def test_a_slower_cell_is_found_and_an_equal_one_is_a_rival() -> None:
    # Cells 0 and 1 are equal, 2 is 5 % slower: at 80 % load its p95 is about a quarter above theirs.
    rankings = [sweep.ranking for sweep in sweeps(20, Machine({2: 1.05}), "blocked-random", 3)]
    assert {one.best for one in rankings} <= {0, 1}
    assert sum(len(one.rivals) == 1 for one in rankings) >= 20 - MOST_OF[20]
    slower = [rival for one in rankings for rival in one.others if rival.cell == 2]
    assert all(one.is_apart and 1.15 < known(one.ratio) < 1.45 for one in slower)
