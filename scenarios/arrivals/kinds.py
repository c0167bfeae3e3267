"""Every kind of arrivals that a phase may have, and those that are made of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from squall.scenarios.arrays import Int64s
from squall.scenarios.arrivals.process import OpenProcess, merged, refuse_many
from squall.scenarios.arrivals.replay import TraceArrivals
from squall.scenarios.arrivals.stationary import StationaryArrivals
from squall.scenarios.arrivals.users import ClosedArrivals, LocustArrivals
from squall.scenarios.arrivals.varying import VaryingArrivals
from squall.scenarios.fields import BY_KIND, PositiveDuration, Section

if TYPE_CHECKING:
    from numpy.random import Generator

LARGEST_PART_COUNT = 1_000


class Composed(OpenProcess):
    """A process that is made of others, each drawn from a generator of its own."""

    def draw(self, rng: Generator, horizon_ns: int, whole_ns: int | None = None) -> Int64s:
        found: list[Int64s] = []
        for part, start, end, length_ns in self._spans(horizon_ns, whole_ns or horizon_ns):
            (own,) = rng.spawn(1)
            found.append(part.draw(own, end - start, length_ns) + start)
            refuse_many(sum(offsets.size for offsets in found))
        return merged(found)

    def expected_count(self, t_ns: int, whole_ns: int) -> float:
        spans = self._spans(t_ns, whole_ns)
        return sum(part.expected_count(end - start, length_ns) for part, start, end, length_ns in spans)

    def stated_count(self, horizon_ns: int) -> float:
        spans = self._spans(horizon_ns, horizon_ns)
        return sum(part.stated_count(end - start) for part, start, end, _ in spans)

    def _spans(self, horizon_ns: int, whole_ns: int) -> _Spans:
        """(process, start, end, length of its own stretch) of the parts that begin before `horizon_ns`."""
        raise NotImplementedError


class SuperposeArrivals(Composed):
    """All parts at once, independent of each other."""

    example = (
        "{kind: superpose, parts: [{kind: poisson, rate: 60/s}, {kind: envelope, rate: 40/s,"
        " shape: {kind: pulses, factor: 6, width: 2s, period: 15s}}]}"
    )
    kind: Literal["superpose"]
    parts: Annotated[tuple[OpenPart, ...], Field(min_length=1, max_length=LARGEST_PART_COUNT)]

    def _spans(self, horizon_ns: int, whole_ns: int) -> _Spans:
        return [(part, 0, horizon_ns, whole_ns) for part in self.parts]


class ConcatenatedPart(Section):
    """A part of a concatenation."""

    duration_ns: PositiveDuration
    arrivals: OpenPart


class ConcatenateArrivals(Composed):
    """One part after the other, each as over a stretch of its own; the last goes on to the end of the phase."""

    example = (
        "{kind: concatenate, parts: [{duration: 20s, arrivals: {kind: poisson, rate: 60/s}},"
        " {duration: 10s, arrivals: {kind: gamma, rate: 200/s, cv: 1.5}},"
        " {duration: 30s, arrivals: {kind: poisson, rate: 100/s}}]}"
    )
    kind: Literal["concatenate"]
    parts: Annotated[tuple[ConcatenatedPart, ...], Field(min_length=1, max_length=LARGEST_PART_COUNT)]

    def _spans(self, horizon_ns: int, whole_ns: int) -> _Spans:
        spans, start = [], 0
        for index, part in enumerate(self.parts):
            is_last = index == len(self.parts) - 1
            length_ns = max(whole_ns - start, 1) if is_last else part.duration_ns
            end = horizon_ns if is_last else min(start + length_ns, horizon_ns)
            if start < end:
                spans.append((part.arrivals, start, end, length_ns))
            start += length_ns
        return spans


OpenArrivals = StationaryArrivals | VaryingArrivals | TraceArrivals | SuperposeArrivals | ConcatenateArrivals
OpenPart = Annotated[OpenArrivals, BY_KIND]
_Spans = list[tuple[OpenArrivals, int, int, int]]
UserArrivals = ClosedArrivals | LocustArrivals
"""Of users who wait for their replies: there is no schedule."""
ArrivalsConfig = Annotated[OpenArrivals | ClosedArrivals | LocustArrivals, BY_KIND]

for _section in (SuperposeArrivals, ConcatenatedPart, ConcatenateArrivals):
    _section.model_rebuild()
