"""Changes to a scenario mapping by key path: `--set key.path=value` of the command line, and those of Python."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

from squall.scenarios.config.problems import is_free_form, known_keys, nearest, path_text, unknown_key
from squall.scenarios.errors import ScenarioError
from squall.scenarios.foreign_text import LEFT_OUT, kept_headers
from squall.scenarios.strict_yaml import parse_yaml

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def apply_override(mapping: dict[str, Any], override: str) -> None:
    """Sets one value of `mapping` in place, written `key.path=YAML`; sections that are not there yet are made.

    An item of a list is named by its `name` or by its index. Raises ScenarioError for a path that no
    scenario has; whether the value fits is left to the validation of the whole.
    """
    origin = f"--set {override}"
    path, equals, text = override.partition("=")
    steps = _steps(path.strip(), origin)
    if not equals:
        raise ScenarioError(f"{origin}: has no '=', write key.path=value")
    here, key = _place(mapping, steps, origin)
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
        place, key = _place(mapping, _steps(path.strip(), override), override)
        headers = mapping["clients"].get("headers", {})
        shown = kept_headers(headers)
    except (ScenarioError, AttributeError, TypeError):
        return f"{path}={LEFT_OUT}"
    if shown == headers:
        return override
    headers.update(shown)  # `place` is this mapping, or holds it
    value = place[key]
    return f"{path}={value if isinstance(value, str) else json.dumps(value, default=str)}"


def set_value(mapping: dict[str, Any], path: str, value: object) -> None:
    """As `apply_override`, for a value that is Python's."""
    origin = f"{path}={value!r}"
    here, key = _place(mapping, _steps(path, origin), origin)
    here[key] = value


def _place(mapping: dict[str, Any], steps: list[str], origin: str) -> tuple[Any, str | int]:
    """The section or list that takes the value, and under which key."""
    here: Any = mapping
    location: list[str | int] = []  # as pydantic writes it: with the kind of a union
    shown: list[str | int] = []
    for step, following in pairwise(steps):
        key = _key_in(here, step, location, shown, origin)
        location.append(key)
        shown.append(key)
        here = _enter(here, key)
        kind = here.get("kind") if isinstance(here, dict) else None
        if isinstance(kind, str) and following != "kind" and known_keys([*location, kind]):
            location.append(kind)
    return here, _key_in(here, steps[-1], location, shown, origin)


def _steps(path: str, origin: str) -> list[str]:
    steps = [match[1] or match[2] for match in _STEP.finditer(path)]
    if (
        not steps
        or "".join(match[0] for match in _STEP.finditer(path)) != path
        or path.startswith((".", "["))
    ):
        raise ScenarioError(
            f"{origin}: {path!r} is no key path, write for example phases.burst.arrivals.rate=300/s"
        )
    return steps


def _enter(here: Any, key: str | int) -> Any:
    """The section or list at `key`, made where the file left it out."""
    if isinstance(here, dict) and here.get(key) is None:
        here[key] = {}
    return here[key]


def _key_in(
    here: Any, step: str, location: list[str | int], shown: list[str | int], origin: str
) -> str | int:
    """`step` as a key of the mapping, or index of the list, `here`."""
    if isinstance(here, list):
        return _index_in(here, step, shown, origin)
    if not isinstance(here, dict):
        raise ScenarioError(f"{origin}: {path_text(shown)} is a value, it has no key {step!r}")
    if not is_free_form(location) and step not in known_keys(location):
        raise ScenarioError(
            f"{origin}: {path_text([*shown, step])}: {unknown_key(step, known_keys(location))}"
        )
    return step


def _index_in(items: list[Any], step: str, shown: list[str | int], origin: str) -> int:
    names = [str(item.get("name")) if isinstance(item, dict) else "" for item in items]
    if step in names:
        return names.index(step)
    if step.isdecimal() and int(step) < len(items):
        return int(step)
    guess = nearest(step, names)
    known = ", ".join(name for name in names if name not in ("", "None")) or f"0 to {len(items) - 1}"
    hint = f"did you mean {guess!r}?" if guess else f"there are {known}" if items else "it is empty"
    raise ScenarioError(f"{origin}: {path_text(shown)} has no item {step!r}, {hint}")
