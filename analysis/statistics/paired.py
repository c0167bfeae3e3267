"""The ratio of two conditions measured in pairs, with a 95 % interval: pure arithmetic.

    order of the runs   bare profiled | profiled bare | profiled bare | …      drawn for each pair
    pair                     0              1               2

Derivation. A figure x > 0 of run j in pair i is modelled as ln x = m_i + [profiled] d + e. What the two runs of a
pair share, the state of the machine at that time, is m_i, and the difference D_i = ln(profiled_i / bare_i) = d + e'
is free of it. With D_i independent and normal, (mean(D) - d) / (s / sqrt(N)) has Student's distribution with
N - 1 degrees of freedom (Student 1908, Biometrika 6(1); paired observations: Jain, The Art of Computer Systems
Performance Analysis, 1991, section 13.4.1). The interval of d is taken to the ratio by exp, so that +5 % and its
inverse are treated alike, and a ratio is never below 0.

A drift of the machine that is linear in the run's number adds +g to D of a bare-first pair and -g to that of a
profiled-first pair. With an order that is drawn for each pair its mean is 0 over all orders, and s holds it.

The interval of a quantile within one run (`squall.analysis.statistics.latency`) is not added to it. It tells how far
the rows of that run stand for other rows of it; whatever of that differs between repeats is in the spread of D_i
already, so that adding it would count it twice, and what does not differ (the same seed, the same schedule) cancels
in D_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from squall.analysis.statistics.student import mean_of
from squall.scenarios.errors import AnalysisError
from squall.scenarios.records import Frozen

LEAST_PAIRS = 2
LEVEL = 0.05


class PairedRatio(Frozen):
    """profiled / bare: the geometric mean of `n_pairs` ratios, and its 95 % interval [low, high], all > 0."""

    ratio: float
    low: float
    high: float
    n_pairs: int
    p_value: float
    """two-sided, of no change"""

    @property
    def is_distinguishable(self) -> bool:
        """Whether the interval leaves out 1: no change."""
        return not self.low <= 1.0 <= self.high


def paired_ratio(profiled: Sequence[float], bare: Sequence[float]) -> PairedRatio:
    """The ratio of figures of the same pair, pair by pair, in the same order.

    Raises AnalysisError for fewer than two pairs, for sequences of two lengths, and for figures that are not positive
    and finite, which have no logarithm.
    """
    if len(profiled) != len(bare):
        raise AnalysisError(f"pairs have two figures each, not {len(profiled)} and {len(bare)} in all")
    if len(bare) < LEAST_PAIRS:
        raise AnalysisError(f"an interval takes {LEAST_PAIRS} whole pairs at least, not {len(bare)}")
    if not all(0.0 < value < math.inf for value in (*profiled, *bare)):
        raise AnalysisError("a ratio needs positive, finite figures")
    log = mean_of([math.log(p / b) for p, b in zip(profiled, bare, strict=True)])
    half = log.half(LEVEL)
    return PairedRatio(
        math.exp(log.mean), math.exp(log.mean - half), math.exp(log.mean + half), log.n, log.p_value
    )
