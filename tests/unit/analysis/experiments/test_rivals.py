"""Which cell is best and which cannot be told apart: on figures of known ratios, missing ones included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from squall.analysis.experiments.drift import drift_of
from squall.analysis.experiments.rivals import apart, rank, values_of
from squall.analysis.experiments.rows import DONE, INVALID, REFERENCE, SweepRow
from tests.sweep_runs import figures

SEEDS = [1.0, 1.7, 0.8, 1.2, 2.0, 0.9]


def values(*cells: list[float | None]) -> dict[int, dict[tuple[str, int], float]]:
    """Cells by number, their figures by block; None where there is none."""
    return {
        cell: {("here", block): one for block, one in enumerate(own) if one is not None}
        for cell, own in enumerate(cells)
    }


def noisy(factor: float, seed: int, spread: float = 0.01) -> list[float | None]:
    rng = np.random.default_rng(seed)
    return [factor * seed_ms * math.exp(rng.normal(0, spread)) for seed_ms in SEEDS]


def test_what_the_seeds_differ_by_does_not_hide_what_the_cells_differ_by() -> None:
    found = rank(values(noisy(1.0, 1), noisy(1.05, 2), noisy(1.0, 3)), 3, "p95")
    assert found.best in (0, 2)
    (rival,) = found.rivals
    assert rival in (0, 2)
    (slower,) = [one for one in found.others if one.is_apart]
    assert slower.cell == 1
    assert slower.low is not None and slower.low > 1.0  # noqa: PT018


def test_throughput_is_better_high() -> None:
    assert rank(values(noisy(1.0, 1), noisy(1.1, 2)), 2, "throughput").best == 1
    assert rank(values(noisy(1.0, 1), noisy(1.1, 2)), 2, "p99").best == 0


def test_p_values_are_those_of_the_paired_t_test_after_holm() -> None:
    cells = [noisy(1.0, 1, 0.05), noisy(1.04, 2, 0.05), noisy(1.1, 3, 0.05)]
    logs = [np.log(np.array(own, dtype=float)) for own in cells]
    p = {pair: stats.ttest_rel(logs[pair[0]], logs[pair[1]]).pvalue for pair in ((0, 1), (0, 2), (1, 2))}
    order = sorted(p, key=p.__getitem__)
    expected, largest = {}, 0.0
    for place, pair in enumerate(order):
        largest = max(largest, min(1.0, (3 - place) * p[pair]))
        expected[pair] = largest
    found = rank(values(*cells), 3, "p95")
    assert found.best == 0
    for one in found.others:
        assert one.p == pytest.approx(expected[0, one.cell], rel=1e-9)


def test_holm_takes_all_pairs_so_that_many_cells_need_more_to_differ() -> None:
    pair = values(noisy(1.0, 1, 0.02), noisy(1.03, 2, 0.02))
    crowd = values(*[own for k in range(20) for own in [noisy(1.0 + 0.03 * (k % 2), 2 * k + 1, 0.02)]])
    two, twenty = rank(pair, 2, "p95"), rank(crowd, 20, "p95")
    p_of_two = two.others[0].p
    assert p_of_two is not None
    assert max(one.p or 0.0 for one in twenty.others) == 1.0
    assert p_of_two < 1.0


def test_a_cell_that_lacks_runs_is_not_compared_over_other_seeds() -> None:
    # Cell 1 is 2 % quicker, and has only the three slowest seeds: its plain mean is far above that of cell 0.
    quick = [0.98 * seed_ms if seed_ms >= 1.2 else None for seed_ms in SEEDS]
    found = rank(values(list(SEEDS), quick, [1.1 * one for one in SEEDS]), 3, "p95")
    assert found.best == 1
    assert [(one.cell, one.n_pairs, one.is_apart) for one in found.others] == [(0, 3, True), (2, 3, True)]


def test_without_two_common_seeds_cells_stay_open() -> None:
    found = rank(values([1.0, 1.1, None], [None, None, 5.0]), 2, "p95")
    (other,) = found.others
    assert (other.ratio, other.p, other.is_apart, other.n_pairs) == (None, None, False, 0)
    assert found.rivals == (other.cell,)


def test_runs_that_repeat_to_the_last_digit_are_alike_or_differ() -> None:
    found = rank(values([1.0, 2.0], [1.0, 2.0], [1.5, 3.0]), 3, "p95")
    assert [(one.cell, one.p, one.is_apart) for one in found.others] == [(1, 1.0, False), (2, 0.0, True)]


def test_a_cell_with_an_infinite_figure_is_not_ranked() -> None:
    found = rank(values([1.0, 1.1], [0.5, math.inf], []), 3, "p95")
    assert (found.best, found.others, found.unranked) == (0, (), (1, 2))
    nothing = rank({}, 2, "p95")
    assert (nothing.best, nothing.unranked) == (None, (0, 1))


def test_pairs_of_two_sites_are_not_compared() -> None:
    by_site = {0: {("a", 0): 1.0, ("b", 1): 3.0}, 1: {("b", 0): 9.0, ("a", 1): 9.0}}
    assert apart(by_site, [0, 1]) == set()
    assert rank(by_site, 2, "p95").others[0].n_pairs == 0


def row(position: int, p95_ns: float | None, **changes: Any) -> SweepRow:
    known: dict[str, Any] = {
        "key": str(position), "position": position, "block": -1, "role": REFERENCE, "cell": 0, "label": "a", "seed": 1,
        "attempt": 1, "outcome": DONE, "status": "VALID", "reason": "", "run": "", "site": "here", "host": "one",
        "wall_s": 1.0, "figures": figures(p95_ns) if p95_ns is not None else figures(infinite=("p95_ns",)), **changes,
    }  # fmt: skip
    return SweepRow(**known)


def test_only_valid_runs_that_no_other_stands_for_count() -> None:
    rows = [
        row(0, 1e6, block=0),
        row(1, 2e6, block=1, outcome=INVALID),
        row(2, 3e6, block=2, is_replaced=True),
    ]
    assert values_of(rows, "p95") == {0: {("here", 0): 1e6}}


def test_a_drift_has_the_slope_and_the_interval_of_a_least_squares_line() -> None:
    rng = np.random.default_rng(5)
    at = [0, 5, 10, 15, 20, 25]
    logs = [math.log(5e6) + 0.01 * x + rng.normal(0, 0.02) for x in at]
    found = drift_of([row(x, math.exp(y)) for x, y in zip(at, logs, strict=True)], "p95")
    line = stats.linregress(at, logs)
    half = stats.t.ppf(0.975, 4) * line.stderr
    assert found is not None
    assert found.ratio == pytest.approx(math.exp(25 * line.slope), rel=1e-9)
    assert found.low == pytest.approx(math.exp(25 * (line.slope - half)), rel=1e-9)
    assert found.high == pytest.approx(math.exp(25 * (line.slope + half)), rel=1e-9)
    assert found.is_drifting == (line.pvalue < 0.05)


def test_what_two_hosts_differ_by_is_no_drift() -> None:
    here = [row(x, 5e6 * (1 + 0.001 * (x % 2))) for x in range(6)]
    there = [row(x, 9e6 * (1 + 0.001 * (x % 2)), site="there") for x in range(6)]
    found = drift_of([*here, *there], "p95")
    assert found is not None
    assert not found.is_drifting
    assert found.ratio == pytest.approx(1.0, abs=0.002)


def test_too_few_reference_runs_say_nothing() -> None:
    assert drift_of([], "p95") is None
    found = drift_of([row(0, 5e6), row(9, 6e6), row(12, None)], "p95")
    assert found is not None
    assert (found.ratio, found.is_drifting, found.reason) == (
        None,
        False,
        "2 valid reference runs are too few",
    )
