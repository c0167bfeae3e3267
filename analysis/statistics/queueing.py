"""Queues whose response times are known: M/M/1, M/D/1 and M/M/c, in closed form and by simulation.

Symbols, here and below: μ = 1/service_ns is the rate of one lane, ρ = load_ratio, c = n_lanes, λ = ρ c μ the rate of
the Poisson arrivals. Response time T = waiting time W + service time, first come, first served. All times in ns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Floats
from squall.analysis.statistics.latency import nearest_rank
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

Instant = TypeVar("Instant", np.int64, np.float64)
_CHUNK_CELLS = 4_000_000
"""Numbers in one array of the simulation: 32 MB."""
_OUTER_RANK = 3
"""Which simulated run from outside bounds a range: the first would make its width a matter of luck."""
_TAIL_TERMS = 40
"""Poisson terms of a mean below 1 beyond which the rest is below 1e-47."""


class Queue(Frozen):
    """Poisson arrivals, service times of `law` with mean `service_ns`, `n_lanes` lanes, each busy for `load_ratio`."""

    law: Literal["constant", "exponential"]
    n_lanes: int
    load_ratio: float
    service_ns: int

    def __post_init__(self) -> None:
        if not 0.0 < self.load_ratio < 1.0:
            raise ValueError(f"the load lies between 0 and 1, not at {self.load_ratio}")
        if self.n_lanes < 1 or self.service_ns < 1:
            raise ValueError("a queue has 1 lane or more, and a service time of 1 ns or more")
        if self.law == "constant" and self.n_lanes > 1:
            raise ValueError("constant service times are known here for 1 lane only")

    @property
    def name(self) -> str:
        """As Kendall writes it."""
        return f"M/{'D' if self.law == 'constant' else 'M'}/{self.n_lanes}"

    @property
    def arrival_hz(self) -> float:
        """λ in Hz."""
        return self.load_ratio * self.n_lanes * NS_PER_S / self.service_ns

    def response_cdf(self, t_ns: float) -> float:
        """P(T ≤ t)."""
        if self.law == "constant":
            return md1_response_cdf(t_ns, self.load_ratio, self.service_ns)
        return mmc_response_cdf(t_ns, self.n_lanes, self.load_ratio, self.service_ns)

    def response_quantile(self, q: float) -> float:
        """The smallest t in ns with P(T ≤ t) ≥ q, for q in (0, 1); M/M/1 in closed form, else by bisection."""
        if self.law == "exponential" and self.n_lanes == 1:
            return mm1_response_quantile(q, self.load_ratio, self.service_ns)
        return _bisected(self.response_cdf, q, self.service_ns)


def mm1_response_quantile(q: float, load_ratio: float, service_ns: float) -> float:
    """The q-quantile of T of M/M/1 in ns: -ln(1 - q) / (μ - λ).

    Source: Kleinrock, Queueing Systems I (1975), section 5.6: the response time is exponential with rate μ - λ.
    """
    _refuse_no_probability(q)
    return -math.log1p(-q) * service_ns / (1.0 - load_ratio)


def erlang_c(n_lanes: int, load_ratio: float) -> float:
    """Probability that an arrival of M/M/c waits: C = B / (1 - ρ (1 - B)); ρ for c = 1.

    B is Erlang's loss formula by its recursion B(0) = 1, B(k) = a B(k-1) / (k + a B(k-1)) with a = c ρ; no term is
    negative, so nothing cancels. Source: Erlang (1917); Cooper, Introduction to Queueing Theory (1981), chapter 3.
    """
    offered = n_lanes * load_ratio
    blocked = 1.0
    for k in range(1, n_lanes + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1.0 - load_ratio * (1.0 - blocked))


def mmc_response_cdf(t_ns: float, n_lanes: int, load_ratio: float, service_ns: float) -> float:
    """P(T ≤ t) of M/M/c: 1 - exp(-μ t) - C μ exp(-m t) (1 - exp(-d t)) / d; 0 for t < 0.

    θ = cμ - λ, m = min(μ, θ), d = |μ - θ| (for d = 0 the last factor is t), C = `erlang_c`. Derivation: W exceeds t
    with probability C exp(-θ t) (Cooper 1981, chapter 3) and is independent of the service time, so that
    P(T > t) = exp(-μ t) + ∫ μ exp(-μ s) C exp(-θ (t - s)) ds over 0 ≤ s ≤ t.
    """
    t = max(t_ns, 0.0) / service_ns  # in service times: μ = 1
    theta = n_lanes * (1.0 - load_ratio)
    slower, apart = min(1.0, theta), abs(1.0 - theta)
    factor = -math.expm1(-apart * t) / apart if apart > 0.0 else t
    late = math.exp(-t) + erlang_c(n_lanes, load_ratio) * math.exp(-slower * t) * factor
    return max(0.0, 1.0 - late)


def md1_response_cdf(t_ns: float, load_ratio: float, service_ns: float) -> float:
    """P(T ≤ t) of M/D/1, where T = W + D and D = service_ns; 0 for t < D.

    For W ≤ x with x = (k+1) D - y, 0 < y ≤ D: look y before the arrival. The server then works off one request in
    each D, so the arrival begins by x exactly if those who wait there (Q) and those who come in the next y (A) are k
    at most. A is Poisson(λ y), independent of Q, so P(W ≤ x) = Σ P(A = j) P(Q ≤ k - j) over j = 0 … k. Every term is
    positive: Crommelin's alternating sum, the same value, cancels away all digits as x grows.
    Source: Franx (2001), A simple solution for the M/D/c waiting time distribution, Oper. Res. Lett. 29, for c = 1.
    """
    wait = t_ns / service_ns - 1.0
    if wait < 0.0:
        return 0.0
    k = math.floor(wait)
    n_waiting = _md1_waiting_cdf(load_ratio, k + 1)
    came = _poisson(load_ratio * (k + 1.0 - wait), k + 1)
    return min(1.0, float(np.dot(came, n_waiting[::-1])))


def _md1_waiting_cdf(load_ratio: float, n: int) -> Floats:
    """P(Q ≤ m) for m = 0 … n-1: Q wait behind the one in service, at a random instant of M/D/1.

    With p_i the distribution of the number in the system and ā_m = P(Poisson(ρ) > m), crossings of level i up and
    down between departures balance: p_{i+1} ā'_0 = p_0 ā_i + Σ p_j ā_{i+1-j} over j = 1 … i, where ā'_0 = exp(-ρ),
    p_0 = 1 - ρ. All terms are positive. P(Q ≤ m) = p_0 + … + p_{m+1}.
    """
    # tails summed from their far end: 1 - sum would lose its digits
    above = np.cumsum(_poisson(load_ratio, n + _TAIL_TERMS)[::-1])[::-1][1:]
    p = np.zeros(n + 1)
    p[0] = 1.0 - load_ratio
    for i in range(n):
        up = p[0] * above[i] + float(np.dot(p[1 : i + 1], above[i:0:-1]))
        p[i + 1] = up / math.exp(-load_ratio)
    waiting: Floats = np.minimum(np.cumsum(p)[1:], 1.0)
    return waiting


def _poisson(mean: float, n: int) -> Floats:
    """P(Poisson(mean) = j) for j = 0 … n-1."""
    ratios = mean / np.arange(1.0, n)
    return math.exp(-mean) * np.concatenate([[1.0], np.cumprod(ratios)])


def _bisected(cdf: Callable[[float], float], q: float, service_ns: float) -> float:
    """The smallest t with cdf(t) ≥ q to a millionth of a service time; `cdf` must not decrease."""
    _refuse_no_probability(q)
    high = service_ns
    while cdf(high) < q:
        high *= 2.0
    low = 0.0
    while high - low > 1e-6 * service_ns:
        middle = (low + high) / 2.0
        low, high = (low, middle) if cdf(middle) >= q else (middle, high)
    return high


def _refuse_no_probability(q: float) -> None:
    if not 0.0 < q < 1.0:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")


# simulation


def departures_ns(
    arrivals_ns: NDArray[Instant], services_ns: NDArray[Instant], n_lanes: int
) -> NDArray[Instant]:
    """When each request leaves a FIFO queue; all arrays (n_replications, n), arrivals sorted along each row.

    Of whole ns the departures are exact.

    One lane: departure_n = max over k ≤ n of (arrival_k + service_k + … + service_n), Lindley's recursion (1952)
    unrolled. More: each request takes the lane that is free first (Kiefer and Wolfowitz 1955).
    """
    if n_lanes == 1:
        worked = np.cumsum(services_ns, axis=1)
        busy_since = np.maximum.accumulate(arrivals_ns - worked + services_ns, axis=1)
        one_lane: NDArray[Instant] = worked + busy_since
        return one_lane
    free = np.zeros((len(arrivals_ns), n_lanes), arrivals_ns.dtype)
    rows = np.arange(len(arrivals_ns))
    left = np.empty_like(arrivals_ns)
    for n in range(arrivals_ns.shape[1]):
        lane = free.argmin(axis=1)
        left[:, n] = np.maximum(arrivals_ns[:, n], free[rows, lane]) + services_ns[:, n]
        free[rows, lane] = left[:, n]
    return left


def simulate_quantiles(
    queue: Queue, window_ns: int, qs: Sequence[float], n_replications: int, rng: np.random.Generator
) -> Floats:
    """(n_replications, len(qs)) ns: the quantiles of response time that one run each would have measured.

    A run starts with an empty queue and takes all arrivals of `window_ns`, as a measured one does, so its estimates
    have the spread of correlated response times and the bias of the start. Quantiles by
    `order_statistics.nearest_rank`; nan for a run without arrivals.
    """
    mean_count = queue.arrival_hz * window_ns / NS_PER_S
    n_most = math.ceil(mean_count + 8.0 * math.sqrt(mean_count) + 20.0)
    n_rows = max(1, _CHUNK_CELLS // n_most)
    parts = []
    for first in range(0, n_replications, n_rows):
        shape = (min(n_rows, n_replications - first), n_most)
        parts.append(_quantiles_of(queue, window_ns, qs, shape, rng))
    return np.concatenate(parts)


def _quantiles_of(
    queue: Queue, window_ns: int, qs: Sequence[float], shape: tuple[int, int], rng: np.random.Generator
) -> Floats:
    arrivals = np.cumsum(rng.exponential(NS_PER_S / queue.arrival_hz, shape), axis=1)
    services = (
        np.full(shape, float(queue.service_ns))
        if queue.law == "constant"
        else rng.exponential(queue.service_ns, shape)
    )
    responses = departures_ns(arrivals, services, queue.n_lanes) - arrivals
    responses[arrivals >= window_ns] = math.inf  # beyond the window: sorted to the end, and counted out below
    responses.sort(axis=1)
    counts = np.count_nonzero(arrivals < window_ns, axis=1)
    out = np.full((shape[0], len(qs)), math.nan)
    for row, n in enumerate(counts.tolist()):
        if n:
            out[row] = [responses[row, nearest_rank(q, n) - 1] for q in qs]
    return out


def sampling_ranges(
    queue: Queue, window_ns: int, qs: Sequence[float], miss_ratio: float, rng: np.random.Generator
) -> list[tuple[float, float]]:
    """For each of `qs` the (low, high) in ns outside of which a run's own quantile falls with chance `miss_ratio`.

    Half of it on each side: a run as `simulate_quantiles` makes it and the N simulated ones are exchangeable, so it
    lies below the 3rd smallest of them with probability 3 / (N + 1), whatever the correlation inside a run.
    """
    n_replications = math.ceil(2 * _OUTER_RANK / miss_ratio)
    estimates = np.sort(simulate_quantiles(queue, window_ns, qs, n_replications, rng), axis=0)
    return [(float(column[_OUTER_RANK - 1]), float(column[-_OUTER_RANK])) for column in estimates.T]
