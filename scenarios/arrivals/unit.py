"""Arrival processes of rate 1 on a dimensionless axis: the burstiness that `arrivals` scales and bends.

One unit of the axis is one expected arrival, so every process here has mean count exactly `length`
on [0, length). All start in their stationary state: N superposed copies show no burst at 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrivals.gaps import GammaGaps, GapLaw
from squall.scenarios.exact import draws, scalars

Points = NDArray[np.float64]

CHUNK = 1 << 20
"""Draws at a time. It is part of what a seed means: some laws draw a longer array differently."""
_MOST_SPREAD_C2 = 100.0
"""Of heavier gaps a few are so long that fewer, not more, of them reach the end."""
_BURN_IN_MISSED = 1e-9


class UnitProcess(Protocol):
    """A stationary point process of rate 1."""

    def points(self, rng: np.random.Generator, length: float) -> Points:
        """Points in [0, length), (n,) float64, sorted; empty for length 0."""


@dataclass(frozen=True)
class UnitPoisson:
    """Independent arrivals: c2 of gaps 1, IDC 1 at every window."""

    def points(self, rng: np.random.Generator, length: float) -> Points:
        """Exact: a Poisson count, placed independently and uniformly."""
        points = rng.random(int(draws.poisson(rng, length, 1)[0]))
        points *= length
        points.sort()
        return points


@dataclass(frozen=True)
class UnitRenewal:
    """Independent gaps of one law, the first from its equilibrium law."""

    law: GapLaw

    def points(self, rng: np.random.Generator, length: float) -> Points:
        """Gaps drawn in blocks until they pass `length`."""
        blocks = [np.array([self.law.first_gap(rng)])]
        reached = float(blocks[0][0])
        while reached < length:
            missing = length - reached
            spread = math.sqrt(min(self.law.c2, _MOST_SPREAD_C2) * missing)
            block = self.block(rng, int(missing + 4 * spread) + 16)
            block += reached
            blocks.append(block)
            reached = float(block[-1])
        last = blocks.pop()
        blocks.append(last[: np.searchsorted(last, length)])
        return np.concatenate(blocks)

    def block(self, rng: np.random.Generator, count: int) -> Points:
        """Cumulated gaps, (count,), with the memory of one array."""
        block = np.empty(count)
        for start in range(0, count, CHUNK):
            part = block[start : start + CHUNK]
            part[:] = self.law.gaps(rng, part.size)
        return np.cumsum(block, out=block)


def gamma_renewals(rng: np.random.Generator, cvs: Points, lengths: Points) -> list[Points]:
    """Points of many `UnitRenewal` of Gamma gaps, each of a cv and over a length of its own, drawn together."""
    c2 = cvs * cvs
    reached = draws.gamma_each(rng, 1 / c2 + 1) * c2 * rng.random(cvs.size)
    blocks = [[reached[i : i + 1]] for i in range(cvs.size)]
    todo = np.flatnonzero(reached < lengths)
    reached = reached.copy()
    while todo.size:
        missing = lengths[todo] - reached[todo]
        counts = (missing + 4 * np.sqrt(np.minimum(c2[todo], _MOST_SPREAD_C2) * missing)).astype(
            np.int64
        ) + 16
        for part in groups(counts, CHUNK):
            for i, block in zip(todo[part], _gamma_blocks(rng, cvs[todo[part]], counts[part]), strict=True):
                block += reached[i]
                blocks[i].append(block)
                reached[i] = block[-1]
        todo = todo[reached[todo] < lengths[todo]]
    whole = [np.concatenate(parts) for parts in blocks]
    return [
        points[: np.searchsorted(points, end)] for points, end in zip(whole, lengths.tolist(), strict=True)
    ]


def _gamma_blocks(rng: np.random.Generator, cvs: Points, counts: NDArray[np.int64]) -> list[Points]:
    """Cumulated gaps of each."""
    if cvs.size == 1:
        return [UnitRenewal(GammaGaps(float(cvs[0]))).block(rng, int(counts[0]))]
    c2 = np.repeat(cvs * cvs, counts)
    gaps = draws.gamma_each(rng, 1 / c2)
    gaps *= c2
    parts = np.split(gaps, np.cumsum(counts)[:-1])
    return [np.cumsum(part, out=part) for part in parts]


def groups(counts: NDArray[np.int64], most: int) -> list[slice]:
    """Neighbours whose counts sum to `most` at most, or one alone that is above it."""
    found, start, total = [], 0, 0
    for place, count in enumerate(counts.tolist()):
        if total and total + count > most:
            found.append(slice(start, place))
            start, total = place, 0
        total += count
    return [*found, slice(start, counts.size)]


@dataclass(frozen=True)
class UnitHawkes:
    """Self-exciting process: each arrival brings `n` further ones on average, at Exp(`beta`) delays.

    Intensity 1 - n + n·beta·X(t), X(t) = Σ exp(-beta(t - t_i)); `beta` is per expected arrival. IDC(∞) = 1/(1-n)²
    (Hawkes, Biometrika 58, 1971; the branching form is Hawkes and Oakes, J. Appl. Prob. 11, 1974).
    """

    n: float
    beta: float

    def __post_init__(self) -> None:
        if not (0 <= self.n <= LARGEST_HAWKES_N and self.beta >= SMALLEST_HAWKES_BETA):
            raise ValueError(
                f"hawkes needs 0 <= n <= {LARGEST_HAWKES_N} and beta >= {SMALLEST_HAWKES_BETA} per expected arrival,"
                f" not n={self.n}, beta={self.beta:g}"
            )

    def points(self, rng: np.random.Generator, length: float) -> Points:
        """Roots from `-burn_in` on, and the first children of what was before; then generation after generation."""
        start = -self.burn_in()
        roots = rng.random(int(draws.poisson(rng, (1 - self.n) * (length - start), 1)[0]))
        roots *= length - start
        before = self._delays(rng, int(draws.poisson(rng, self.n * self._excitation(rng), 1)[0]))
        generation = np.concatenate([roots, before[before < length - start]])
        generation += start
        generations = []
        while generation.size:
            generations.append(generation[generation >= 0])
            children = [self._children(rng, part, length) for part in _chunks(generation)]
            generation = np.concatenate(children)
        points = np.concatenate([*generations, np.empty(0)])
        points.sort()
        return points

    def _children(self, rng: np.random.Generator, parents: Points, length: float) -> Points:
        born = np.repeat(parents, draws.poisson(rng, self.n, parents.size))
        born += self._delays(rng, born.size)
        return born[born < length]

    def _delays(self, rng: np.random.Generator, count: int) -> Points:
        delays = draws.standard_exponential(rng, count)
        delays /= self.beta
        return delays

    def _excitation(self, rng: np.random.Generator) -> float:
        """X at the start of the burn-in: Gamma of the stationary mean 1/beta and variance 1/(2·beta·(1-n)).

        The moments follow from 0 = d/dt E X² = -2·beta·E X² + E[(1 - n + n·beta·X)(2X + 1)]. The Gamma law is that
        of the diffusion limit (Jaisson, Rosenbaum, Ann. Appl. Prob. 25, 2015); the burn-in wears off what differs.
        """
        shape = 2 * (1 - self.n) / self.beta
        return float(draws.standard_gamma(rng, shape, 1)[0]) / (2 * (1 - self.n))

    def burn_in(self) -> float:
        """Length before 0 after which what was before leaves fewer than 1e-9 arrivals, at most 100,000.

        The descendants of a root at 0 have intensity n·beta·exp(-k·u) at u, with k = beta(1-n) (the
        resolvent of the kernel). Roots before -B therefore leave, after 0,
        (1-n) ∫_B^∞ ∫_s^∞ n·beta·exp(-k·u) du ds = (n/k)·exp(-k·B).
        """
        k = self.beta * (1 - self.n)
        if not self.n:
            return 0.0
        return min(max(0.0, scalars.log(self.n / k / _BURN_IN_MISSED) / k), LONGEST_BURN_IN)


LARGEST_HAWKES_N = 0.99
SMALLEST_HAWKES_BETA = 1e-9
LONGEST_BURN_IN = 1e5
"""Where it does not suffice, k < 3e-4: the excitation then sums thousands of arrivals and its Gamma law is close."""


def _chunks(points: Points) -> list[Points]:
    return [points[start : start + CHUNK] for start in range(0, max(points.size, 1), CHUNK)]
