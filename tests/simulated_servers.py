"""Servers on a simulated clock: response times of arrivals that are given, without a sleep.

Seconds throughout. They share nothing with Triton but the shape of its queueing: what is planted in them is what a
decision must find.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from squall.analysis.arrays import Floats, Int64s


def gamma_arrivals(rng: np.random.Generator, n: int, cv: float = 1.0) -> Floats:
    """(n,) instants of a renewal process of rate 1 with gamma gaps of that coefficient of variation; 1: Poisson."""
    shape = 1.0 / cv**2
    found: Floats = np.cumsum(rng.gamma(shape, 1.0 / shape, n))
    return found


def fifo_response(arrival_s: Floats, service_s: Floats | float) -> Floats:
    """(n,) response times behind one server, first come first served (Lindley 1952).

    With S(k) the sum of service times up to k, request k ends at S(k) + max over j <= k of (arrival(j) - S(j - 1)).
    """
    service = np.broadcast_to(np.asarray(service_s, dtype=np.float64), arrival_s.shape)
    total = np.cumsum(service)
    done = total + np.maximum.accumulate(arrival_s - (total - service))
    response: Floats = done - arrival_s
    return response


@dataclass(frozen=True)
class Batched:
    """`response_s` (n,) and the rows of each request's batch, `batch_rows` (n,)."""

    response_s: Floats
    batch_rows: Int64s


def batched_response(
    arrival_s: Floats, fixed_s: float, each_s: float, max_rows: int, delay_s: float = 0.0
) -> Batched:
    """One instance behind a dynamic batcher, rows of one request each: a batch of b takes fixed_s + each_s b.

    It starts when the instance is free and either `max_rows` wait or the first has waited for `delay_s`.
    """
    n = len(arrival_s)
    response, rows = np.empty(n), np.empty(n, dtype=np.int64)
    free_s, first = 0.0, 0
    arrivals = arrival_s.tolist()
    while first < n:
        full = first + max_rows - 1
        full_s = arrivals[full] if full < n else np.inf
        start_s = max(free_s, min(full_s, arrivals[first] + delay_s))
        last = first
        while last < n and last - first < max_rows and arrivals[last] <= start_s:
            last += 1
        free_s = start_s + fixed_s + each_s * (last - first)
        response[first:last] = free_s - arrival_s[first:last]
        rows[first:last] = last - first
        first = last
    return Batched(response, rows)


@dataclass(frozen=True)
class Routed:
    """`response_s` (n,) and which server each request went to, `server` (n,)."""

    response_s: Floats
    server: Int64s


def routed_response(
    arrival_s: Floats, service_s: Sequence[float], policy: str, rng: np.random.Generator
) -> Routed:
    """A server a GPU, each first come first served. `policy`: round-robin, random, or least-in-flight, of several the
    first."""
    n, k = len(arrival_s), len(service_s)
    if policy == "round-robin":
        server: Int64s = np.arange(n, dtype=np.int64) % k
    elif policy == "random":
        server = rng.integers(0, k, n)
    else:
        assert policy == "least-in-flight", policy
        return _least_in_flight(arrival_s, service_s)
    response = np.empty(n)
    for one in range(k):
        own = server == one
        response[own] = fifo_response(arrival_s[own], service_s[one])
    return Routed(response, server)


def _least_in_flight(arrival_s: Floats, service_s: Sequence[float]) -> Routed:
    n, k = len(arrival_s), len(service_s)
    response, server = np.empty(n), np.empty(n, dtype=np.int64)
    free_s, waiting = [0.0] * k, [0] * k
    ends: list[tuple[float, int]] = []
    for row, at_s in enumerate(arrival_s.tolist()):
        while ends and ends[0][0] <= at_s:
            waiting[heapq.heappop(ends)[1]] -= 1
        one = min(range(k), key=waiting.__getitem__)
        free_s[one] = max(free_s[one], at_s) + service_s[one]
        waiting[one] += 1
        heapq.heappush(ends, (free_s[one], one))
        response[row], server[row] = free_s[one] - at_s, one
    return Routed(response, server)
