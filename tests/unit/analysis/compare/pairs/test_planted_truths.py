"""Comparisons whose truth is planted in servers on a simulated clock: nothing changed, 3 % slower, another batch mix,
a machine that drifts."""

from __future__ import annotations

import numpy as np
import pytest

from squall.analysis.compare.pairs.change import DIFFERENT, SAME
from squall.analysis.compare.pairs.compared import Comparison, evaluate
from squall.analysis.compare.pairs.corrections import looks_after, nominal_level
from squall.analysis.compare.pairs.metric_changes import metric_changes
from squall.analysis.compare.pairs.pairing import Pair, pair_runs
from squall.analysis.compare.pairs.why import parts_change
from squall.analysis.compare.pairs.words import causes
from squall.analysis.compare.run_row import RunRow
from tests.compared_runs import SHAPES, Shape, batched, pairs_of, served

MARGIN = 0.03


def differs(pairs: list[Pair], level: float = 0.05) -> bool:
    return any(one.verdict == DIFFERENT for one in metric_changes(pairs, MARGIN, level))


def n_alarms(shape: Shape, n_comparisons: int, n: int) -> tuple[int, int]:
    """Of comparisons of a server with itself: called different with one look, and with five."""
    once = looked = 0
    for number in range(n_comparisons):
        pairs = pair_runs(*pairs_of(shape, number, n=n)).whole
        once += differs(pairs)
        looked += any(differs(pairs[:after], nominal_level(5)) for after in looks_after(8, 5))
    return once, looked


def n_found(shape: Shape, n_comparisons: int, n: int) -> int:
    """Of comparisons with a server that is 3 % slower: called worse, with the parts that say so."""
    found = 0
    for number in range(n_comparisons):
        pairs = pair_runs(*pairs_of(shape, 500 + number, slower=1.03, n=n)).whole
        found += any(one.direction == "worse" for one in metric_changes(pairs, MARGIN, 0.05))
        change = parts_change(pairs, False, 0.05)
        assert change is not None
        by_part = {one.what: one for one in change.parts}
        explained = by_part["queue"].change + by_part["compute"].change
        assert explained >= 0.9 * change.latency.change
        # Jitter of 10 % of 0.2 ms over n requests of two runs, 8 pairs: 5 standard errors of nothing.
        assert abs(by_part["network"].change) < 5 * 0.1 * 200_000 * np.sqrt(2 / (8 * n))
    return found


@pytest.mark.slow
def test_a_server_compared_with_itself_is_seldom_called_different() -> None:
    # Twelve of a chance of 5 % at most: four or more have one of 0.2 %.
    assert max(n_alarms(Shape(0.8), 12, 1_000)) <= 3


def test_a_server_that_is_three_percent_slower_is_found_and_its_parts_say_why() -> None:
    # Half the requests of the full figure: at 97 % each, fewer than 8 of 10 have a chance of 0.3 %.
    assert n_found(Shape(0.5), 10, 3_000) >= 8


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_of_two_hundred_comparisons_alike_at_most_sixteen_are_called_different(shape: Shape) -> None:
    # Binomial(200, 5 %): more than 16 have a chance of 3 %.
    once, looked = n_alarms(shape, 200, 6_000)
    assert (once <= 16, looked <= 16) == (True, True), (once, looked)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_three_percent_are_found_in_ninety_five_of_a_hundred(shape: Shape) -> None:
    assert n_found(shape, 200, 6_000) >= 190


def batch_mix(delay_b_s: float) -> Comparison:
    rng = np.random.default_rng(6)
    a = [batched(f"a{seed}", 700.0, seed, rng, 0.0, n=3_000, at=2 * seed) for seed in range(8)]
    b = [batched(f"b{seed}", 700.0, seed, rng, delay_b_s, n=3_000, at=2 * seed + 1) for seed in range(8)]
    return evaluate("A", "B", pair_runs(a, b))


def test_another_batch_mix_is_told_from_slower_kernels() -> None:
    found = batch_mix(0.004)
    assert found.batches is not None
    assert found.batches.equal is not None
    assert found.gpu is not None
    assert found.gpu.kernel_time is not None
    assert (found.batches.equal.verdict, found.gpu.kernel_time.verdict) == (SAME, SAME)
    mix, equal = found.batches.by_mix, found.batches.at_equal_size
    assert mix.is_shown
    assert mix.change > 0.95 * found.batches.compute.change > 0
    assert mix.change + equal.change == pytest.approx(found.batches.compute.change)
    assert found.batches.rows.b > 1.3 * found.batches.rows.a
    assert any("mix of batch sizes" in one for one in causes(found))


def test_of_the_same_batch_mix_none_is_named() -> None:
    found = batch_mix(0.0)
    assert found.batches is not None
    assert not found.batches.by_mix.is_shown
    assert not any("mix of batch sizes" in one for one in causes(found))


def drifting(order: str, seed: int = 7) -> list[Pair]:
    """Runs of one server in `order`, each 0.5 % slower than the one before."""
    rng = np.random.default_rng([seed, len(order)])
    sides: dict[str, list[RunRow]] = {"A": [], "B": []}
    for at, side in enumerate(order):
        number = len(sides[side])
        slower = 1.005**at
        sides[side].append(
            served(f"{side}{number}", Shape(0.5), 100 * seed + number, rng, slower, n=2_000, at=at)
        )
    return pair_runs(sides["A"], sides["B"]).whole


def blocked(seed: int) -> str:
    rng = np.random.default_rng([seed, 1])
    return "".join("AB" if rng.integers(2) else "BA" for _ in range(8))


def test_a_drift_makes_a_fixed_order_differ_and_not_blocks_of_random_order() -> None:
    # In fixed order the sides are 8 runs of 0.5 % apart, 4 %; within a block 0.5 %, of either sign.
    fixed = [drifting("A" * 8 + "B" * 8, seed) for seed in range(6)]
    assert sum(map(differs, fixed)) == 6
    assert sum(differs(drifting(blocked(seed), seed)) for seed in range(6)) <= 2
    marks = evaluate("A", "B", pair_runs([p.a for p in fixed[0]], [p.b for p in fixed[0]])).marks
    assert any("all runs of A came before all of B" in one for one in marks)


@pytest.mark.slow
@pytest.mark.long
def test_of_sixty_drifting_machines_a_fixed_order_is_always_called_different_and_blocks_seldom() -> None:
    # Binomial(60, 5 %): more than 8 have a chance of 0.4 %.
    assert sum(differs(drifting("A" * 8 + "B" * 8, seed)) for seed in range(60)) == 60
    assert sum(differs(drifting(blocked(seed), seed)) for seed in range(60)) <= 8
