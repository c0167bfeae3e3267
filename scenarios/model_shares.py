"""Several models under one load: each has a range of the plan's payload variants, so that a variant names its model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.records import Frozen


class VariantRange(Frozen):
    """The payload variants of one model: [first, first + n_variants) of those of the plan."""

    first: int
    n_variants: int

    @property
    def stop(self) -> int:
        """The first variant behind them."""
        return self.first + self.n_variants


ONE_MODEL = (VariantRange(0, 2**32),)
"""Of a plan that has one model, whatever its variants."""


def ranges_of(counts: Sequence[int]) -> tuple[VariantRange, ...]:
    """One after another from 0 on, for models with so many variants each."""
    firsts = [0, *accumulate(counts)]
    return tuple(VariantRange(first, n) for first, n in zip(firsts, counts, strict=False))


def models_of(variants: Any, ranges: Sequence[VariantRange]) -> Int64s:
    """The number of the model of each variant, (n,)."""
    if len(ranges) == 1:
        return np.zeros(np.shape(variants), np.int64)
    firsts = np.array([one.first for one in ranges], np.int64)
    found: Int64s = np.searchsorted(firsts, variants, side="right").astype(np.int64) - 1
    return found
