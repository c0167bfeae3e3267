"""Mean differences over pairs, in the unit of the figure, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from squall.analysis.statistics.student import mean_of
from squall.scenarios.records import Frozen


class MeanChange(Frozen):
    """`what` is `a` in A and `b` in B, means over pairs; `change` = b - a with its interval, which one pair has not."""

    what: str
    a: float
    b: float
    change: float
    low: float | None
    high: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and not self.low <= 0.0 <= self.high


def mean_change(what: str, a: Sequence[float], b: Sequence[float], level: float) -> MeanChange:
    """Of one or more pairs; t interval at 1 - level."""
    n, d = len(a), [other - one for one, other in zip(a, b, strict=True)]
    means = math.fsum(a) / n, math.fsum(b) / n
    if n == 1:
        return MeanChange(what, *means, d[0], None, None)
    change = mean_of(d)
    half = change.half(level)
    return MeanChange(what, *means, change.mean, change.mean - half, change.mean + half)
