"""A published experiment as it is run: the sweep of each of its parts, or its probe. Made of a file."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from squall.scenarios.config.loader import read_mapping, resolve_paths, section_from_mapping
from squall.scenarios.config.overrides import set_value
from squall.scenarios.errors import ScenarioError, placed, way_out
from squall.scenarios.experiment import Experiment, ExperimentFile, experiment_of
from squall.scenarios.fields import Keys, Section
from squall.scenarios.published.file import PublishedFile, Settings
from squall.scenarios.published.probe import OperatorProbe, PipelineProbe, ProbeConfig
from squall.scenarios.records import Frozen

_LONGEST_NAME = 64
_FOLDER = "squall.scenarios.published"


class PublishedExperiment(Frozen):
    """What a file says, resolved: `parts` by name, or a `probe`. `is_small`: the rehearsal for a host without a GPU."""

    file: PublishedFile
    path: Path
    parts: Mapping[str, Experiment]
    is_small: bool
    probe: OperatorProbe | PipelineProbe | None = None

    def digest(self) -> str:
        """Equal for equal experiments: of all that is run, and of what was published."""
        said = [self.file.model_dump(mode="json"), self.is_small]
        said += [[name, part.described()] for name, part in self.parts.items()]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()


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
    small: Settings = file.small.set if is_small else {}
    if file.probe is not None:
        return PublishedExperiment(file, path, {}, is_small, _changed(file.probe, small))
    parts = {}
    for name, part in file.parts.items():
        settings = {**part.set, **small}  # these win over those of a row
        stated_repeats = file.small.repeats if is_small else part.repeats
        base = _scenario(path, file, name, settings)
        said = {
            "name": f"{file.name}-{name}"[:_LONGEST_NAME],
            "scenario": base,
            "seed": seed,
            "repeats": min(stated_repeats, repeats or stated_repeats),
            "order": part.order,
            "confirm": 0,
        }
        stated = section_from_mapping(
            ExperimentFile, said, f"{path}: {'small' if is_small else f'parts.{name}'}"
        )
        cells = {
            row.name: _in_order(row.set, settings, row.small if is_small else {})
            for row in file.rows
            if part.rows is None or row.name in part.rows
        }
        parts[name] = experiment_of(path, stated, base, cells, allow_env)
    return PublishedExperiment(file, path, parts, is_small)


def probe_from_mapping(stated: Mapping[str, Any]) -> OperatorProbe | PipelineProbe:
    """The probe that a file states so. Raises ScenarioError."""
    return section_from_mapping(_Probe, {"probe": stated}, "small").probe


class _Probe(Section):
    probe: ProbeConfig


def _changed(probe: OperatorProbe | PipelineProbe, settings: Settings) -> OperatorProbe | PipelineProbe:
    """The probe with these key paths (`schedule.active`) set. Raises ScenarioError."""
    mapping = {"probe": probe.model_dump(mode="json")}
    with placed("small.set", ScenarioError):
        for path, value in settings.items():
            set_value(mapping, f"probe.{path}", value)
    return probe_from_mapping(mapping["probe"])


def _path_of(asked: str) -> Path:
    names = bundled_names()
    if asked in names:
        return Path(str(resources.files(_FOLDER) / f"{asked}.yaml"))
    if asked.endswith((".yaml", ".yml")):
        return Path(asked)
    hint = way_out(asked, names, f"there are {', '.join(names)}, or the path of a YAML file")
    raise ScenarioError(f"{asked}: there is no such experiment, {hint}")


def _scenario(path: Path, file: PublishedFile, part: str, settings: Settings) -> Keys:
    """The scenario of a part, its paths absolute."""
    mapping: Keys = {"name": file.name, **copy.deepcopy(file.scenario or {})}
    with placed(f"{path}: parts.{part}", ScenarioError):
        for key, value in settings.items():
            set_value(mapping, key, copy.deepcopy(value))
    resolve_paths(mapping, path.parent)
    return mapping


def _in_order(*settings: Settings) -> Settings:
    """All of them; a key that comes again has its last value, and its last place."""
    found: Settings = {}
    for one in settings:
        for key, value in one.items():
            found.pop(key, None)
            found[key] = value
    return found
