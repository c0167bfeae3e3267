"""Planted runs: an order that agrees, one that contradicts, one that cannot be told; and how often equal rows are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from squall.analysis.published.result import (
    AGREES,
    CONTRADICTS,
    EQUAL,
    UNMEASURED,
    UNTOLD,
    Ordering,
    RunFigures,
    middle,
)
from squall.scenarios.published.file import PublishedFile
from tests.planted_experiment import DEPTH, MS, judged, noisy_runs, published, run

SEED = 20_261_126


def _rows(**throughput: float) -> list[dict[str, Any]]:
    return [{"name": name, "published": {"throughput_hz": value}} for name, value in throughput.items()]


def _words(
    file: PublishedFile, truth: dict[str, dict[str, float]], n_seeds: int, seed: int = SEED
) -> list[str]:
    runs = noisy_runs(truth, n_seeds, np.random.default_rng(seed))
    return [one.word for one in _orderings(file, runs)]


def _orderings(file: PublishedFile, runs: list[RunFigures]) -> tuple[Ordering, ...]:
    return judged(file, runs).orderings


def test_planted_orders_agree_contradict_and_cannot_be_told_apart() -> None:
    file = published(_rows(slow=1000, fast=1200, close=1210))
    truth = {
        "slow": {"throughput_hz": 4000.0},
        "fast": {"throughput_hz": 6000.0},
        "close": {"throughput_hz": 2000.0},
    }
    found = {
        (one.one, one.other): one
        for one in _orderings(file, noisy_runs(truth, 4, np.random.default_rng(SEED)))
    }
    assert found["slow", "fast"].word == AGREES
    assert found["slow", "close"].word == CONTRADICTS
    assert found["fast", "close"].word == CONTRADICTS
    agreeing = found["slow", "fast"]
    assert agreeing.published_ratio == 1.2
    assert agreeing.ratio == pytest.approx(
        1.5, rel=0.05
    )  # four runs of 1 % noise each: 1 % x sqrt(2 / 4), seven times
    assert agreeing.low is not None
    assert agreeing.high is not None
    assert agreeing.low < 1.5 < agreeing.high
    alike = {name: {"throughput_hz": 4000.0} for name in truth}
    assert set(_words(file, alike, 4)) == {UNTOLD}


def test_a_latency_is_better_where_it_is_lower() -> None:
    file = published([
        {"name": "one", "published": {"p50_ns": "400ms"}}, {"name": "other", "published": {"p50_ns": "500ms"}},
    ])  # fmt: skip
    (found,) = _orderings(file, [])
    assert found.word == UNMEASURED
    assert found.better == "one"
    assert replace(found, figure="throughput_hz").better == "other"
    assert replace(found, published_ratio=1.0).better is None


def test_with_one_seed_nothing_is_told_apart_however_far_rows_are() -> None:
    file = published(_rows(slow=1000, fast=1200))
    truth = {"slow": {"throughput_hz": 10.0}, "fast": {"throughput_hz": 6000.0}}
    (found,) = _orderings(file, noisy_runs(truth, 1, np.random.default_rng(SEED)))
    assert found.word == UNTOLD
    assert found.ratio == pytest.approx(600, rel=0.1)
    assert found.low is None


def test_equal_published_values_and_rows_without_runs_have_their_own_words() -> None:
    file = published(_rows(one=1000, same=1000, third=2000))
    truth = {"one": {"throughput_hz": 10.0}, "same": {"throughput_hz": 20.0}}
    assert _words(file, truth, 3) == [EQUAL, UNMEASURED, UNMEASURED]


def test_only_runs_of_parts_that_give_the_figure_and_are_valid_count() -> None:
    file = published(_rows(slow=1000, fast=1200))
    truth = {"slow": {"throughput_hz": 10.0}, "fast": {"throughput_hz": 20.0}}
    runs = noisy_runs(truth, 3, np.random.default_rng(SEED))
    assert [one.word for one in _orderings(file, runs)] == [AGREES]
    assert [one.word for one in _orderings(file, [replace(one, part=DEPTH) for one in runs])] == [UNMEASURED]
    invalid = [replace(one, status="INVALID") if one.row == "fast" else one for one in runs]
    assert [one.word for one in _orderings(file, invalid)] == [UNMEASURED]


def test_the_last_attempt_of_a_seed_counts() -> None:
    file = published(_rows(slow=1000, fast=1200))
    runs = [
        run(row, seed, {"throughput_hz": 10.0 + seed}, status="INVALID")
        for row in ("slow", "fast")
        for seed in (1, 2)
    ]
    again = [run("fast", seed, {"throughput_hz": 30.0 + seed}, attempt=2) for seed in (1, 2)]
    again += [run("slow", seed, {"throughput_hz": 10.0 + seed}, attempt=2) for seed in (1, 2)]
    (found,) = _orderings(file, [*runs, *again])
    assert found.n_pairs == 2
    assert found.ratio == pytest.approx(math.sqrt(31 / 11 * 32 / 12))


def test_a_quantile_on_failures_is_slower_than_any_and_so_few_ranks_show_nothing() -> None:
    file = published([
        {"name": "one", "published": {"p99_ns": "400ms"}}, {"name": "other", "published": {"p99_ns": "500ms"}},
    ])  # fmt: skip
    runs = [run("one", seed, {"p99_ns": 400.0 * MS}) for seed in (1, 2, 3)]
    runs += [run("other", seed, {"p99_ns": "infinite"}) for seed in (1, 2, 3)]
    (found,) = _orderings(file, runs)
    assert (found.word, found.ratio) == (UNTOLD, None)


def test_equal_rows_are_told_apart_in_at_most_one_experiment_in_twenty() -> None:
    """Five rows of two figures each that differ by noise alone, 20 pairs: of 200 experiments at most 5 % may have any
    pair told apart, with 2 standard errors of 200 draws: 5 % + 2 x sqrt(0.05 x 0.95 / 200) = 8.1 %. Rows without Holm
    would be told apart in about half of them: the test can fail."""
    n_experiments = 200
    rows = [
        {"name": f"r{at}", "published": {"throughput_hz": 1000 + at, "p50_ns": 500 * MS + at}}
        for at in range(5)
    ]
    file = published(rows)
    truth = {f"r{at}": {"throughput_hz": 4000.0, "p50_ns": 250.0 * MS} for at in range(5)}
    wrong = sum(
        bool({AGREES, CONTRADICTS} & set(_words(file, truth, 3, seed))) for seed in range(n_experiments)
    )
    assert wrong / n_experiments <= 0.05 + 2.0 * math.sqrt(0.05 * 0.95 / n_experiments)


def test_a_range_stands_for_its_geometric_middle() -> None:
    assert middle((1.0, 4.0)) == 2.0
    assert middle("text") is None
    assert middle((0.0, 1.0)) is None
