"""Ranges of levels, and the order in which a search goes through them.

As in perf_analyzer's `src/inference_profiler.h` (`Profile`): linear from start to end, or halving between both. Its
rates are sums of floats; here they are exact, so that 0.1:0.3:0.1 has three.
"""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction

from squall.scenarios.errors import ScenarioError
from squall.scenarios.records import Frozen

NO_LIMIT = 0
"""As the end of a range: until a level is over the latency threshold."""
_MOST_PLACES = 3


class Range(Frozen):
    """Levels from `start` to `end`, `step` apart; of a binary search `step` is how near the answer must be.

    Users, whole numbers, or requests per second. A range whose end is below its start has the start alone.
    """

    start: Fraction
    end: Fraction
    step: Fraction
    is_whole: bool

    @property
    def is_open(self) -> bool:
        """Whether it has no end."""
        return self.end == NO_LIMIT

    @property
    def has_several(self) -> bool:
        """Whether it has more levels than its start."""
        return self.is_open or self.start + self.step <= self.end


def parse_range(flag: str, text: str, is_whole: bool) -> Range:
    """`START`, `START:END` or `START:END:STEP`, 1 where left out. Raises ScenarioError that names `flag`."""
    parts = text.split(":")
    if len(parts) > _MOST_PLACES:
        raise ScenarioError(f"{flag}: {text!r} is not start:end:step")
    start, end, step = (*(_number(flag, one, is_whole) for one in parts), *(Fraction(1),) * 3)[:_MOST_PLACES]
    if start <= 0:
        raise ScenarioError(f"{flag}: {text!r}: the start must be above 0")
    if step <= 0:
        raise ScenarioError(f"{flag}: {text!r}: the step must be above 0")
    return Range(start, end, step, is_whole)


def _number(flag: str, text: str, is_whole: bool) -> Fraction:
    what = "a whole number" if is_whole else "a number"
    try:
        found = Fraction(text.strip())
    except (ValueError, ZeroDivisionError) as error:
        raise ScenarioError(f"{flag}: {text!r} is not {what}") from error
    if found < 0 or (is_whole and found.denominator != 1) or "/" in text:
        raise ScenarioError(f"{flag}: {text!r} is not {what} from 0 on")
    return found


def linear(levels: Range) -> Generator[Fraction, bool, None]:
    """Levels in turn; what is sent in says of the last one whether it met the threshold and was stable: the first that
    did not is the last."""
    at, is_met = levels.start, True
    while is_met and (at == levels.start or levels.is_open or at <= levels.end):
        is_met = yield at
        at += levels.step


def binary(levels: Range) -> Generator[Fraction, bool, None]:
    """Start and end, then the middle of what lies between the last that met and the last that did not, until that is
    not more than a step. Nothing is searched where the start does not meet, or the end does."""
    low, high = levels.start, levels.end
    if not (yield low) or (yield high):
        return
    while high - low > levels.step:
        middle = (low + high) / 2
        at = Fraction(int(middle)) if levels.is_whole else middle
        if (yield at):
            low = at
        else:
            high = at
