"""Changes to a scenario mapping by key path: `--set key.path=value` of the command line, and those of Python."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from squall.scenarios.config.problems import known_keys, path_text, unknown_key
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, way_out
from squall.scenarios.foreign_text import LEFT_OUT, kept_headers
from squall.scenarios.strict_yaml import parse_yaml

_STEP = r"[^.\[\]]+"
_PATH = re.compile(rf"{_STEP}(?:\.{_STEP}|\[\d+\])*")


def apply_override(mapping: dict[str, Any], override: str) -> None:
    """Sets one value of `mapping` in place, written `key.path=YAML`; sections that are not there yet are made.

    An item of a list is named by its `name` or by its index. Raises ScenarioError for a path that no
    scenario has; whether the value fits is left to the validation of the whole.
    """
    origin = f"--set {override}"
    path, equals, text = override.partition("=")
    if not equals:
        raise ScenarioError(f"{origin}: has no '=', write key.path=value")
    here, key = _place(mapping, path, origin)
    here[key] = parse_yaml(text, origin)


def kept_override(override: str) -> str:
    """`override` as it may be kept: values of headers that are written out, which may be secrets, are the variables
    that `kept_headers` names. One that cannot be read keeps its path alone."""
    path = override.partition("=")[0]
    if path.strip() != "clients" and "headers" not in path:
        return override
    mapping: dict[str, Any] = {}
    try:
        apply_override(mapping, override)
        place, key = _place(mapping, path, override)
        headers = mapping["clients"].get("headers", {})
        shown = kept_headers(headers)
    except (ScenarioError, AttributeError, TypeError):
        return f"{path}={LEFT_OUT}"
    if shown == headers:
        return override
    headers.update(shown)  # `place` is this mapping, or holds it
    value = place[key]
    return f"{path}={value if isinstance(value, str) else json.dumps(value, default=str)}"


def set_value(mapping: dict[str, Any], path: str, value: object, root: type[BaseModel] = Scenario) -> None:
    """As `apply_override`, for a value that is Python's; `mapping` is to be a `root`."""
    here, key = _place(mapping, path, f"{path}={value!r}", root)
    here[key] = value


def _place(
    mapping: dict[str, Any], path: str, origin: str, root: type[BaseModel] = Scenario
) -> tuple[Any, str | int]:
    """The section or list that takes the value, made where the file left it out, and under which key."""
    here: Any = mapping
    path = path.strip()
    if not _PATH.fullmatch(path):
        raise ScenarioError(
            f"{origin}: {path!r} is no key path, write for example phases.burst.arrivals.rate=300/s"
        )
    steps = re.findall(_STEP, path)
    location: list[str | int] = []  # as pydantic writes it: with the kind of a union
    shown: list[str | int] = []
    for step, following in pairwise(steps):
        key = _key_in(here, step, known_keys(location, root), shown, origin)
        location.append(key)
        shown.append(key)
        if isinstance(here, dict) and here.get(key) is None:
            here[key] = {}
        here = here[key]
        kind = here.get("kind") if isinstance(here, dict) else None
        if isinstance(kind, str) and following != "kind" and known_keys([*location, kind], root):
            location.append(kind)
    return here, _key_in(here, steps[-1], known_keys(location, root), shown, origin)


def _key_in(here: Any, step: str, known: list[str], shown: list[str | int], origin: str) -> str | int:
    """`step` as a key of the mapping, or index of the list, `here`; none are `known` where any key may stand."""
    if isinstance(here, list):
        return _index_in(here, step, shown, origin)
    if not isinstance(here, dict):
        raise ScenarioError(f"{origin}: {path_text(shown)} is a value, it has no key {step!r}")
    if known and step not in known:
        raise ScenarioError(f"{origin}: {path_text([*shown, step])}: {unknown_key(step, known)}")
    return step


def _index_in(items: list[Any], step: str, shown: list[str | int], origin: str) -> int:
    names = [str(item.get("name")) if isinstance(item, dict) else "" for item in items]
    if step in names:
        return names.index(step)
    if step.isdecimal() and int(step) < len(items):
        return int(step)
    known = ", ".join(name for name in names if name not in ("", "None")) or f"0 to {len(items) - 1}"
    hint = way_out(step, names, f"there are {known}" if items else "it is empty")
    raise ScenarioError(f"{origin}: {path_text(shown)} has no item {step!r}, {hint}")
