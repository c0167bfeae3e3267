"""One-sided tolerance factors: those of the tables, and kept by samples."""

from __future__ import annotations

import pytest

from squall.analysis.statistics.tolerance import tolerance_factor


def test_factors_are_those_of_the_tables() -> None:
    found = [tolerance_factor(n) for n in (5, 8, 10, 20)]
    assert found == pytest.approx([3.41, 2.58, 2.35, 1.93], abs=0.0051)  # two digits: 2.355 stands as 2.35
