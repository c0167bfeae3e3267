"""Intervals of quantiles hold the true one about as often as they say, on queues; where they cannot, there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.bench.coverage import Coverage, averaged, ours, plain, pooled, truth
from tests.queue_runs import CASES, PAUSES, PauseCase, QueueCase

STEADY, BUSTLING, BURSTY, BURSTIER = CASES


def least(share: float, n: float) -> float:
    """`share` less three standard errors of a share of n."""
    return share - 3.0 * math.sqrt(share * (1.0 - share) / n)


def shares(
    case: QueueCase | PauseCase, seed: int, n_runs: int, n: int, q: float
) -> tuple[Coverage, Coverage]:
    """How often the intervals of one run hold the truth, and those of plain order statistics."""
    runs_ns, truth_ns = case.runs_ns(np.random.default_rng(seed), n_runs, n), case.quantile_ns(q)
    own, independent = ([interval(one, q) for one in runs_ns] for interval in (ours, plain))
    return Coverage.of(own, truth_ns), Coverage.of(independent, truth_ns)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("case", "q", "n_runs", "n", "given", "covered", "independent"),
    [
        (STEADY, 0.95, 40, 10_000, 0.99, 0.93, 0.80),
        (STEADY, 0.99, 40, 10_000, 0.99, 0.93, 0.80),
        (BUSTLING, 0.95, 40, 10_000, 0.99, 0.93, 0.80),
        (PAUSES, 0.95, 16, 40_000, 1.0, 0.92, 1.0),
        pytest.param(BURSTY, 0.95, 12, 100_000, 0.98, 0.92, 0.50, marks=SLOW),
    ],
)
def test_intervals_cover_where_plain_order_statistics_do_not(
    case: QueueCase, q: float, n_runs: int, n: int, given: float, covered: float, independent: float
) -> None:
    own, others = shares(case, 1, n_runs, n, q)
    assert own.given >= least(given, n_runs)
    assert own.covered >= least(covered, n_runs * own.given)
    assert others.covered <= independent


@pytest.mark.parametrize(
    ("case", "q"), [(BUSTLING, 0.99), (BURSTY, 0.95), (BURSTIER, 0.95), (BURSTIER, 0.99)]
)
def test_a_run_that_holds_too_few_bursts_gets_no_interval(case: QueueCase, q: float) -> None:
    own, independent = shares(case, 1, 24, 10_000, q)
    assert own.given <= 0.20
    assert own.given * (1 - (own.covered if own.given else 1.0)) <= 0.05  # a wrong interval in 1 run at most
    assert independent.covered < 0.50


@pytest.mark.slow
def test_runs_together_cover_where_the_mean_of_their_quantiles_does_not() -> None:
    runs_ns = BURSTIER.runs_ns(np.random.default_rng(2), 250, 2_000).reshape(25, 10, 2_000)
    truth_ns = BURSTIER.quantile_ns(0.95)
    together = Coverage.of([pooled(some, 0.95) for some in runs_ns], truth_ns)
    means = Coverage.of([averaged(some, 0.95) for some in runs_ns], truth_ns)
    assert together.covered >= least(0.92, 25)
    assert means.covered < 0.70


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("case", [BURSTY, BURSTIER])
def test_the_known_quantiles_of_bursty_queues_are_those_of_a_simulation(case: QueueCase) -> None:
    for q, (value_ns, error_ns) in zip((0.5, 0.95, 0.99), truth(case), strict=True):
        assert case.quantile_ns(q) == pytest.approx(value_ns, abs=4 * error_ns + 0.001 * value_ns)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "n_runs"), [(10_000, 200), pytest.param(100_000, 80, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "case", [CASES[0], *(pytest.param(one, marks=pytest.mark.long) for one in CASES[1:])]
)
def test_intervals_cover_at_every_quantile_and_length(case: QueueCase, n: int, n_runs: int) -> None:
    for q in (0.5, 0.95, 0.99):
        own, _ = shares(case, 4, n_runs, n, q)
        wrong = own.given * (1 - own.covered) if own.given else 0.0
        assert wrong <= 1 - least(0.93, n_runs)
        if own.given > 0.5:  # where few runs are given one, those are not like the rest
            assert own.covered >= least(0.93, n_runs * own.given)


@pytest.mark.parametrize(
    ("case", "n", "qs", "n_independent"),
    [
        # 2,000,000 rows are like 55,700 independent ones (tau 35.9)
        (BUSTLING, 2_000_000, (0.5, 0.95), 55_700),
        # 500 pauses: at p95 their share of rows has a standard error of 6 % of 2.5 %, 0.0015
        (PAUSES, 1_000_000, (0.5, 0.95, 0.99), 15_000),
    ],
)
def test_what_is_simulated_has_the_known_quantiles(
    case: QueueCase, n: int, qs: tuple[float, ...], n_independent: int
) -> None:
    """The share below within four standard errors."""
    values = case.responses_ns(np.random.default_rng(5), n)
    for q in qs:
        share = np.mean(values <= case.quantile_ns(q))
        assert share == pytest.approx(q, abs=4 * math.sqrt(q * (1 - q) / n_independent))
