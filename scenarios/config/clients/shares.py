"""Shares of the requests, taken by their ids."""

from __future__ import annotations

import math

SMALLEST_SHARE = 1e-9
"""Less is a mistyped number: no run has a billion requests."""


def every_of(share: float, n_parties: int) -> int:
    """Requests whose id is a multiple of it are at least `share` of all, and of those of each of `n_parties`.

    Parties (workers times servers; users of a closed loop) take ids in turn, so the two must have no common factor:
    the largest such number.
    """
    every = max(1, int(1 / share + 1e-9))
    while math.gcd(every, n_parties) != 1:
        every -= 1
    return every
