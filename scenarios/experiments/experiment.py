"""An experiment: its cells, each a whole scenario, and how they are run. Made of a file."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squall.scenarios.config.loader import (
    file_mapping,
    read_mapping,
    refuse_unnamed,
    resolve_paths,
    scenario_from_mapping,
    section_from_mapping,
)
from squall.scenarios.config.overrides import kept_override, set_value
from squall.scenarios.config.problems import nearest
from squall.scenarios.config.scenario import Scenario, refuse_as_factor
from squall.scenarios.errors import ScenarioError
from squall.scenarios.experiments.file import ExperimentFile
from squall.scenarios.experiments.matrix import Combination, combinations, is_same, pairs_text, value_text
from squall.scenarios.experiments.order import PlannedRun, cell_runs, confirming_runs, with_reference
from squall.scenarios.promises.whole_load import without_early_end

_OWN_KEYS = {
    "seed": "repeats and seed of the experiment say which",
    "name": "it names the runs, and changes nothing",
}


@dataclass(frozen=True)
class Cell:
    """A combination of `factors`, key path to value, and the scenario that it makes, whose load nothing ends early.
    `digest`: of all but its seed."""

    label: str
    factors: Mapping[str, Any]
    scenario: Scenario
    digest: str

    def with_seed(self, seed: int) -> Scenario:
        """Its scenario with this seed."""
        return scenario_from_mapping({**self.scenario.to_mapping(), "seed": seed}, self.label)


@dataclass(frozen=True)
class Experiment:
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
        """The runs that choose a cell, in their order."""
        digests = [cell.digest for cell in self.cells]
        return cell_runs(digests, self.seed, self.file.repeats, self.file.order)

    def with_reference(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """`runs` with those of the reference cell between them."""
        if self.reference is None or self.file.reference is None:
            return list(runs)
        return with_reference(runs, self.reference, self.seed, self.file.reference.every or len(self.cells))

    def confirming_runs(self, cell: int) -> list[PlannedRun]:
        """The runs of the cell that was chosen, with fresh seeds; none where there was no choice."""
        n = self.file.confirm if len(self.cells) > 1 else 0
        return confirming_runs(cell, self.seed, self.file.repeats, n)

    def described(self) -> dict[str, Any]:
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
    mapping = read_mapping(path, "experiment")
    stated = section_from_mapping(ExperimentFile, mapping, str(path))
    base = _base(path, stated.scenario)
    try:
        _refuse_strange_keys(stated)
        found = combinations(stated.matrix, stated.include, stated.exclude)
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from error
    short = _short_names(found)
    labels = [
        ", ".join(f"{short[key]}={value_text(value)}" for key, value in factors.items()) for factors in found
    ]
    return experiment_of(path, stated, base, dict(zip(labels, found, strict=True)), allow_env)


def experiment_of(
    path: Path,
    stated: ExperimentFile,
    base: dict[str, Any],
    combinations: Mapping[str, Combination],
    allow_env: Collection[str] = (),
) -> Experiment:
    """The experiment of these combinations, by the labels of their cells, whatever `stated` says of a matrix.

    `base`: the scenario's mapping, its paths absolute; those of a combination are taken from the folder of `path`.
    `allow_env`: as in `load_experiment`. Raises ScenarioError, one line.
    """
    plain = scenario_from_mapping(base, _origin(path, stated.scenario))
    seed = plain.seed if stated.seed is None else stated.seed
    cells = tuple(_cell(path, base, factors, label, seed) for label, factors in combinations.items())
    for cell in cells:
        refuse_unnamed(cell.scenario, allow_env, str(path))
    try:
        refuse_as_factor([cell.scenario for cell in cells])
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from error
    _refuse_twins(path, cells)
    _refuse_restart(path, stated, cells)
    return Experiment(stated.name or plain.name, cells, seed, stated, _reference(path, stated, cells))


def _base(path: Path, scenario: Any) -> dict[str, Any]:
    """The scenario's mapping, its paths absolute."""
    if isinstance(scenario, str):
        return file_mapping(path.parent / scenario)
    mapping: dict[str, Any] = copy.deepcopy(scenario)
    resolve_paths(mapping, path.parent)
    return mapping


def _origin(path: Path, scenario: Any) -> str:
    return str(path.parent / scenario) if isinstance(scenario, str) else f"{path}: scenario"


def _refuse_strange_keys(stated: ExperimentFile) -> None:
    for where, pairs in [
        ("matrix", stated.matrix),
        *((f"include[{k}]", one) for k, one in enumerate(stated.include)),
    ]:
        for key, values in pairs.items():
            if key in _OWN_KEYS:
                raise ValueError(f"{where}: {key} is no factor, {_OWN_KEYS[key]}")
            for value in values if where == "matrix" else [values]:
                text = f"{key}={json.dumps(value, default=str)}"
                if kept_override(text) != text:
                    raise ValueError(
                        f"{where}: {key}: what a factor is stands in every file of a sweep, and values of headers in"
                        " none: write ${NAME}, and set that variable"
                    )
    for place, entry in enumerate(stated.exclude):
        for key in entry:
            if key not in stated.matrix:
                guess = nearest(key, stated.matrix)
                hint = f"did you mean {guess!r}?" if guess else f"it has {', '.join(stated.matrix) or 'none'}"
                raise ValueError(f"exclude[{place}]: {key} is no key of matrix, {hint}")


def _cell(path: Path, base: dict[str, Any], factors: Combination, label: str, seed: int) -> Cell:
    mapping = copy.deepcopy(base)
    try:
        for key, value in factors.items():
            set_value(mapping, key, copy.deepcopy(value))
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from error
    mapping["seed"] = seed
    resolve_paths(mapping, path.parent)
    origin = f"{path}: cell {pairs_text(factors) or label}"
    scenario = scenario_from_mapping(mapping, origin)
    scenario = scenario_from_mapping(without_early_end(scenario.to_mapping()), origin)
    _refuse_cold(path, label, scenario)
    plain = scenario.to_mapping()
    del plain["seed"]
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return Cell(label, factors, scenario, digest)


def _short_names(found: Sequence[Combination]) -> dict[str, str]:
    """The last part of each key path, or as many of its last parts as tell it from the others."""
    keys = list(dict.fromkeys(key for one in found for key in one))
    short: dict[str, str] = {}
    for key in keys:
        parts = key.split(".")
        ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
        short[key] = next(
            end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1 or end == key
        )
    return short


def _refuse_cold(path: Path, label: str, scenario: Scenario) -> None:
    kinds = [phase.kind for phase in scenario.phases]
    if "measure" in kinds and "warmup" not in kinds[: kinds.index("measure")]:
        raise ScenarioError(
            f"{path}: cell {label}: phases: no warmup comes before {scenario.phases[kinds.index('measure')].name!r},"
            " and every run of a sweep needs one"
        )


def _refuse_twins(path: Path, cells: Sequence[Cell]) -> None:
    """Two cells that are one scenario would be told apart by nothing."""
    first: dict[str, Cell] = {}
    for cell in cells:
        twin = first.setdefault(cell.digest, cell)
        if twin is not cell:
            raise ScenarioError(
                f"{path}: cells {twin.label} and {cell.label} are the same scenario, leave one out"
            )


def _refuse_restart(path: Path, stated: ExperimentFile, cells: Sequence[Cell]) -> None:
    """A server that squall starts is started anew for each run; one that runs already is not."""
    running = [is_running(cell.scenario) for cell in cells]
    if stated.restart == "never" and not all(running):
        raise ScenarioError(
            f"{path}: restart: never cannot be kept: squall starts its server anew for every run, unless server.url"
            " names one that runs; leave restart out, or say cell"
        )
    if stated.restart == "block":
        raise ScenarioError(
            f"{path}: restart: block cannot be kept: squall starts its server anew for every run, and one at server.url"
            " never; say cell or never"
        )
    if stated.restart == "cell" and any(running):
        raise ScenarioError(
            f"{path}: restart: cell cannot be kept: squall does not restart the server at server.url; say never"
        )


def is_running(scenario: Scenario) -> bool:
    """Whether any server of the scenario is one that squall does not start."""
    entries = scenario.servers
    return entries is not None and any(entry.url is not None for entry in entries)


def _reference(path: Path, stated: ExperimentFile, cells: Sequence[Cell]) -> int | None:
    if stated.reference is None:
        return None
    wanted = stated.reference.cell
    found = [
        place
        for place, cell in enumerate(cells)
        if all(key in cell.factors and is_same(cell.factors[key], value) for key, value in wanted.items())
    ]
    if len(found) != 1:
        n = "no cell" if not found else f"{len(found)} cells"
        raise ScenarioError(
            f"{path}: reference.cell: {n} of the sweep {'has' if len(found) < 2 else 'have'} "
            f"{pairs_text(wanted)}, name one"
        )
    return found[0]
