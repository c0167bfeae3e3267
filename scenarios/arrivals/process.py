"""What every open arrival process is: a section of a scenario file that draws its own arrivals.

No clock and no sleep: a section turns a generator and a length of time into absolute offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from squall.scenarios.arrays import Floats, Int64s, pieces
from squall.scenarios.arrivals.presets import PRESETS
from squall.scenarios.exact.renewals import CHUNK
from squall.scenarios.fields import OneForm, Rate, Section
from squall.scenarios.units import NS_PER_S, digits_text

if TYPE_CHECKING:
    from numpy.random import Generator

MOST_DRAWN = 110_000_000
"""Arrivals of one draw, a tenth above what a phase may have: more would fill the memory before it is refused."""
LARGEST_PATH = 1 << 26
"""Pieces of a path: 1 GiB of edges and areas; more is a mistyped bin or time constant."""


class OpenProcess(Section):
    """Arrivals over a stretch of time whatever the server does; t = 0 is its start.

    `example`: one of about 100/s, as a scenario file has it; every promise about processes is tested on it.
    """

    example: ClassVar[str]
    kind: str

    def draw(self, rng: Generator, horizon_ns: int, whole_ns: int | None = None) -> Int64s:
        """Arrivals in [0, horizon_ns), (n,) int64, sorted, ties allowed.

        They are the first of a stretch of `whole_ns` (None: of `horizon_ns`), over which a fixed rate curve has its
        mean. Raises ValueError for more than `MOST_DRAWN` and for parameters that only the length shows to be wrong,
        ScenarioError, with file and row, for a trace that cannot be used.
        """
        raise NotImplementedError

    def expected_count(self, t_ns: int, whole_ns: int) -> float:
        """Expected arrivals in [0, t_ns) of a stretch of `whole_ns`; of random rates the expectation over draws."""
        raise NotImplementedError

    def stated_count(self, horizon_ns: int) -> float:
        """Arrivals in [0, horizon_ns) by the stated rates alone; a trace states none and counts 0."""
        raise NotImplementedError


class Rated(OpenProcess):
    """A process with a mean rate, the same at every instant unless the process says otherwise."""

    rate_hz: Rate

    def draw(self, rng: Generator, horizon_ns: int, whole_ns: int | None = None) -> Int64s:
        del whole_ns
        refuse_many(self.stated_count(horizon_ns))
        return self._drawn(rng, horizon_ns)

    def expected_count(self, t_ns: int, whole_ns: int) -> float:
        del whole_ns
        return self.stated_count(t_ns)

    def stated_count(self, horizon_ns: int) -> float:
        return self.rate_hz * (horizon_ns / NS_PER_S)

    def _drawn(self, rng: Generator, horizon_ns: int) -> Int64s:
        raise NotImplementedError


class Fitted(OneForm, Rated):
    """A process with parameters of its own, or those of a preset."""

    preset: str | None = None

    def settled(self) -> Any:
        """The same class with the keys of the preset in its place, but for those that it states itself."""
        if self.preset is None:
            return self
        own = self.model_dump(mode="json", by_alias=True, exclude={"preset"}, exclude_none=True)
        return self.model_validate({**PRESETS[self.preset][self.kind], **own})


def floor_in_place(points: Floats) -> Int64s:
    """The whole ns of points in ns, (n,) int64; takes over their memory, since a schedule is most of a planner's."""
    offsets = points.view(np.int64)
    for rows in pieces(points.size, CHUNK):
        offsets[rows] = np.floor(points[rows]).astype(np.int64)
    return offsets


def held_below(offsets: Int64s, horizon_ns: int) -> Int64s:
    """Sorted offsets with those that rounding put at the horizon moved to the last ns before it."""
    offsets[np.searchsorted(offsets, horizon_ns) :] = horizon_ns - 1
    return offsets


def merged(parts: list[Int64s]) -> Int64s:
    """All of them in one sorted array."""
    whole = np.concatenate(parts)
    whole.sort()
    return whole


def refuse_many(count: float) -> None:
    """Raises ValueError for more arrivals than a plan takes."""
    if count > MOST_DRAWN:
        raise ValueError(
            f"{digits_text(count)} arrivals are more than a plan takes; use a lower rate or scale, a shorter phase, or"
            " a path with less of a peak"
        )


def refuse_pieces(n_pieces: int | float, what: str, most: int = LARGEST_PATH) -> None:
    """Raises ValueError for a path of more pieces than are drawn."""
    if n_pieces > most:
        raise ValueError(f"{what} are too short for the phase: {digits_text(n_pieces)}, at most {most:,}")
