from __future__ import annotations

import math

import numpy as np
import pytest

from squall.analysis.statistics import block_bootstrap
from squall.analysis.statistics.autocorrelation import deviations
from squall.analysis.statistics.block_bootstrap import MOST_BLOCKS, N_DRAWS, draw, n_blocks_of
from tests.unit.analysis.statistics.test_autocorrelation import two_state


def test_blocks_last_ten_autocorrelation_times_or_more() -> None:
    assert n_blocks_of(3_000, 1.0) == 300
    assert n_blocks_of(10_000, 35.0) == 28
    assert n_blocks_of(10_000_000, 1.0) == MOST_BLOCKS
    assert n_blocks_of(99, 10.0) == 0


def test_a_draw_is_the_sum_of_blocks_that_go_round_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).uniform(size=101) < 0.3
    found = draw(deviations(rows), 7).counts
    mean = rows.mean()
    picked = np.random.default_rng(1).integers(0, 101, (N_DRAWS, 7))
    expected = sorted(
        sum(rows[(start + np.arange(15)) % 101].sum() - 15 * mean for start in starts) * math.sqrt(101 / 105)
        for starts in picked.tolist()
    )
    assert found == pytest.approx(expected, abs=1e-9)
    monkeypatch.setattr(block_bootstrap, "_SEED", 2)
    assert not np.array_equal(found, draw(deviations(rows), 7).counts)


@pytest.mark.parametrize(("leave", "tau"), [(0.5, 1.0), (0.05, 19.0)])
def test_the_spread_of_counts_is_that_of_the_series(leave: float, tau: float) -> None:
    n = 100_000
    rows = two_state(np.random.default_rng(2), n, leave, leave)
    n_blocks = n_blocks_of(n, tau)
    found = draw(deviations(rows), n_blocks).counts
    # A block of ten tau misses a tenth of it at most. Variance of a variance from k blocks: 2 / k, that of 2,000 draws
    # far less; four standard errors.
    variance = found.var() / (n * rows.mean() * (1 - rows.mean()))
    assert 0.9 * tau * (1 - 4 * math.sqrt(2 / n_blocks)) < variance < tau * (1 + 4 * math.sqrt(2 / n_blocks))
    assert abs(found.mean()) < 4 * found.std() / math.sqrt(N_DRAWS)


def test_blocks_of_which_few_hold_all_that_varies_count_for_few() -> None:
    rng = np.random.default_rng(3)
    even = draw(deviations(rng.uniform(size=40_000) < 0.5), 100)
    # Sums of 400 rows: kurtosis of a binomial, -6 / 400 + 1 / 100 and its error of sqrt(24 / 100), once sampled
    assert 99 / (1 + 99 * 1.5 / 200) < even.degrees <= 99
    rows = np.zeros(40_000, dtype=np.bool_)
    rows[10_000:10_400] = rows[30_000:30_200] = True
    assert draw(deviations(rows), 100).degrees < 6
    assert draw(deviations(np.ones(100, dtype=np.bool_)), 5).degrees >= 1
