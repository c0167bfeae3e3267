"""How much of a measured phase is recorded: windows of one length at a steady period, or all of it.

phase   ├───────────────────┬───────────────────┬──────┤
          pause │ on │ pause    pause │ on │ pause  pause     each window in the middle of its period
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, PlainSerializer

from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S, format_duration, parse_duration

WHOLE: Literal["whole"] = "whole"
LEAST_ON_NS = 20_000_000
"""Recording goes on and off within a third of a millisecond; a batch at the edge of a window is not recorded whole."""
LONGEST_PERIOD_NS = 60 * NS_PER_S
_FORM = "use on/period, such as 200ms/2s, or whole"


class Duty(Frozen):
    """On for `on_ns` of every `period_ns`. Raises ValueError for what cannot be."""

    on_ns: int
    period_ns: int

    def __post_init__(self) -> None:
        if self.on_ns < LEAST_ON_NS:
            raise ValueError(f"on for {format_duration(self.on_ns)} is below {format_duration(LEAST_ON_NS)}")
        if self.on_ns >= self.period_ns:
            raise ValueError(f"on is not shorter than the period {format_duration(self.period_ns)}: {_FORM}")
        if self.period_ns > LONGEST_PERIOD_NS:
            period, longest = format_duration(self.period_ns), format_duration(LONGEST_PERIOD_NS)
            raise ValueError(f"the period {period} is above {longest}")

    def windows(self, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """(on, off) in the phase [start_ns, end_ns), in order: one a whole period, and one in a shorter phase."""
        length_ns = end_ns - start_ns
        period_ns = min(self.period_ns, length_ns)
        on_ns = min(self.on_ns, period_ns)
        first_ns = start_ns + (period_ns - on_ns) // 2
        n = length_ns // period_ns if period_ns > 0 else 0
        return [(first_ns + i * period_ns, first_ns + i * period_ns + on_ns) for i in range(n)]


def parse_duty(value: object) -> Duty | Literal["whole"]:
    """`200ms/2s`, `whole`, or what this returned before. Raises ValueError."""
    if value == WHOLE:
        return WHOLE
    if isinstance(value, Duty):
        return value
    on, slash, period = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not slash:
        raise ValueError(_FORM)
    return Duty(parse_duration(on), parse_duration(period))


def format_duty(duty: Duty | Literal["whole"]) -> str:
    """As `parse_duty` reads it."""
    return f"{format_duration(duty.on_ns)}/{format_duration(duty.period_ns)}" if duty != WHOLE else WHOLE


DutyField = Annotated[
    Duty | Literal["whole"], BeforeValidator(parse_duty), PlainSerializer(format_duty, return_type=str)
]
"""Share of a measured phase that is recorded; `200ms/2s` or `whole` in the file."""
