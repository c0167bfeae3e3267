"""Comparisons whose truth is planted in servers on a simulated clock: nothing changed, 3 % slower, another batch mix,
a machine that drifts."""

from __future__ import annotations

import numpy as np
import pytest

from squall.analysis.compare.change import DIFFERENT, SAME
from squall.analysis.compare.compared import evaluate
from squall.analysis.compare.corrections import looks_after, nominal_level
from squall.analysis.compare.metric_changes import metric_changes
from squall.analysis.compare.pairing import Pair, Paired, pair_runs
from squall.analysis.compare.run_row import RunRow
from squall.analysis.compare.why import parts_change
from squall.analysis.report.compare_words import causes
from tests.compared_runs import SHAPES, Shape, batched, pairs_of, served
from tests.known import known

LONG = [pytest.mark.slow, pytest.mark.long]


def differs(pairs: list[Pair], level: float = 0.05) -> bool:
    return any(one.verdict == DIFFERENT for one in metric_changes(pairs, 0.03, level))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "n_comparisons", "n", "most"),
    [
        (Shape(0.8), 12, 1_000, 3),  # twelve of a chance of 5 % at most: four or more have one of 0.2 %
        # Binomial(200, 5 %): more than 16 have a chance of 3 %
        *(pytest.param(shape, 200, 6_000, 16, marks=LONG) for shape in SHAPES),
    ],
    ids=str,
)
def test_a_server_compared_with_itself_is_seldom_called_different(
    shape: Shape, n_comparisons: int, n: int, most: int
) -> None:
    """With one look, and with five."""
    once = looked = 0
    for number in range(n_comparisons):
        pairs = pair_runs(*pairs_of(shape, number, n=n)).whole
        once += differs(pairs)
        looked += any(differs(pairs[:after], nominal_level(5)) for after in looks_after(8, 5))
    assert (once <= most, looked <= most) == (True, True), (once, looked)


@pytest.mark.parametrize(
    ("shape", "n_comparisons", "n", "least"),
    [
        # half the requests of the full figure: at 97 % each, fewer than 8 of 10 have a chance of 0.3 %
        (Shape(0.5), 10, 3_000, 8),
        *(pytest.param(shape, 200, 6_000, 190, marks=LONG) for shape in SHAPES),
    ],
    ids=str,
)
def test_a_server_that_is_three_percent_slower_is_found_and_its_parts_say_why(
    shape: Shape, n_comparisons: int, n: int, least: int
) -> None:
    n_found = 0
    for number in range(n_comparisons):
        pairs = pair_runs(*pairs_of(shape, 500 + number, slower=1.03, n=n)).whole
        n_found += any(one.direction == "worse" for one in metric_changes(pairs, 0.03, 0.05))
        change = known(parts_change(pairs, False, 0.05))
        by_part = {one.what: one.change for one in change.parts}
        assert by_part["queue"] + by_part["compute"] >= 0.9 * change.latency.change
        # Jitter of 10 % of 0.2 ms over n requests of two runs, 8 pairs: 5 standard errors of nothing.
        assert abs(by_part["network"]) < 5 * 0.1 * 200_000 * np.sqrt(2 / (8 * n))
    assert n_found >= least


@pytest.mark.parametrize("delay_b_s", [0.0, 0.004])
def test_another_batch_mix_is_told_from_slower_kernels_and_of_the_same_none_is_named(
    delay_b_s: float,
) -> None:
    rng = np.random.default_rng(6)
    a = [batched(f"a{seed}", 700.0, seed, rng, 0.0, n=3_000, at=2 * seed) for seed in range(8)]
    b = [batched(f"b{seed}", 700.0, seed, rng, delay_b_s, n=3_000, at=2 * seed + 1) for seed in range(8)]
    found = evaluate("A", "B", pair_runs(a, b))
    batches, kernels = known(found.batches), known(known(found.gpu).kernel_time)
    mix, equal, whole = batches.by_mix, batches.at_equal_size, batches.compute
    assert mix.is_shown == any("mix of batch sizes" in one for one in causes(found)) == (delay_b_s > 0)
    assert mix.change + equal.change == pytest.approx(whole.change)
    if delay_b_s:
        assert (known(batches.equal).verdict, kernels.verdict) == (SAME, SAME)
        assert mix.change > 0.95 * whole.change > 0
        assert batches.rows.b > 1.3 * batches.rows.a


def drifting(order: str, seed: int) -> Paired:
    """Runs of one server in `order`, each 0.5 % slower than the one before."""
    rng = np.random.default_rng([seed, len(order)])
    sides: dict[str, list[RunRow]] = {"A": [], "B": []}
    for at, side in enumerate(order):
        own, slower = sides[side], 1.005**at
        name, number = f"{side}{len(own)}", 100 * seed + len(own)
        own.append(served(name, Shape(0.5), number, rng, slower, n=2_000, at=at))
    return pair_runs(sides["A"], sides["B"])


def blocked(seed: int) -> str:
    """As `PairPlan.order`: blocks of one run of each side, every second one the reverse of that before."""
    rng = np.random.default_rng([seed, 1])
    return "".join("ABBA" if rng.integers(2) else "BAAB" for _ in range(4))


@pytest.mark.parametrize(
    ("n", "most"),
    # Binomial(60, 5 %): more than 8 have a chance of 0.4 %.
    [(6, 2), pytest.param(60, 8, marks=LONG)],
)
def test_a_drift_makes_a_fixed_order_differ_and_not_blocks_of_random_order(n: int, most: int) -> None:
    # In fixed order the sides are 8 runs of 0.5 % apart, 4 %; within a block 0.5 %, of either sign.
    fixed = [drifting("A" * 8 + "B" * 8, seed) for seed in range(n)]
    assert all(differs(one.whole) for one in fixed)
    assert sum(differs(drifting(blocked(seed), seed).whole) for seed in range(n)) <= most
    assert any("all runs of A came before all of B" in one for one in evaluate("A", "B", fixed[0]).marks)
