"""One-sided tolerance factors: those of the tables, and kept by samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from squall.analysis.statistics.tolerance import tolerance_factor


def test_factors_are_those_of_the_tables() -> None:
    found = [tolerance_factor(n) for n in (5, 8, 10, 20)]
    assert found == pytest.approx([3.41, 2.58, 2.35, 1.93], abs=0.0051)  # two digits: 2.355 stands as 2.35


def test_so_many_samples_keep_the_share_as_the_confidence_says() -> None:
    values = np.random.default_rng(3).standard_normal((20_000, 5))
    bound = values.mean(axis=1) - tolerance_factor(5) * values.std(axis=1, ddof=1)
    # nine tenths lie above -1.28155; binomial: 4 standard errors of 20,000 samples are 0.006
    assert abs((bound < -1.2815516).mean() - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 20_000)


@pytest.mark.parametrize(("n", "share", "confidence"), [(1, 0.9, 0.95), (5, 0.4, 0.95), (5, 0.9, 1.0)])
def test_what_has_no_factor_is_refused(n: int, share: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="no tolerance factor"):
        tolerance_factor(n, share, confidence)
