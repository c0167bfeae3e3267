"""One-sided tolerance factors: those of the tables, and kept by samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.analysis.statistics.tolerance import tolerance_factor


@pytest.mark.parametrize(("n", "factor"), [(5, 3.41), (8, 2.58), (10, 2.35), (20, 1.93)])
def test_factors_are_those_of_the_tables(n: int, factor: float) -> None:
    assert abs(tolerance_factor(n) - factor) <= 0.0051  # the tables' two digits: 2.355 stands as 2.35


def test_so_many_samples_keep_the_share_as_the_confidence_says() -> None:
    n, n_samples = 5, 20_000
    values = np.random.default_rng(3).standard_normal((n_samples, n))
    bound = values.mean(axis=1) - tolerance_factor(n) * values.std(axis=1, ddof=1)
    # nine tenths lie above -1.28155; binomial: 4 standard errors of 20,000 samples are 0.006
    assert abs((bound < -1.2815516).mean() - 0.95) < 4 * math.sqrt(0.95 * 0.05 / n_samples)


@pytest.mark.parametrize(("n", "share", "confidence"), [(1, 0.9, 0.95), (5, 0.4, 0.95), (5, 0.9, 1.0)])
def test_what_has_no_factor_is_refused(n: int, share: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="no tolerance factor"):
        tolerance_factor(n, share, confidence)
