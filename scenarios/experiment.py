"""An experiment: what its file says, its cells, each a whole scenario, and the order of their runs. Pure.

A cell is a combination of key paths of a scenario and values, by the rules of GitHub Actions (docs.github.com,
"Workflow syntax", `jobs.<job_id>.strategy.matrix`). From the product of the matrix, its first key slowest,

    exclude     takes away every combination that has all pairs of the entry
    include     adds the pairs of an entry to every combination of which they change no value of the matrix (what an
                earlier entry added they may change); if there is none it is a combination of its own

Runs go in blocks of random order:

    blocked-random   block 0    B A C     drawn from the seed
                     block 1    C A B     block 0 in reverse
                     block 2    A C B     drawn
                     block 3    B C A     block 2 in reverse …

A block is one seed, and holds every cell once, so that cells are compared within a block. What the machine drifts by is
the same for none of them: a drift that is linear in the run's number adds d (position of B - position of A) to what
B differs from A by, and a block and its reverse add it with both signs. `fixed` runs all seeds of a cell, then those
of the next: a drift then passes for a difference of cells.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from squall.scenarios.config.loader import (
    file_mapping,
    read_mapping,
    refuse_unnamed,
    resolve_paths,
    scenario_from_mapping,
    section_from_mapping,
)
from squall.scenarios.config.overrides import kept_override, pair_text, set_value
from squall.scenarios.config.rules import refuse_as_factor
from squall.scenarios.config.scenario import Scenario, with_struck_keys
from squall.scenarios.errors import ScenarioError, placed, way_out
from squall.scenarios.fields import (
    EACH_ONCE,
    Count,
    Duration,
    Keys,
    NonEmpty,
    PositiveNumber,
    Section,
    Slug,
    Text,
    Whole,
    worded,
)
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

Order = Literal["blocked-random", "fixed"]
MOST_COMBINATIONS = 10_000
CELL, REFERENCE, CONFIRM = "cell", "reference", "confirm"
"""What a run is for: to choose a cell, to see the machine drift, to see the chosen cell again."""
_NO_FACTORS = {
    "seed": "repeats and seed of the experiment say which",
    "name": "it names the runs, and changes nothing",
}


Pairs = Annotated[Keys, Field(min_length=1)]


class ReferenceConfig(Section):
    """The cell that is run again and again, to see the machine drift: at the start, after every so many runs, at the
    end."""

    cell: Pairs  # pairs that one cell alone has
    every: Count | None = None  # none: after as many runs as there are cells


class CooldownConfig(Section):
    """What is waited for between two runs."""

    pause_ns: Duration = 0
    gpu_below: PositiveNumber | None = None  # degrees Celsius, of every GPU here
    at_most_ns: Duration = 300 * NS_PER_S


class ExperimentFile(Section):
    """An experiment file."""

    name: Slug | None = None
    scenario: Annotated[Text | Pairs, worded("is the path of a scenario file, or a scenario itself")]
    matrix: dict[str, NonEmpty[Any]] = Field(default_factory=dict, min_length=1)
    include: tuple[Pairs, ...] = ()
    exclude: tuple[Pairs, ...] = ()
    repeats: Annotated[Count, Field(le=1_000)] = 5
    seed: Whole | None = None  # none: the scenario's
    order: Order = "blocked-random"
    reference: ReferenceConfig | None = None
    restart: Literal["cell", "never"] | None = None
    cooldown: CooldownConfig | None = None
    objectives: Annotated[
        tuple[Literal["p50", "p95", "p99", "throughput"], ...], Field(min_length=1, max_length=2), EACH_ONCE
    ] = (
        "p95",
        "throughput",
    )
    confirm: Annotated[Whole, Field(le=1_000)] = 2


class Cell(Frozen):
    """A combination of `factors`, key path to value, and the scenario that it makes, whose load nothing ends early.
    `digest`: of all but its seed."""

    label: str
    factors: Mapping[str, Any]
    scenario: Scenario
    digest: str

    def with_seed(self, seed: int) -> Scenario:
        """Its scenario with this seed."""
        return self.scenario.model_copy(update={"seed": seed})


class PlannedRun(Frozen):
    """A run of cell number `cell`. `block`: number of its seed; `number`: among the runs of the reference cell."""

    role: str
    cell: int
    block: int
    seed: int
    number: int = 0


class Experiment(Frozen):
    """What a file says, resolved. `reference`: number of the cell that is run again and again, None for none."""

    name: str
    cells: tuple[Cell, ...]
    seed: int
    file: ExperimentFile
    reference: int | None

    @property
    def factors(self) -> tuple[str, ...]:
        """Key paths that differ between cells, in the order of the file."""
        return tuple(dict.fromkeys(key for cell in self.cells for key in cell.factors))

    def cell_runs(self) -> list[PlannedRun]:
        """The runs that choose a cell, in their order: each cell once with each seed. Digests tell the cells apart,
        whatever their order in the file."""
        cells, blocks = range(len(self.cells)), range(self.file.repeats)
        if self.file.order == "fixed":
            places = [(cell, block) for cell in cells for block in blocks]
        else:
            places = []
            drawn: list[int] = []
            for block in blocks:
                # a uniform draw that is the same on every machine: cells in order of a hash of seed, block and cell
                keys = [f"{self.seed} {block} {cell.digest}".encode() for cell in self.cells]
                hashes = [hashlib.sha256(key).digest() for key in keys]
                drawn = drawn[::-1] if block % 2 else sorted(cells, key=hashes.__getitem__)
                places += [(cell, block) for cell in drawn]
        return [PlannedRun(CELL, cell, block, self.seed + block) for cell, block in places]

    def with_reference(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """`runs` with one of the reference cell before them, after each so many of them, and at the end; none for
        none."""
        stated = self.file.reference
        if self.reference is None or stated is None or not runs:
            return list(runs)
        every = stated.every or len(self.cells)
        return [
            run
            for number, first in enumerate(range(0, len(runs) + every, every))
            for run in (
                PlannedRun(REFERENCE, self.reference, -1, self.seed, number),
                *runs[first : first + every],
            )
        ]

    def confirming_runs(self, cell: int) -> list[PlannedRun]:
        """The runs of the cell that was chosen, with seeds that no run before had; none where there was no choice."""
        n = self.file.confirm if len(self.cells) > 1 else 0
        blocks = range(self.file.repeats, self.file.repeats + n)
        return [PlannedRun(CONFIRM, cell, block, self.seed + block) for block in blocks]

    def described(self) -> Keys:
        """All that it runs, in plain values: equal for equal experiments, whatever the file is written like."""
        stated = self.file.model_dump(
            mode="json", by_alias=True, exclude={"scenario", "matrix", "include", "exclude"}
        )
        cells = [{"label": cell.label, "digest": cell.digest} for cell in self.cells]
        return {
            **stated,
            "name": self.name,
            "seed": self.seed,
            "cells": cells,
            "reference_cell": self.reference,
        }


def load_experiment(path: Path, allow_env: Collection[str] = ()) -> Experiment:
    """The experiment in a file. A relative path in it is taken from its folder; `allow_env`: variables of the
    environment that its headers may ask for. Raises ScenarioError, one line."""
    stated = section_from_mapping(ExperimentFile, read_mapping(path, "experiment"), str(path))
    if isinstance(stated.scenario, str):
        base = file_mapping(path.parent / stated.scenario)
    else:
        base = stated.scenario
        resolve_paths(base, path.parent)
    with placed(path, ScenarioError):
        _refuse_strange_keys(stated)
        chosen = combinations(stated.matrix, stated.include, stated.exclude)
    short = _short_names(chosen)
    labelled = {_text({short[key]: value for key, value in cell.items()}): cell for cell in chosen}
    return experiment_of(path, stated, base, labelled, allow_env)


def experiment_of(
    path: Path,
    stated: ExperimentFile,
    base: Keys,
    combinations: Mapping[str, Keys],
    allow_env: Collection[str] = (),
) -> Experiment:
    """The experiment of these combinations, by the labels of their cells, whatever `stated` says of a matrix.

    `base`: the scenario's mapping, its paths absolute; those of a combination are taken from the folder of `path`.
    `allow_env`: as in `load_experiment`. Raises ScenarioError, one line.
    """
    named = stated.scenario
    origin = str(path.parent / named) if isinstance(named, str) else f"{path}: scenario"
    plain = scenario_from_mapping(base, origin)
    seed = plain.seed if stated.seed is None else stated.seed
    with placed(path, ScenarioError):
        cells = [
            _cell(path.parent, {**base, "seed": seed}, factors, label)
            for label, factors in combinations.items()
        ]
        refuse_as_factor([cell.scenario for cell in cells])
        _refuse_twins(cells)
        _refuse_restart(stated, cells)
        reference = None if stated.reference is None else _place_of(stated.reference.cell, cells)
    for cell in cells:
        refuse_unnamed(cell.scenario, allow_env, str(path))
    return Experiment(stated.name or plain.name, tuple(cells), seed, stated, reference)


def without_early_end(scenario: Scenario) -> Scenario:
    """The scenario with a load that runs to its end, whatever becomes certain of its promises before."""
    promises = scenario.promises
    lasting = promises and tuple(replace(one, aborts_on_fail=False, delay_ns=0) for one in promises)
    return scenario.model_copy(update={"stop_when": None, "promises": lasting})


def combinations(
    matrix: Mapping[str, Sequence[Any]],
    include: Sequence[Mapping[str, Any]] = (),
    exclude: Sequence[Mapping[str, Any]] = (),
) -> list[Keys]:
    """The combinations in order. Raises ValueError, one line, for none, too many, and an `exclude` that takes
    nothing."""
    n = math.prod(map(len, matrix.values()))
    if n > MOST_COMBINATIONS:
        raise ValueError(f"matrix: {n:,} cells are above the {MOST_COMBINATIONS:,} of a sweep")
    choices = itertools.product(*matrix.values()) if matrix else ()
    product = [dict(zip(matrix, values, strict=True)) for values in choices]
    for place, entry in enumerate(exclude):
        if not any(_holds(cell, entry) for cell in product):
            raise ValueError(f"exclude[{place}]: no cell of the matrix has {_text(entry)}")
    of_matrix = [cell for cell in product if not any(_holds(cell, entry) for entry in exclude)]
    grown = [dict(cell) for cell in of_matrix]
    for entry in include:
        changed = {key: entry[key] for key in entry.keys() & matrix.keys()}
        fitting = [index for index, cell in enumerate(of_matrix) if _holds(cell, changed)]
        for index in fitting:
            grown[index].update(entry)
        if not fitting:
            grown.append(dict(entry))
    if not grown:
        why = "exclude takes every cell" if product else "a sweep needs cells"
        raise ValueError(f"matrix: is empty, {why}")
    return grown


def _refuse_strange_keys(stated: ExperimentFile) -> None:
    pairs = [("matrix", key, value) for key, values in stated.matrix.items() for value in values]
    for place, entry in enumerate(stated.include):
        pairs += [(f"include[{place}]", key, value) for key, value in entry.items()]
    for where, key, value in pairs:
        if key in _NO_FACTORS:
            raise ValueError(f"{where}: {key} is no factor, {_NO_FACTORS[key]}")
        text = f"{key}={json.dumps(value, default=str)}"
        if kept_override(text) != text:
            raise ValueError(
                f"{where}: {key}: what a factor is stands in every file of a sweep, and values of headers in"
                " none: write ${NAME}, and set that variable"
            )
    for place, entry in enumerate(stated.exclude):
        for key in entry:
            if key not in stated.matrix:
                hint = way_out(key, stated.matrix, f"it has {', '.join(stated.matrix) or 'none'}")
                raise ValueError(f"exclude[{place}]: {key} is no key of matrix, {hint}")


def _cell(folder: Path, base: Keys, factors: Keys, label: str) -> Cell:
    mapping = copy.deepcopy(base)
    for key, value in factors.items():
        set_value(mapping, key, copy.deepcopy(value))
    resolve_paths(mapping, folder)
    scenario = without_early_end(scenario_from_mapping(mapping, f"cell {_text(factors) or label}"))
    kinds = [phase.kind for phase in scenario.phases]
    if "warmup" not in kinds[: kinds.index("measure")]:
        raise ValueError(
            f"cell {label}: phases: no warmup comes before {scenario.phases[kinds.index('measure')].name!r},"
            " and every run of a sweep needs one"
        )
    plain = with_struck_keys(scenario.to_mapping())
    del plain["seed"]
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return Cell(label, factors, scenario, digest)


def _short_names(cells: Sequence[Keys]) -> dict[str, str]:
    """The last part of each key path, or as many of its last parts as tell it from the others."""
    keys = list(dict.fromkeys(key for cell in cells for key in cell))
    short: dict[str, str] = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        short[key] = next(
            end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1 or end == key
        )
    return short


def _refuse_twins(cells: Sequence[Cell]) -> None:
    """Two cells that are one scenario would be told apart by nothing."""
    first: dict[str, Cell] = {}
    for cell in cells:
        twin = first.setdefault(cell.digest, cell)
        if twin is not cell:
            raise ValueError(f"cells {twin.label} and {cell.label} are the same scenario, leave one out")


def _refuse_restart(stated: ExperimentFile, cells: Sequence[Cell]) -> None:
    """A server that squall starts is started anew for each run; one that runs already is not."""
    of_cells = {"cell" if cell.scenario.is_started else "never" for cell in cells}
    if stated.restart is not None and of_cells != {stated.restart}:
        raise ValueError(
            f"restart: {stated.restart} cannot be kept: squall starts its server anew for every run, and one at"
            " server.url never; leave restart out"
        )


def _place_of(pairs: Mapping[str, Any], cells: Sequence[Cell]) -> int:
    """The number of the one cell that has these factors."""
    places = [place for place, cell in enumerate(cells) if _holds(cell.factors, pairs)]
    if len(places) != 1:
        raise ValueError(f"reference.cell: {len(places)} cells of the sweep have {_text(pairs)}, name one")
    return places[0]


def _holds(cell: Mapping[str, Any], pairs: Mapping[str, Any]) -> bool:
    """Whether a cell has all pairs, with values that are written alike: 1 is not true, and not 1.0."""
    texts, of_cell = (
        {key: json.dumps(value, sort_keys=True, default=str) for key, value in part.items()}
        for part in (pairs, cell)
    )
    return texts.items() <= of_cell.items()


def _text(pairs: Mapping[str, Any]) -> str:
    """`key.path=value, …`, for people and tables."""
    return ", ".join(map(pair_text, pairs, pairs.values()))
