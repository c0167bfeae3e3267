"""Users who wait for the reply before they send again: how many there are, and how long they think."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from squall.scenarios.arrays import Floats, Int64s
from squall.scenarios.exact import draws, scalars
from squall.scenarios.fields import BY_KIND, Count, Cv, Duration, PositiveDuration, Section

if TYPE_CHECKING:
    from numpy.random import Generator

LARGEST_USER_COUNT = 1_000_000  # each is a connection in the worst case
_LONGEST_NS = 2**62


class Think(Section):
    """How long a user thinks between a reply and the next request; each kind has `mean_ns` and `cv`."""

    kind: str

    def draw(self, rng: Generator, count: int) -> Int64s:
        """`count` think times, (count,) int64, drawn independently and rounded to the nearest ns."""
        return np.minimum(np.rint(self._drawn(rng, count)), _LONGEST_NS).astype(np.int64)

    def mean_excess_ns(self, elapsed_ns: Int64s) -> Floats:
        """Mean rest of a think time that has lasted `elapsed_ns` (0 or more) so far, same shape."""
        raise NotImplementedError

    def _drawn(self, rng: Generator, count: int) -> Floats:
        raise NotImplementedError


class ConstantThink(Think):
    """Every user thinks equally long; 0: the next request follows the reply at once."""

    cv: ClassVar[float] = 0.0
    kind: Literal["constant"] = "constant"
    value_ns: Duration = 0

    @property
    def mean_ns(self) -> int:
        return self.value_ns

    def draw(self, rng: Generator, count: int) -> Int64s:
        del rng
        return np.full(count, self.value_ns, dtype=np.int64)

    def mean_excess_ns(self, elapsed_ns: Int64s) -> Floats:
        """value - e."""
        return np.maximum(self.value_ns - elapsed_ns, 0.0)


class ExponentialThink(Think):
    """Exponential think times."""

    cv: ClassVar[float] = 1.0
    kind: Literal["exponential"]
    mean_ns: PositiveDuration

    def mean_excess_ns(self, elapsed_ns: Int64s) -> Floats:
        """The mean, without memory."""
        return np.full(np.shape(elapsed_ns), float(self.mean_ns))

    def _drawn(self, rng: Generator, count: int) -> Floats:
        return draws.standard_exponential(rng, count) * self.mean_ns


class LognormalThink(Think):
    """Lognormal think times; mean and cv are those of the time itself, not of its logarithm."""

    kind: Literal["lognormal"]
    mean_ns: PositiveDuration
    cv: Cv

    def mean_excess_ns(self, elapsed_ns: Int64s) -> Floats:
        """E[T | T > e] - e = mean · Φ(d + sigma) / Φ(d) - e with d = (mu - ln e) / sigma.

        The partial expectation of the lognormal, by completing the square.
        """
        from scipy.special import ndtr

        mu, sigma = scalars.lognormal_parameters(self.mean_ns, self.cv)
        with np.errstate(divide="ignore"):  # of 0, after which the mean is left
            d = (mu - np.log(elapsed_ns)) / sigma
        # 8 sigma out nothing is left of the probability: the rest is taken as 0, it is of no think time seen
        beyond = np.where(ndtr(d) > 1e-15, ndtr(d), np.inf)
        rest_ns: Floats = np.maximum(self.mean_ns * ndtr(d + sigma) / beyond - elapsed_ns, 0.0)
        return rest_ns

    def _drawn(self, rng: Generator, count: int) -> Floats:
        return draws.lognormal(rng, *scalars.lognormal_parameters(self.mean_ns, self.cv), count)


ThinkConfig = Annotated[ConstantThink | ExponentialThink | LognormalThink, BY_KIND]


class ClosedArrivals(Section):
    """Closed loop: each user sends, waits for the reply, thinks, and sends again.

    It has no schedule, so no response time and no send lag; see `squall.scenarios.plan.closed`.
    """

    kind: Literal["closed"]
    users: Annotated[Count, Field(le=LARGEST_USER_COUNT)]
    think: ThinkConfig = ConstantThink()
    ramp_ns: Duration = 0


class LocustArrivals(Section):
    """What the users of `load.locust` send, who wait for their replies; a phase need not state it."""

    kind: Literal["locust"]
