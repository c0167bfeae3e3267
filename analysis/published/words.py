"""Figures of published experiments as texts, with units: of articles and of ours."""

from __future__ import annotations

from squall.analysis.published.values import VALID, Value
from squall.analysis.wording import count_text, duration_text, share_text
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.published.file import Stated

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
    """What an article states: a number, both ends of a range, a text; `-` for nothing."""
    if isinstance(value, tuple):
        return " to ".join(number_text(figure, float(end)) for end in value)
    return value if isinstance(value, str) else number_text(figure, None if value is None else float(value))


def value_text(value: Value | None) -> str:
    """Ours: the mean with its interval, a text, or what is marked INVALID; `-` for nothing."""
    if value is None:
        return NOTHING
    if value.text:
        return value.text
    if value.mean is not None:
        return interval_text(value.figure, value.mean, value.low, value.high)
    if value.marked is not None:
        status = value.note.partition(":")[0] or f"not {VALID}"
        return f"{number_text(value.figure, value.marked)} [{status}]"
    return value.note.partition(":")[0] or NOTHING


def interval_text(figure: str, mean: float | None, low: float | None, high: float | None) -> str:
    """A mean with the ends of its interval, where it has one."""
    if low is None or high is None:
        return number_text(figure, mean)
    return f"{number_text(figure, mean)} ({number_text(figure, low)} … {number_text(figure, high)})"


def ratio_text(ratio: float | None, low: float | None = None, high: float | None = None) -> str:
    """A ratio of two rows, with the ends of its interval."""
    if ratio is None:
        return NOTHING
    if low is None or high is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} ({low:.2f} … {high:.2f})"
