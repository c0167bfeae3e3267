"""Section `locust` of a summary as lines, for the screen and the report; their sentences stand in `locust_lines.j2`."""

from __future__ import annotations

from functools import cache
from typing import Any

from squall.analysis.requests.locust_figures import LocustFigures, NameFigures
from squall.analysis.wording import count_text, templates

MOST_NAMES = 8
"""Names of Locust's requests that the screen lists; the report has all."""


def locust_lines(figures: LocustFigures, most: int = MOST_NAMES) -> list[str]:
    """What Locust ran, its statistics beside the exact rows, and what of its users' time is in none of these."""
    rest = len(figures.names) - most
    return [
        _say().ran(figures),
        *map(_say().name, figures.names[:most]),
        *([f"and {rest} more: see the report"] if rest > 0 else []),
        *locust_notes(figures),
    ]


def locust_notes(figures: LocustFigures) -> list[str]:
    """Whether Locust's figures are those of the rows, what its users saw, and what became of them."""
    say, users = _say(), figures.users
    return [
        say.agreement(figures),
        *([say.users(users), say.waited(users)] if users is not None else []),
        *([say.plain(figures)] if figures.n_plain else []),
        *filter(None, [say.ended(figures)]),
        *(f"{count_text(one.n)} x {' '.join(one.message.split())[:120]}" for one in figures.exceptions[:2]),
    ]


@cache
def _say() -> Any:
    """The macros of `locust_lines.j2`."""

    def title(one: NameFigures) -> str:
        return " ".join(filter(None, (one.method, one.name)))

    def mean(count: float | None) -> str:
        return count_text(None if count is None else round(count, 1))

    environment = templates("squall.analysis.requests")
    environment.filters |= {"title": title, "mean": mean}
    return environment.get_template("locust_lines.j2").module
