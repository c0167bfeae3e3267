"""Which model each request asks, drawn from a seeded stream, and what else is drawn for it by that model's own law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.exact import draws

Draw = Callable[[int], NDArray[Any]]
"""What is drawn for the next n requests, (n,)."""


def mixed(
    shares: Sequence[float], rng: Callable[[], np.random.Generator], parts: Sequence[Draw], dtype: Any
) -> Draw:
    """Of each request what `parts` draws for its model, which is drawn by `rng` in proportion to `shares`; of one model
    its own draws, and no `rng` is made. A model's draws depend on nothing but how many its requests are."""
    if len(parts) == 1:
        return parts[0]
    models = drawn_models(shares, rng())

    def draw(count: int) -> NDArray[Any]:
        numbers, found = models(count), np.empty(count, dtype)
        for number, part in enumerate(parts):
            places = np.flatnonzero(numbers == number)
            found[places] = part(places.size)
        return found

    return draw


def drawn_models(shares: Sequence[float], rng: np.random.Generator) -> Draw:
    """Numbers of models, each independently with a probability in proportion to its share."""
    numbers, weights = np.arange(len(shares)), np.array(shares, np.float64)
    return lambda count: draws.by_weight(numbers, weights, rng, count)


def shifted(draw: Draw, by: int, dtype: np.dtype[Any] | type[Any]) -> Draw:
    """The same, so much higher."""
    if not by:
        return draw
    return lambda count: draw(count).astype(dtype) + np.asarray(by, dtype)
