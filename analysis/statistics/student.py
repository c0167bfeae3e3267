"""Quantiles and tails of Student's distribution. scipy is imported when one is first asked for."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from squall.scenarios.records import Frozen

_CLOSE = 1e-12
"""Of a mean, or of 1: what is nearer is a repetition to the last digit."""


@functools.cache
def student_quantile(probability: float, degrees: float) -> float:
    """The point below which Student's distribution with `degrees`, whole or not, has `probability`.

    Raises ValueError for a probability outside (0.5, 1) and degrees of 0 or less.
    """
    if not (0.5 < probability < 1.0 and degrees > 0.0):
        raise ValueError(f"no quantile {probability:g} of {degrees:g} degrees of freedom")
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def student_tail(t: float, degrees: float) -> float:
    """The probability of more than `t` >= 0, 0 of an infinite one. Raises ValueError for degrees of 0 or less, and a
    `t` below 0."""
    if not (t >= 0.0 and degrees > 0.0):
        raise ValueError(f"no tail of {t:g} with {degrees:g} degrees of freedom")
    from scipy.special import stdtr

    return float(stdtr(degrees, -t))


class Mean(Frozen):
    """Of `n` >= 2 independent values: their mean and standard deviation."""

    n: int
    mean: float
    spread: float

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.spread / math.sqrt(self.n)

    def half(self, level: float) -> float:
        """Half the width of the interval of the mean at 1 - `level` (Student 1908, Biometrika 6(1))."""
        return student_quantile(1.0 - level / 2.0, self.n - 1) * self.error

    @property
    def p_value(self) -> float:
        """Two-sided, of a mean of 0; of values that are all one value 0, or 1 where that is 0."""
        if self.error <= _CLOSE * max(1.0, abs(self.mean)):
            return 1.0 if abs(self.mean) <= _CLOSE else 0.0
        return 2.0 * student_tail(abs(self.mean) / self.error, self.n - 1)


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of two values or more."""
    n = len(values)
    mean = math.fsum(values) / n
    return Mean(n, mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)))
