"""A published experiment as it is run: the sweep of each of its parts, or its probe. Made of a file."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from squall.scenarios.config.loader import read_mapping, resolve_paths, section_from_mapping
from squall.scenarios.config.overrides import set_value
from squall.scenarios.config.problems import nearest
from squall.scenarios.errors import ScenarioError
from squall.scenarios.experiments.experiment import Experiment, experiment_of
from squall.scenarios.experiments.file import ExperimentFile
from squall.scenarios.published.file import PartConfig, PublishedFile, Settings
from squall.scenarios.published.probe import ProbeConfig, probe_from_mapping

_LONGEST_NAME = 64
_FOLDER = "squall.scenarios.published"


@dataclass(frozen=True)
class PublishedExperiment:
    """What a file says, resolved: `parts` by name, or a `probe`. `is_small`: the rehearsal for a host without a GPU."""

    file: PublishedFile
    path: Path
    parts: Mapping[str, Experiment]
    is_small: bool
    probe: ProbeConfig | None = None

    def digest(self) -> str:
        """Equal for equal experiments: of all that is run, and of what was published."""
        said = [self.file.model_dump(mode="json"), self.is_small]
        said += [[name, part.described()] for name, part in self.parts.items()]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class _Asked:
    is_small: bool
    seed: int | None
    repeats: int | None
    allow_env: Collection[str]


def bundled_names() -> tuple[str, ...]:
    """Names of the experiments that squall brings along, sorted."""
    files = resources.files(_FOLDER).iterdir()
    return tuple(sorted(one.name.removesuffix(".yaml") for one in files if one.name.endswith(".yaml")))


def load_published(
    asked: str,
    is_small: bool = False,
    seed: int | None = None,
    repeats: int | None = None,
    allow_env: Collection[str] = (),
) -> PublishedExperiment:
    """The experiment of that name, or in the file at that path; `seed`: the first of each part, None: the scenario's;
    `repeats`: most seeds of a part, None: as many as it says; `allow_env`: as in `load_experiment`. Raises
    ScenarioError, one line."""
    path = _path_of(asked)
    file = section_from_mapping(PublishedFile, read_mapping(path, "published experiment"), str(path))
    if file.probe is not None:
        probe = probe_from_mapping(file.probe.model_dump(mode="json"), file.small.set if is_small else {})
        return PublishedExperiment(file, path, {}, is_small, probe)
    asked_for = _Asked(is_small, seed, repeats, allow_env)
    parts = {name: _part(path, file, name, part, asked_for) for name, part in file.parts.items()}
    return PublishedExperiment(file, path, parts, is_small)


def _path_of(asked: str) -> Path:
    names = bundled_names()
    if asked in names:
        return Path(str(resources.files(_FOLDER) / f"{asked}.yaml"))
    if asked.endswith((".yaml", ".yml")):
        return Path(asked)
    guess = nearest(asked, names)
    hint = (
        f"did you mean {guess!r}?" if guess else f"there are {', '.join(names)}, or the path of a YAML file"
    )
    raise ScenarioError(f"{asked}: there is no such experiment, {hint}")


def _part(path: Path, file: PublishedFile, name: str, part: PartConfig, asked: _Asked) -> Experiment:
    """Settings of a part, and of the rehearsal, come after those of the row, and win."""
    is_small, stated_repeats = asked.is_small, file.small.repeats if asked.is_small else part.repeats
    same: Settings = {**part.set, **(file.small.set if is_small else {})}
    base: dict[str, Any] = copy.deepcopy(dict(file.scenario or {}))
    base.setdefault("name", file.name)
    try:
        for key, value in same.items():
            set_value(base, key, copy.deepcopy(value))
    except ScenarioError as error:
        raise ScenarioError(f"{path}: parts.{name}: {error}") from error
    resolve_paths(base, path.parent)
    said = {
        "name": f"{file.name}-{name}"[:_LONGEST_NAME],
        "scenario": base,
        "seed": asked.seed,
        "repeats": min(stated_repeats, asked.repeats or stated_repeats),
        "order": part.order,
        "confirm": 0,
    }
    stated = section_from_mapping(ExperimentFile, said, f"{path}: {'small' if is_small else f'parts.{name}'}")
    cells = {
        row.name: _in_order(row.set, same, row.small if is_small else {})
        for row in file.rows
        if part.rows is None or row.name in part.rows
    }
    return experiment_of(path, stated, base, cells, asked.allow_env)


def _in_order(*settings: Settings) -> Settings:
    """All of them; a key that comes again has its last value, and its last place."""
    found: Settings = {}
    for one in settings:
        for key, value in one.items():
            found.pop(key, None)
            found[key] = value
    return found
