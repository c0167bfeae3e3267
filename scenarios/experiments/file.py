"""What an experiment file may say: its keys and their limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from squall.scenarios.fields import Count, Duration, PositiveNumber, Section, Slug, Whole
from squall.scenarios.units import NS_PER_S

Order = Literal["blocked-random", "fixed"]
Restart = Literal["cell", "block", "never"]


def _scenario(value: object) -> object:
    if not isinstance(value, str | dict) or not value:
        raise ValueError("is the path of a scenario file, or a scenario itself")
    return value


def _pairs(value: object) -> object:
    if isinstance(value, dict) and not value:
        raise ValueError("is empty, it names key paths and their values")
    return value


def _values(value: object) -> object:
    if isinstance(value, list | tuple) and not value:
        raise ValueError("is empty, it needs at least one value")
    return value


Pairs = Annotated[dict[str, Any], BeforeValidator(_pairs)]
Values = Annotated[tuple[Any, ...], BeforeValidator(_values)]


class ReferenceConfig(Section):
    """The cell that is run again and again, to see the machine drift: at the start, after every so many runs, at the
    end."""

    cell: Pairs  # pairs that one cell alone has
    every: Count | None = None  # none: after as many runs as there are cells


class CooldownConfig(Section):
    """What is waited for between two runs."""

    pause_ns: Duration = Field(default=0, alias="pause")
    gpu_below: PositiveNumber | None = None  # degrees Celsius, of every GPU here
    at_most_ns: Duration = Field(default=300 * NS_PER_S, alias="at_most")


class ExperimentFile(Section):
    """An experiment file."""

    name: Slug | None = None
    scenario: Annotated[Any, BeforeValidator(_scenario)]
    matrix: Annotated[dict[str, Values], BeforeValidator(_pairs)] = Field(default_factory=dict)
    include: tuple[Pairs, ...] = ()
    exclude: tuple[Pairs, ...] = ()
    repeats: Annotated[Count, Field(le=1_000)] = 5
    seed: Whole | None = None  # none: the scenario's
    order: Order = "blocked-random"
    reference: ReferenceConfig | None = None
    restart: Restart | None = None
    cooldown: CooldownConfig | None = None
    objectives: Annotated[
        tuple[Literal["p50", "p95", "p99", "throughput"], ...], Field(min_length=1, max_length=2)
    ] = (
        "p95",
        "throughput",
    )
    confirm: Annotated[Whole, Field(le=1_000)] = 2

    @model_validator(mode="after")
    def _two_objectives(self) -> ExperimentFile:
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"objectives: {self.objectives[0]} is named twice")
        return self
