"""What the file of a published experiment may say: its keys and their limits."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from squall.scenarios.experiments.file import Order
from squall.scenarios.fields import Count, Number, Section, Slug, Text
from squall.scenarios.published.figures import FIGURES
from squall.scenarios.published.probe import ProbeConfig
from squall.scenarios.units import parse_duration

Settings = dict[str, Any]
"""Key paths of a scenario, and their values."""


def _figures(value: object) -> object:
    """Texts of durations become ns."""
    if not isinstance(value, dict):
        return value
    unknown = [name for name in value if name not in FIGURES]
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown figure, there are {', '.join(FIGURES)}")
    return {name: _value(name, one) for name, one in value.items()}


def _value(name: str, value: object) -> object:
    """Raises ValueError for what the figure cannot be."""
    if isinstance(value, list | tuple):
        ends = tuple(_value(name, one) for one in value)
        if len(ends) == 2 and isinstance(ends[0], int | float) and isinstance(ends[1], int | float):
            if ends[0] > ends[1]:
                raise ValueError(f"{name}: the least of a range comes first, {value[0]} is above {value[1]}")
        elif any(isinstance(one, str) for one in ends):
            raise ValueError(f"{name}: a range has two numbers")
        return ends
    unit = FIGURES[name].unit
    if unit == "ns" and isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or (unit == "text") != isinstance(value, str):
        raise ValueError(f"{name}: {value!r} is no {'text' if unit == 'text' else 'number'}")
    if isinstance(value, int | float) and not _LEAST.get(name, 0.0) <= value <= _MOST:
        raise ValueError(f"{name}: {str(value)[:20]} cannot be, it is {_LEAST.get(name, 0.0):g} to {_MOST:g}")
    return value


_LEAST = {"gain_ratio": -1.0}
_MOST = 1e18
"""Of any figure: 30 years in ns."""


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
    gives: Annotated[tuple[Text, ...], Field(min_length=1)]  # names of figures
    set: Settings = Field(default_factory=dict)
    repeats: Count = 1
    rows: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None  # names; none: all
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

    @model_validator(mode="after")
    def _is_whole(self) -> ClaimConfig:
        if self.figure not in FIGURES:
            raise ValueError(f"figure: unknown figure {self.figure!r}, there are {', '.join(FIGURES)}")
        if self.at_least is None and self.at_most is None and self.equals is None:
            raise ValueError("says no bound: give at_least, at_most or equals")
        if self.equals is not None and (self.at_least is not None or self.at_most is not None):
            raise ValueError("equals: stands alone, without at_least and at_most")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least: {self.at_least:g} is above at_most, {self.at_most:g}")
        if self.to == self.of:
            raise ValueError(f"to: {self.to!r} is the row itself")
        if FIGURES[self.figure].unit == "text":
            if self.equals is None or self.to is not None:
                raise ValueError(f"figure: {self.figure} is a text: give equals, and no other row")
        elif self.equals is not None and not _is_number(self.equals):
            raise ValueError(f"equals: {self.equals!r} is no number, and {self.figure} is one")
        return self


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

    @model_validator(mode="after")
    def _parts_fit(self) -> PublishedFile:
        if (self.scenario is None) == (self.probe is None):
            raise ValueError("give either scenario or probe")
        names = [row.name for row in self.rows]
        twice = [name for index, name in enumerate(names) if name in names[:index]]
        if twice:
            raise ValueError(f"rows: the name {twice[0]!r} is used twice")
        for part_name, part in self.parts.items():
            strange = [name for name in part.gives if name not in FIGURES]
            if strange:
                raise ValueError(
                    f"parts.{part_name}.gives: unknown figure {strange[0]!r}, there are {', '.join(FIGURES)}"
                )
            _refuse_strange(part.rows or (), names, f"parts.{part_name}.rows")
        if self.scenario is not None and not (self.rows and self.parts):
            raise ValueError("a scenario needs rows and parts")
        if self.probe is not None:
            if self.parts:
                raise ValueError("parts: a probe has none, its rows are those that it measures")
            changing = next((row.name for row in self.rows if row.set or row.small), None)
            if changing is not None:
                raise ValueError(
                    f"rows: {changing!r} sets keys, which rows of a probe cannot: all are of one run"
                )
            _refuse_strange(names, list(self.probe.rows), "rows")
            names = list(self.probe.rows)
        for index, claim in enumerate(self.claims):
            _refuse_strange([one for one in (claim.of, claim.to) if one], names, f"claims[{index}]")
            if self.parts:
                self._refuse_not_given(claim, f"claims[{index}]")
        return self

    def _refuse_not_given(self, claim: ClaimConfig, where: str) -> None:
        for row in (claim.of, claim.to or claim.of):
            giving = [one for one in self.parts.values() if claim.figure in one.gives]
            if not any(one.rows is None or row in one.rows for one in giving):
                raise ValueError(
                    f"{where}: no part gives {claim.figure} of {row!r}: add it to a part's gives"
                )


def _refuse_strange(used: tuple[str, ...] | list[str], names: list[str], where: str) -> None:
    strange = [name for name in used if name not in names]
    if strange:
        raise ValueError(f"{where}: there is no row {strange[0]!r}, there are {', '.join(names)}")
