"""A 64-bit hash of whole numbers, the same on any machine: what shares rows out by session or by number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrays import Int64s

_GAMMA = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = np.uint64(31)


def mix64(numbers: Int64s, salt: int = 0) -> NDArray[np.uint64]:
    """A well mixed 64-bit value of each number, same shape; another `salt` gives an independent one.

    The output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) at number + (salt + 1)·γ: a bijection, so that
    different numbers never collide.
    """
    mixed = numbers.astype(np.uint64)
    mixed += np.uint64((salt + 1) * _GAMMA % 2**64)
    for shift, factor in _STEPS:
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> _LAST_SHIFT
    return mixed
