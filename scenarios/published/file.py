"""What the file of a published experiment may say: its keys and their limits."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from squall.scenarios.errors import Sentences, holding
from squall.scenarios.experiment import Order
from squall.scenarios.fields import Count, Keys, NonEmpty, Number, Section, Slug, Text, repeated
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.published.probe import ProbeConfig
from squall.scenarios.units import parse_duration

Settings = Keys
"""Key paths of a scenario, and their values."""


_LEAST = {"gain_ratio": -1.0}
_MOST = 1e18
"""Of any figure: 30 years in ns."""


def _figures(value: object) -> object:
    """Texts of durations become ns."""
    if not isinstance(value, dict):
        return value
    for why in _unknown(value, FIGURES, "figure"):
        raise ValueError(why)
    return {name: _stated(name, stated) for name, stated in value.items()}


def _stated(name: str, stated: Any) -> object:
    """Raises ValueError for what the figure cannot be."""
    unit = FIGURES[name].unit
    is_range = isinstance(stated, list | tuple)
    ends: list[Any] = [
        parse_duration(end) if unit == "ns" and isinstance(end, str) else end
        for end in (stated if is_range else [stated])
    ]
    for end in ends:
        if unit == "text":
            if is_range or not isinstance(end, str):
                raise ValueError(f"{name}: {stated!r} is no text")
        elif isinstance(end, bool) or not isinstance(end, int | float):
            raise ValueError(f"{name}: {end!r} is no number")
        elif not _LEAST.get(name, 0.0) <= end <= _MOST:
            raise ValueError(
                f"{name}: {str(end)[:20]} cannot be, it is {_LEAST.get(name, 0.0):g} to {_MOST:g}"
            )
    if is_range and ends != sorted(ends):
        raise ValueError(f"{name}: the least of a range comes first, not {stated!r}")
    return tuple(ends) if is_range else ends[0]


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line, without control characters")
    return text


Line = Annotated[Text, AfterValidator(_one_line)]
"""What stands in a cell of a table, or in a heading."""


Stated = Number | int | Text | Annotated[tuple[Number | int, ...], Field(min_length=2, max_length=2)]
"""One value, or the least and the most of a range; ns, Hz, bytes, ratios."""
Figures = Annotated[dict[str, Stated], BeforeValidator(_figures)]


class ArticleConfig(Section):
    """What was published, on what."""

    title: Line
    hardware: Text
    software: Text
    load: Text
    notes: tuple[Text, ...] = ()


class RowConfig(Section):
    """A configuration of the article, what it changes in the scenario, and the figures that were published of it. Of a
    probe: a row of its figures, such as a size or a variant, which changes nothing."""

    name: Line
    set: Settings = Field(default_factory=dict)
    published: Figures = Field(default_factory=dict)
    small: Settings = Field(default_factory=dict)  # in the rehearsal beside what all rows change there


class PartConfig(Section):
    """Runs of all rows, or of some, that give one kind of figures: undisturbed latencies, or the depth of nsys."""

    about: Text
    gives: NonEmpty[Text]  # names of figures
    set: Settings = Field(default_factory=dict)
    repeats: Count = 1
    rows: NonEmpty[Text] | None = None  # names; none: all
    order: Order = "blocked-random"


Bound = Annotated[Number | Annotated[int, Field(strict=True)], Field(ge=-_MOST, le=_MOST)]


class ClaimConfig(Section):
    """What the article says of its rows, as a test of ours: a figure `of` a row, or its ratio `to` that of another."""

    says: Line
    figure: Text
    of: Text
    to: Text | None = None
    at_least: Bound | None = None
    at_most: Bound | None = None
    equals: Text | None = None

    def misfits(self) -> Sentences:
        yield from _unknown([self.figure], FIGURES, "figure: figure")
        is_text = FIGURES[self.figure].unit == "text"
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        yield from holding({
            "says no one bound: give equals, or at_least and at_most": bool(bounds) == (self.equals is not None),
            f"at_least: {self.at_least} is above at_most, {self.at_most}": bounds != sorted(bounds),
            f"to: {self.to!r} is the row itself": self.to == self.of,
            f"figure: {self.figure} is a text: give equals, and no other row": is_text and (bounds or self.to),
            f"equals: {self.equals!r} is no number, and {self.figure} is one": (
                not is_text and self.equals is not None and not _is_number(self.equals)
            ),
        })  # fmt: skip


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class SmallConfig(Section):
    """The same experiment small enough for a machine without a GPU: a rehearsal, whose figures mean nothing. `set` has
    key paths of the scenario, or of the probe (`schedule.active`)."""

    set: Settings = Field(default_factory=dict)
    repeats: Count = 1


class PublishedFile(Section):
    """A published experiment: either runs of a `scenario` against a server, or a `probe` of the GPU alone."""

    name: Slug
    title: Line
    article: ArticleConfig
    scenario: Settings | None = None
    probe: ProbeConfig | None = None
    rows: tuple[RowConfig, ...] = ()
    parts: dict[Slug, PartConfig] = Field(default_factory=dict)
    claims: tuple[ClaimConfig, ...] = ()
    small: SmallConfig = SmallConfig()

    def misfits(self) -> Sentences:
        names = [row.name for row in self.rows]
        twice = repeated(names)
        setting = next((row.name for row in self.rows if row.set or row.small), None)
        yield from holding({
            "give either scenario or probe": (self.scenario is None) == (self.probe is None),
            f"rows: the name {twice!r} is used twice": twice,
            "a scenario needs rows and parts": self.probe is None and not (self.rows and self.parts),
            "parts: a probe has none, its rows are those that it measures": self.probe and self.parts,
            f"rows: {setting!r} sets keys, but all rows of a probe are of one run": self.probe and setting,
        })  # fmt: skip
        for name, part in self.parts.items():
            yield from _unknown(part.gives, FIGURES, f"parts.{name}.gives: figure")
            yield from _unknown(part.rows or (), names, f"parts.{name}.rows: row")
        if self.probe is not None:
            yield from _unknown(names, self.probe.rows, "rows: row")
            names = list(self.probe.rows)
        for index, claim in enumerate(self.claims):
            for name in (claim.of, claim.to or claim.of):
                yield from _unknown([name], names, f"claims[{index}]: row")
                if self.parts and not any(
                    claim.figure in part.gives and (part.rows is None or name in part.rows)
                    for part in self.parts.values()
                ):
                    yield f"claims[{index}]: no part gives {claim.figure} of {name!r}: add it to a part's gives"


def _unknown(used: Iterable[str], known: Collection[str], what: str) -> Sentences:
    listed = ", ".join(known)
    return (f"{what} {name!r} is unknown, there are {listed}" for name in used if name not in known)
