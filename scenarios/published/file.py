"""What the file of a published experiment may say: its keys and their limits."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from squall.scenarios.config.fields import Count, Number, Section, Slug, Text
from squall.scenarios.experiments.file import Order
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
    if isinstance(value, list | tuple):
        return tuple(_value(name, one) for one in value)
    return parse_duration(value) if FIGURES[name].unit == "ns" and isinstance(value, str) else value


Stated = Number | int | Text | Annotated[tuple[Number | int, ...], Field(min_length=2, max_length=2)]
"""One value, or the least and the most of a range; ns, Hz, bytes, ratios."""
Figures = Annotated[dict[str, Stated], BeforeValidator(_figures)]


class ArticleConfig(Section):
    """What was published, on what."""

    title: Text
    hardware: Text
    software: Text
    load: Text
    notes: tuple[Text, ...] = ()


class RowConfig(Section):
    """A configuration of the article, what it changes in the scenario, and the figures that were published of it. Of a
    probe: a row of its figures, such as a size or a variant, which changes nothing."""

    name: Text
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


class ClaimConfig(Section):
    """What the article says of its rows, as a test of ours: a figure `of` a row, or its ratio `to` that of another."""

    says: Text
    figure: Text
    of: Text
    to: Text | None = None
    at_least: Number | int | None = None
    at_most: Number | int | None = None
    equals: Text | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ClaimConfig:
        if self.figure not in FIGURES:
            raise ValueError(f"figure: unknown figure {self.figure!r}, there are {', '.join(FIGURES)}")
        if self.at_least is None and self.at_most is None and self.equals is None:
            raise ValueError("says no bound: give at_least, at_most or equals")
        return self


class SmallConfig(Section):
    """The same experiment small enough for a machine without a GPU: a rehearsal, whose figures mean nothing. `set` has
    key paths of the scenario, or of the probe (`schedule.active`)."""

    set: Settings = Field(default_factory=dict)
    repeats: Count = 1


class PublishedFile(Section):
    """A published experiment: either runs of a `scenario` against a server, or a `probe` of the GPU alone."""

    name: Slug
    title: Text
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
        return self


def _refuse_strange(used: tuple[str, ...] | list[str], names: list[str], where: str) -> None:
    strange = [name for name in used if name not in names]
    if strange:
        raise ValueError(f"{where}: there is no row {strange[0]!r}, there are {', '.join(names)}")
