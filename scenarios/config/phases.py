"""One of the `phases` of a scenario."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from squall.scenarios.config.arrivals import ArrivalsConfig, ClosedArrivals, EnvelopeArrivals, expected_count
from squall.scenarios.config.fields import PositiveDuration, Section, Slug
from squall.scenarios.config.rows import RowsConfig
from squall.scenarios.config.trace import Ratio
from squall.scenarios.sizes import LARGEST_ARRIVAL_COUNT
from squall.scenarios.units import format_duration


def _none_of_one(speed: Fraction) -> Fraction | None:
    """A speed of 1 is none: one schedule has one digest."""
    return None if speed == 1 else speed


class PhaseConfig(Section):
    """A stretch of the run; phases follow each other without a gap.

    Its arrivals are drawn over `drawn_ns`, and their instants divided by `speed`: the same requests, shape and routing
    at `speed` times the rate, in a stretch of `duration_ns`.
    """

    name: Slug
    kind: Literal["warmup", "measure", "drain"]
    drawn_ns: PositiveDuration = Field(alias="duration")
    arrivals: ArrivalsConfig | None = None
    speed: Annotated[Ratio, AfterValidator(_none_of_one)] | None = None  # None: 1
    timeout_ns: PositiveDuration | None = Field(default=None, alias="timeout")  # else that of the clients
    rows: RowsConfig | None = None  # else those of the clients

    @model_validator(mode="after")
    def _arrivals_by_kind(self) -> PhaseConfig:
        if (self.kind == "drain") != (self.arrivals is None):
            raise ValueError(
                "a drain sends nothing, remove arrivals"
                if self.arrivals
                else f"a {self.kind} phase needs arrivals"
            )
        expected = (
            0.0
            if self.arrivals is None or isinstance(self.arrivals, ClosedArrivals)
            else expected_count(self.arrivals, self.drawn_ns)
        )
        if expected > LARGEST_ARRIVAL_COUNT:
            raise ValueError(f"{expected:.3g} requests are above the {LARGEST_ARRIVAL_COUNT:.0e} of a phase")
        if isinstance(self.arrivals, EnvelopeArrivals) and self.arrivals.curve is not None:
            assert self.arrivals.bin_ns is not None
            n_bins = math.ceil(self.drawn_ns / self.arrivals.bin_ns)
            if not any(self.arrivals.curve[:n_bins]):
                raise ValueError(f"the curve is 0 over the whole phase, which holds its first {n_bins} bins")
        if isinstance(self.arrivals, ClosedArrivals) and self.arrivals.ramp_ns > self.duration_ns:
            ramp, duration = format_duration(self.arrivals.ramp_ns), format_duration(self.duration_ns)
            raise ValueError(f"the ramp of {ramp} is longer than the phase of {duration}")
        return self

    @model_validator(mode="after")
    def _speed_of_a_schedule(self) -> PhaseConfig:
        if self.speed is not None and (self.arrivals is None or isinstance(self.arrivals, ClosedArrivals)):
            without = "a drain" if self.arrivals is None else "a closed loop"
            raise ValueError(f"speed: {without} has no schedule that could be faster or slower; leave it out")
        return self

    @property
    def duration_ns(self) -> int:
        """Length of the phase in the run: drawn_ns / speed, rounded up, so that every arrival is before its end."""
        return self.drawn_ns if self.speed is None else math.ceil(self.drawn_ns / self.speed)
