"""Runs whose quantiles are known, of queues and of a server that pauses: what intervals are tried on.

One server, constant service times, a mean gap of 1 ms; arrivals are Poisson, or alternate between 3 times the mean
rate for 50 mean gaps and 0.5 times for 200, each spell of exponential length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from squall.analysis.statistics.queueing import Queue, departures_ns

GAP_NS = 1_000_000
_SPELLS = ((3.0, 50.0), (0.5, 200.0))
"""Rate over the mean one, and mean length in mean gaps."""

_MOST_ROWS = 4_000_000
"""Rows that are simulated at a time."""

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]


def poisson_times(rng: np.random.Generator, n: int) -> Floats:
    """(n,) arrivals in mean gaps."""
    return np.cumsum(rng.exponential(size=n))


def bursty_times(rng: np.random.Generator, n: int) -> Floats:
    """(n,) arrivals in mean gaps, in spells of two rates."""
    n_cycles = int(1.15 * n / sum(rate * length for rate, length in _SPELLS)) + 60
    lengths = rng.exponential([length for _, length in _SPELLS], (n_cycles, 2)).ravel()
    counts = rng.poisson(lengths * np.tile([rate for rate, _ in _SPELLS], n_cycles))
    starts = np.cumsum(lengths) - lengths
    times = np.repeat(starts, counts) + rng.uniform(size=counts.sum()) * np.repeat(lengths, counts)
    times.sort()
    assert len(times) >= n
    return np.asarray(times[:n])


class _Runs:
    """Stretches of simulated rows."""

    def responses_ns(self, rng: np.random.Generator, n: int) -> Int64s:
        """(n,) response times in order of the schedule."""
        raise NotImplementedError

    def runs_ns(self, rng: np.random.Generator, n_runs: int, n: int, n_between: int = 10_000) -> Int64s:
        """(n_runs, n) response times: stretches of long runs, each `n_between` rows after the one before."""
        length = n + n_between
        at_once = max(1, _MOST_ROWS // length)
        parts = []
        for first in range(0, n_runs, at_once):
            n_here = min(at_once, n_runs - first)
            whole = self.responses_ns(rng, n_here * length)
            parts.append(whole.reshape(n_here, length)[:, n_between:])
        return np.concatenate(parts)


@dataclass(frozen=True)
class QueueCase(_Runs):
    """A queue at a load. `known_ns`: quantiles of its response time by q, None where a formula gives them."""

    name: str
    times: Callable[[np.random.Generator, int], Floats]
    load_ratio: float
    known_ns: dict[float, float] | None = None

    def quantile_ns(self, q: float) -> float:
        """The true quantile."""
        if self.known_ns is not None:
            return self.known_ns[q]
        return Queue("constant", 1, self.load_ratio, round(self.load_ratio * GAP_NS)).response_quantile(q)

    def responses_ns(self, rng: np.random.Generator, n: int) -> Int64s:
        """(n,) response times of a queue that begins empty."""
        arrivals_ns = GAP_NS * self.times(rng, n)[None, :]
        services_ns = np.full((1, n), self.load_ratio * GAP_NS)
        return np.asarray(np.rint(departures_ns(arrivals_ns, services_ns, 1) - arrivals_ns)[0], np.int64)


@dataclass(frozen=True)
class PauseCase(_Runs):
    """Independent exponential response times of mean 1 ms, and 20 ms more while the server pauses.

    A pause begins at each row with chance `start_ratio` and lasts a geometric number of rows of mean `mean_count`.
    """

    name: str
    start_ratio: float
    mean_count: float

    def quantile_ns(self, q: float) -> float:
        """The true quantile: P(X > x) = (1 - s) exp(-x) + s min(1, exp(20 - x)), s = 1 - exp(-start mean) the share of
        rows within pauses (pauses that run into one another: M/G/infinity)."""
        paused = -math.expm1(-self.start_ratio * self.mean_count)
        if 1.0 - q > paused + (1.0 - paused) * math.exp(-20.0):
            return -math.log((1.0 - q - paused) / (1.0 - paused)) * GAP_NS
        return math.log((1.0 - paused + paused * math.exp(20.0)) / (1.0 - q)) * GAP_NS

    def responses_ns(self, rng: np.random.Generator, n: int) -> Int64s:
        starts = np.flatnonzero(rng.uniform(size=n) < self.start_ratio)
        ends = np.minimum(starts + rng.geometric(1.0 / self.mean_count, len(starts)), n)
        changes = np.bincount(starts, minlength=n + 1) - np.bincount(ends, minlength=n + 1)
        response: Floats = rng.exponential(size=n) + 20.0 * (changes.cumsum()[:n] > 0)
        return np.asarray(np.rint(GAP_NS * response), np.int64)


CASES = (
    QueueCase("M/D/1, 50 %", poisson_times, 0.5),
    QueueCase("M/D/1, 80 %", poisson_times, 0.8),
    QueueCase("bursty, 50 %", bursty_times, 0.5, {0.5: 9.323e6, 0.95: 80.59e6, 0.99: 130.2e6}),
    QueueCase("bursty, 70 %", bursty_times, 0.7, {0.5: 42.34e6, 0.95: 264.6e6, 0.99: 418.9e6}),
)
"""Known quantiles of the bursty queues: of 200 million simulated rows, `python -m tests.bench.coverage --truth`."""

PAUSES = PauseCase("rare pauses", 1 / 2_000, 50.0)
