"""Which entry of the data a request carries, drawn from a seeded stream; the same bits on every CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, assert_never

import numpy as np

from squall.scenarios.arrays import Array, Floats
from squall.scenarios.exact import arrays, draws

if TYPE_CHECKING:  # of a file's sections: a worker without data starts without them
    from numpy.random import Generator

    from squall.scenarios.config.inputs import DrawnOrder

Draw = Callable[[int], Array]
"""The entries of the next n requests, from 0 on."""


def entry_dtype(n_entries: int) -> type[np.uint8 | np.uint16 | np.uint32]:
    """What holds the number of a payload variant, or of an entry. A wider one is drawn otherwise: it is part of what a
    seed means."""
    if n_entries <= 256:
        return np.uint8
    return np.uint16 if n_entries <= 65_536 else np.uint32


def drawn(order: DrawnOrder | None, n_entries: int, rng: Generator, first: int = 0, step: int = 1) -> Draw:
    """Draws of `order` (None: of variants that squall makes, equally often); in sequence the requests are number
    `first`, `first + step`, … of all."""
    dtype = entry_dtype(n_entries)
    place = first

    def in_turn(count: int) -> Array:
        nonlocal place
        found = place + step * np.arange(count, dtype=np.int64)
        place += step * count
        return (found % n_entries).astype(dtype)

    if order is None or order.kind == "random":
        return lambda count: rng.integers(0, n_entries, count, dtype=dtype)
    match order.kind:
        case "sequence":
            return in_turn
        case "zipf":
            bounds = zipf_bounds(n_entries, order.exponent)
            return lambda count: draws.places(bounds, rng, count).astype(dtype)
        case _:
            assert_never(order.kind)


@lru_cache(maxsize=64)
def zipf_bounds(n_entries: int, exponent: float) -> Floats:
    """(n_entries,): the probability of an entry up to each; that of entry k, from 0 on, is as (k+1)^-exponent."""
    return draws.bounds_of(arrays.power(np.arange(1, n_entries + 1, dtype=np.float64), -exponent))
