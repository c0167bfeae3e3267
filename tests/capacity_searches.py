"""Capacity searches on a simulated clock: levels of servers whose capacity is known, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from squall.analysis.arrays import Floats
from squall.analysis.compare.figures import BROKEN, KEPT
from squall.analysis.studies.capacity_probe import Probe
from squall.analysis.studies.capacity_search import Found, Options, search
from tests.simulated_servers import batched_response, fifo_response, gamma_arrivals

SERVICE_S = 0.01
"""D of the first-come-first-served server."""
Q = 0.95
Serve = Callable[[Floats], Floats]
"""Response times of arrivals, both in seconds."""


def fifo(arrival_s: Floats) -> Floats:
    """A server of constant service time D."""
    return fifo_response(arrival_s, SERVICE_S)


def delayed_batches(arrival_s: Floats) -> Floats:
    """A batch of b takes 2 + 0.25 b ms, b up to 8, and waits up to 20 ms to be full."""
    return batched_response(arrival_s, 0.002, 0.000_25, 8, 0.02).response_s


def p95_s(response_s: Floats) -> float:
    """By nearest rank."""
    rank = math.ceil(Q * len(response_s)) - 1
    return float(np.partition(response_s, rank)[rank])


@dataclass
class Simulated:
    """Levels of a server, for `search`: one schedule a seed, of `n` gamma gaps of `cv`, scaled in time.

    `family` tells the seeds of one search from those of others. `asked`: what was measured, in turn.
    """

    serve: Serve
    limit_s: float
    cv: float = 1.0
    n: int = 6_000
    family: int = 0
    asked: list[tuple[int, float, str]] = field(default_factory=list)
    _unit: dict[int, Floats] = field(default_factory=dict)

    def __call__(self, seed: int, rate_hz: float, purpose: str) -> Probe:
        self.asked.append((seed, rate_hz, purpose))
        if seed not in self._unit:
            self._unit[seed] = gamma_arrivals(np.random.default_rng([self.family, seed]), self.n, self.cv)
        arrival_s = self._unit[seed] / rate_hz
        response_s = self.serve(arrival_s)
        margin = math.log(p95_s(response_s) / self.limit_s)
        verdict = KEPT if margin < 0.0 else BROKEN
        return Probe(seed, rate_hz, verdict, margin, "p(95)", _grows(arrival_s, response_s))


def _grows(arrival_s: Floats, response_s: Floats) -> bool:
    """Whether the backlog grew by more than a twentieth of all arrivals, by least squares."""
    at_s = np.linspace(0.0, arrival_s[-1], 101)[1:]
    backlog = np.searchsorted(arrival_s, at_s) - np.searchsorted(np.sort(arrival_s + response_s), at_s)
    return bool(np.polyfit(at_s / arrival_s[-1], backlog, 1)[0] > 0.05 * len(arrival_s))


@dataclass(frozen=True)
class Searched:
    """Of a search: what it found, the share of fresh seeds that keep the safe load, its number of runs."""

    found: Found
    kept_ratio: float
    n_runs: int

    def holds(self, truth_hz: float) -> bool:
        """Whether the interval holds it."""
        interval = self.found.interval
        return interval is not None and interval.low_hz <= truth_hz <= interval.high_hz

    @property
    def width_ratio(self) -> float:
        """Of the interval."""
        interval = self.found.interval
        assert interval is not None
        return (interval.high_hz - interval.low_hz) / interval.rate_hz


def searched(cv: float, limit_s: float, family: int, n_fresh: int = 50, n_seeds: int = 5) -> Searched:
    """One search on the first-come-first-served server, from 50/s on."""
    levels = Simulated(fifo, limit_s, cv, family=family)
    found = search(levels, Options(n_seeds, 1, 50.0, 5_000.0))
    n_runs = len(levels.asked)
    assert found.safe is not None
    kept = [levels(1_000 + number, found.safe.rate_hz, "").is_kept for number in range(n_fresh)]
    return Searched(found, sum(kept) / max(n_fresh, 1), n_runs)
