"""The simulated servers that planted truths rest on, held to answers that are known."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulated_servers import batched_response, fifo_response, gamma_arrivals, routed_response


def test_a_queue_worked_by_hand() -> None:
    response = fifo_response(np.array([0.0, 1.0, 1.0, 10.0]), np.array([2.0, 1.0, 1.0, 3.0]))
    assert response.tolist() == [2.0, 2.0, 3.0, 3.0]


def test_the_mean_wait_of_poisson_arrivals_is_that_of_pollaczek_and_khinchine() -> None:
    load = 0.6
    waits = [
        (fifo_response(gamma_arrivals(np.random.default_rng(seed), 40_000) / load, 1.0) - 1.0)[2_000:].mean()
        for seed in range(20)
    ]
    # M/D/1: load / (2 (1 - load)) service times; 20 runs, so within 4 standard errors of their mean.
    assert np.mean(waits) == pytest.approx(
        load / (2 * (1 - load)), abs=4 * np.std(waits, ddof=1) / np.sqrt(20)
    )


def test_batches_worked_by_hand() -> None:
    found = batched_response(np.array([0.0, 0.1, 0.2, 5.0]), 1.0, 0.5, max_rows=2, delay_s=0.3)
    # 0 and 0.1 fill a batch of two at 0.1: it ends at 2.1; 0.2 has waited since and goes alone, 5.0 waits for 0.3.
    assert found.response_s.tolist() == pytest.approx([2.1, 2.0, 3.4, 1.8])
    assert found.batch_rows.tolist() == [2, 2, 1, 1]


def test_one_server_is_a_queue_under_every_policy() -> None:
    arrivals = gamma_arrivals(np.random.default_rng(1), 2_000, 3.0)
    expected = fifo_response(arrivals, 0.8)
    for policy in ("round-robin", "random", "least-in-flight"):
        found = routed_response(arrivals, [0.8], policy, np.random.default_rng(2))
        assert found.response_s == pytest.approx(expected)


def test_least_in_flight_leaves_no_server_idle_beside_a_queue() -> None:
    found = routed_response(
        np.array([0.0, 0.0, 1.0]), [10.0, 1.0], "least-in-flight", np.random.default_rng(0)
    )
    assert found.server.tolist() == [0, 1, 1]
