"""A scenario file or a mapping, and what is changed in it, to a `Scenario`.

Every failure is a ScenarioError of one line: file, key path, what stands there, what is allowed.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from squall.scenarios.config.overrides import apply_override, set_value
from squall.scenarios.config.problems import describe_problem
from squall.scenarios.config.scenario import OF_A_RUN, STRUCK, Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.fields import Keys, Section
from squall.scenarios.foreign_file import read_within
from squall.scenarios.foreign_text import variables_in
from squall.scenarios.strict_yaml import parse_yaml

_Section = TypeVar("_Section", bound=Section)

_IN_PYTHON = "scenario"
"""What an error begins with where no file is at fault."""
_PATHS = {"file", "repository", "path", "reference"}
_OF_NAMES = ("headers", "parameters", "columns", "settings", "shapes", "shares")
_MOST_BYTES = 2 * 2**20
"""Of such a file: of a day's curve in seconds that leaves half."""


def load_scenario(
    path: Path | str, overrides: Sequence[str] = (), allow_env: Collection[str] = ()
) -> Scenario:
    """The scenario in `path`, changed by each `key.path=value` of `overrides` in turn.

    A relative trace file, model repository or file of right answers in it is taken from its folder, one in an
    override from the current folder. An override reaches a phase by name (`phases.burst.arrivals.rate=300/s`)
    or by index (`phases[1]`, `phases.1`); its value is YAML. Of the environment the file may ask for the variables
    that `allow_env` or an override names.
    """
    mapping = file_mapping(Path(path))
    for override in overrides:
        apply_override(mapping, override)
    return _of_file(mapping, path, allow_env, overrides)


def make_scenario(
    source: Scenario | Mapping[str, Any] | Path | str,
    values: Mapping[str, object] | None = None,
    allow_env: Collection[str] = (),
) -> Scenario:
    """The scenario in the file `source`, or that `source` is or describes, changed by each of `values` in turn.

    Keys of `values` are key paths as `load_scenario` takes them, its values Python's: `{"phases.burst.arrivals.rate":
    "300/s"}`. A relative path in a mapping or in `values` is taken from the current folder. `allow_env`: as there, of a
    file alone.
    """
    values = values or {}
    if isinstance(source, Path | str):
        mapping = file_mapping(Path(source))
    elif isinstance(source, Scenario):
        mapping = source.to_mapping()
        if source.load is not None and source.load.locust.run_time_ns is not None:
            del mapping["phases"]  # which `run_time` implies: they follow what is changed
    elif isinstance(source, Mapping):
        mapping = copy.deepcopy(dict(source))
    else:
        raise ScenarioError(f"{_IN_PYTHON}: a file, a mapping or a Scenario, not a {type(source).__name__}")
    for path, value in values.items():
        set_value(mapping, path, value)
    if isinstance(source, Path | str):
        return _of_file(mapping, source, allow_env, map(str, values.values()))
    resolve_paths(mapping, Path.cwd())
    return scenario_from_mapping(mapping, _IN_PYTHON)


def _of_file(mapping: Keys, path: Path | str, allow_env: Collection[str], changes: Iterable[str]) -> Scenario:
    """The scenario of a file whose mapping has these changes, which may name variables of the environment too."""
    resolve_paths(mapping, Path.cwd())
    origin = str(Path(path))
    scenario = scenario_from_mapping(mapping, origin)
    refuse_unnamed(scenario, [*allow_env, *variables_in(changes)], origin)
    return scenario


def refuse_unnamed(scenario: Scenario, allow_env: Collection[str], origin: str) -> None:
    """Raises ScenarioError for a header with a variable of the environment that the user has not named: whoever wrote
    the scenario also says to which server it goes."""
    for key, value in scenario.clients.headers.items():
        for name in variables_in([value]):
            if name not in allow_env:
                raise ScenarioError(
                    f"{origin}: clients.headers.{key} asks for ${{{name}}} of the environment: --allow-env {name}"
                    " allows it"
                )


def file_mapping(path: Path) -> Keys:
    """What a scenario file says, its paths absolute."""
    mapping = read_mapping(path, "scenario")
    resolve_paths(mapping, path.parent)
    return mapping


def read_mapping(path: Path, what: str) -> Keys:
    """The mapping of keys that a file of this kind holds, with no two parts of it shared."""
    try:
        content = read_within(path, _MOST_BYTES)
        if content is None:
            raise ScenarioError(
                f"{path}: has more than {_MOST_BYTES // 2**20} MiB: keep what is long in a trace or a file of data"
            )
        value = parse_yaml(content.decode(), str(path))
    except FileNotFoundError as error:
        raise ScenarioError(f"{path}: no such {what} file") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: is not UTF-8 text") from error
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    if value is None:
        raise ScenarioError(f"{path}: the file is empty")
    if not isinstance(value, dict):
        raise ScenarioError(f"{path}: its {what} is not a mapping of keys, but a {type(value).__name__}")
    return value


def scenario_from_mapping(mapping: Mapping[str, Any], origin: str) -> Scenario:
    """The scenario that `mapping` (keys, values as in a file) describes; `origin` stands first in errors."""
    return section_from_mapping(Scenario, mapping, origin)


def scenario_of_run(mapping: Mapping[str, Any], origin: str) -> Scenario:
    """The scenario of a run's manifest, which may state keys without effect, as those of earlier versions did, and keys
    that are struck, at their defaults."""
    known = dict(mapping)
    for name, struck in STRUCK.items():
        section = known.get(name)
        if isinstance(section, Mapping):
            known[name] = {key: value for key, value in section.items() if (key, value) not in struck.items()}
    return section_from_mapping(Scenario, known, origin, {OF_A_RUN: True})


def section_from_mapping(
    section: type[_Section], mapping: Mapping[str, Any], origin: str, context: Mapping[str, Any] | None = None
) -> _Section:
    """The part of a scenario that `mapping` describes; `origin` stands first in errors, `context` is pydantic's."""
    try:
        return section.model_validate(dict(mapping), context=context)
    except ValidationError as error:
        raise ScenarioError(f"{origin}: {describe_problem(error, section)}") from error


def resolve_paths(mapping: Keys, folder: Path) -> None:
    """Makes relative paths absolute, in place; anything of the wrong type is left for validation. A locustfile and what
    lies beside it keep the names that they are given: one may be a link elsewhere."""
    for key in ("phases", "clients", "model", "models"):
        _resolve(mapping.get(key), _PATHS, lambda path: str((folder / path).resolve()))
    _resolve(mapping.get("load"), {"file", "include"}, lambda path: os.path.abspath(folder / path))


def _resolve(part: Any, keys: Collection[str], absolute: Callable[[Path | str], str]) -> None:
    """Makes the values of these keys absolute in every mapping inside `part`, itself included, but for those whose keys
    are names of others' choice: arrivals nest in parts and shapes."""
    for one in part if isinstance(part, list) else ():
        _resolve(one, keys, absolute)
    for key, value in part.items() if isinstance(part, dict) else ():
        if key == "function" and isinstance(value, str):
            place, colon, function = value.rpartition(":")
            part[key] = f"{absolute(place)}{colon}{function}" if place.endswith(".py") else value
        elif key in keys and isinstance(value, str | Path) and value:
            part[key] = absolute(value)
        elif key in keys and isinstance(value, list):
            part[key] = [absolute(one) if isinstance(one, str | Path) and one else one for one in value]
        elif key not in _OF_NAMES:
            _resolve(value, keys, absolute)
