"""How much of each response-time quantile is send lag, which is the client's and not the server's.

For request i with lag l_i >= 0 and service time s_i the response time is r_i = l_i + s_i; both are infinite where it
failed. With Q_p the nearest-rank quantile of the same requests,

    lag part of p = Q_p(r) - Q_p(s)

what the quantile would have been less, had every request been sent at its time and been served for as long as it was.
Since s_i <= r_i for each i, it is never negative, never more than the largest lag, 0 without lag, and a if every lag is
a. It is of the quantile itself: the lag of another quantile, or of a burst that only the tail has seen, is not in it. A
server that is slow because late requests came at once has that in s: the part is then the least that lag did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.limits import LIMITS, allowed_lag_ns
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.order_statistics import nearest_rank, smallest_n
from squall.analysis.statistics.stretches import INFINITE_NS
from squall.scenarios.records import Frozen

JUDGED = (0.50, 0.95, 0.99)
"""Quantiles whose lag part the verdict holds to its limit; the screen marks any that it prints."""


class LagPart(Frozen):
    """Of the `q`-quantile of response time: what is lag, and the most that may be."""

    q: float
    response_ns: int
    excess_ns: int
    limit_ns: int

    STATED: ClassVar = ("ratio", "is_above")

    @property
    def ratio(self) -> float:
        """Share of the quantile that is lag."""
        return self.excess_ns / self.response_ns if self.response_ns else 0.0

    @property
    def is_above(self) -> bool:
        """More than is allowed."""
        return self.excess_ns > self.limit_ns


def lag_parts(requests: Requests, qs: Sequence[float]) -> list[LagPart | None]:
    """Of each of `qs`; None in a closed loop, where n rows cannot carry it, and where it falls on failures."""
    n = len(requests)
    carried = [q for q in qs if requests.is_open and n >= smallest_n(q)]
    if not carried:
        return [None] * len(qs)
    ranks = [nearest_rank(q, n) - 1 for q in carried]
    is_failed = ~requests.is_ok
    response = _at_ranks(requests.response_ns, is_failed, ranks)
    service = _at_ranks(requests.service_ns, is_failed, ranks)
    found = {
        q: LagPart(q, whole, whole - part, allowed_lag_ns(whole, LIMITS.timer_ns))
        for q, whole, part in zip(carried, response, service, strict=True)
        if whole != INFINITE_NS
    }
    return [found.get(q) for q in qs]


def _at_ranks(values_ns: Int64s, is_failed: Bools, ranks: Sequence[int]) -> list[int]:
    """The values at these places of the order, failures last. `values_ns` is used up: there may be millions."""
    values_ns[is_failed] = INFINITE_NS
    values_ns.partition(sorted(set(ranks)))
    return [int(values_ns[rank]) for rank in ranks]
