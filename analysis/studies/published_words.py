"""Figures of published experiments as texts, with units: of articles and of ours."""

from __future__ import annotations

from collections.abc import Callable

from squall.analysis.wording import count_text, duration_text, share_text
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.published.file import Stated
from squall.scenarios.units import digits_text

NOTHING = "-"
_KIB = 1024.0


def number_text(figure: str, value: float | None) -> str:
    """A number in the unit of the figure; `-` for None."""
    if value is None:
        return NOTHING
    match FIGURES[figure].unit:
        case "ns":
            return duration_text(value)
        case "hz":
            return count_text(value)  # the figure's title says requests/s
        case "ratio":
            return share_text(value)
        case "bytes":
            return f"{count_text(round(value / _KIB))} KiB" if value >= 10 * _KIB else f"{value:,.0f} B"
        case _:
            return count_text(round(value) if abs(value) >= 1_000 else round(value, 2))


def stated_text(figure: str, value: Stated | None) -> str:
    """What an article states, or one run of ours: a number, both ends of a range, a text; `-` for nothing."""
    if isinstance(value, tuple):
        return " to ".join(number_text(figure, float(end)) for end in value)
    return value if isinstance(value, str) else number_text(figure, value)


def claim_value_text(figure: str, to: str | None, value: float | None) -> str:
    """A value of a claim: a multiple of the row `to`, or in the unit of the figure."""
    if value is None or to is None:
        return number_text(figure, value)
    return f"{digits_text(value)} times"


def interval_text(
    write: Callable[[float], str], value: float | None, low: float | None = None, high: float | None = None
) -> str:
    """A value with the ends of its interval, where it has one; `-` for None."""
    if value is None:
        return NOTHING
    if low is None or high is None:
        return write(value)
    return f"{write(value)} ({write(low)} … {write(high)})"


def ratio_text(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """A ratio of two rows, with the ends of its interval."""
    return interval_text(lambda value: f"{value:.2f}", ratio, low, high)
