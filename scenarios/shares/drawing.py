"""Which model each request asks, drawn from a seeded stream, and what else is drawn for it by that model's own law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.exact import draws

Draw = Callable[[int], NDArray[Any]]
"""What is drawn for the next n requests, (n,)."""


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
