"""Several models under one load: which payload variants are whose, and which model each request asks.

Each model has a range of the plan's payload variants, so that a variant names its model. Models are drawn from a seeded
stream, and what else is drawn for a request by that model's own law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.exact import draws

Draw = Callable[[int], NDArray[Any]]
"""What is drawn for the next n requests, (n,)."""


@dataclass(frozen=True)
class VariantRange:
    """The payload variants of one model: [first, first + n_variants) of those of the plan."""

    first: int
    n_variants: int


ONE_MODEL = (VariantRange(0, 2**32),)
"""Of a plan that has one model, whatever its variants."""


def ranges_of(counts: Sequence[int]) -> tuple[VariantRange, ...]:
    """One after another from 0 on, for models with so many variants each."""
    firsts = [0, *accumulate(counts)]
    return tuple(VariantRange(first, n) for first, n in zip(firsts, counts, strict=False))


def models_of(variants: Any, ranges: Sequence[VariantRange]) -> NDArray[np.int64]:
    """The number of the model of each variant, (n,)."""
    if len(ranges) == 1:
        return np.zeros(np.shape(variants), np.int64)
    firsts = np.array([one.first for one in ranges], np.int64)
    found: NDArray[np.int64] = np.searchsorted(firsts, variants, side="right").astype(np.int64) - 1
    return found


def drawn_models(shares: Sequence[float], rng: np.random.Generator) -> Draw:
    """Numbers of models, each independently with a probability in proportion to its share."""
    numbers, weights = np.arange(len(shares)), np.array(shares, np.float64)
    return lambda count: draws.by_weight(numbers, weights, rng, count)


def mixed(models: Draw, parts: Sequence[Draw], dtype: np.dtype[Any] | type[Any]) -> Draw:
    """Of each request what `parts` gives for its model, which `models` says: a model's own draws depend on nothing but
    how many its requests are."""

    def draw(count: int) -> NDArray[Any]:
        numbers, found = models(count), np.empty(count, dtype)
        for number, part in enumerate(parts):
            places = np.flatnonzero(numbers == number)
            found[places] = part(places.size)
        return found

    return draw


def shifted(draw: Draw, by: int, dtype: np.dtype[Any] | type[Any]) -> Draw:
    """The same, so much higher."""
    return lambda count: draw(count).astype(dtype) + np.asarray(by, dtype)
