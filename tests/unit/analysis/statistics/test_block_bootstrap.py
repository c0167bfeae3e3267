"""Draws of blocks, held to their definition and to the spread of series that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.analysis.statistics.autocorrelation import deviations
from squall.analysis.statistics.block_bootstrap import N_DRAWS, draw, n_blocks_of
from tests.unit.analysis.statistics.test_autocorrelation import two_state


def test_a_draw_is_the_sum_of_blocks_that_go_round_the_end() -> None:
    rows = np.random.default_rng(1).uniform(size=101) < 0.3
    starts = np.random.default_rng(1).integers(0, 101, (N_DRAWS, 7))
    drawn = rows[(starts[:, :, None] + np.arange(15)) % 101] - rows.mean()
    expected = np.sort(drawn.sum(axis=(1, 2)) * math.sqrt(101 / 105))
    assert draw(deviations(rows), 7).counts == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("leave", "tau"), [(0.5, 1.0), (0.05, 19.0)])
def test_the_spread_of_counts_is_that_of_the_series(leave: float, tau: float) -> None:
    n = 100_000
    rows = two_state(np.random.default_rng(2), n, leave, leave)
    n_blocks = n_blocks_of(n, tau)
    found = draw(deviations(rows), n_blocks).counts
    # A block of ten tau misses a tenth of it at most. Variance of a variance from k blocks: 2 / k, that of 2,000 draws
    # far less; four standard errors.
    variance, error = found.var() / (n * rows.mean() * (1 - rows.mean())), 4 * math.sqrt(2 / n_blocks)
    assert 0.9 * tau * (1 - error) < variance < tau * (1 + error)
    assert abs(found.mean()) < 4 * found.std() / math.sqrt(N_DRAWS)


def test_blocks_of_which_few_hold_all_that_varies_count_for_few() -> None:
    even = np.random.default_rng(3).uniform(size=40_000) < 0.5
    # Sums of 400 rows: kurtosis of a binomial, -6 / 400 + 1 / 100 and its error of sqrt(24 / 100), once sampled
    assert 99 / (1 + 99 * 1.5 / 200) < draw(deviations(even), 100).degrees <= 99
    rows = np.zeros(40_000, dtype=np.bool_)
    rows[10_000:10_400] = rows[30_000:30_200] = True
    assert 1 <= draw(deviations(rows), 100).degrees < 6
