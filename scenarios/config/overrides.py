"""Changes to a scenario mapping by key path: `--set key.path=value` of the command line, and those of Python."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from squall.scenarios.config.problems import path_text
from squall.scenarios.errors import ScenarioError, way_out
from squall.scenarios.fields import Keys
from squall.scenarios.foreign_text import LEFT_OUT, kept_headers
from squall.scenarios.strict_yaml import parse_yaml

_STEP = r"[^.\[\]]+"
_PATH = re.compile(rf"{_STEP}(?:\.{_STEP}|\[\d+\])*")


def apply_override(mapping: Keys, override: str) -> tuple[Any, str | int]:
    """Sets one value of `mapping` in place, written `key.path=YAML`; see `set_value`."""
    origin = f"--set {override}"
    path, equals, text = override.partition("=")
    if not equals:
        raise ScenarioError(f"{origin}: has no '=', write key.path=value")
    return set_value(mapping, path, parse_yaml(text, origin), origin)


def kept_override(override: str) -> str:
    """`override` as it may be kept: values of headers that are written out, which may be secrets, are the variables
    that `kept_headers` names. One that cannot be read keeps its path alone."""
    path = override.partition("=")[0]
    is_whole = path.strip() == "clients"
    if not is_whole and "headers" not in path:
        return override
    mapping: Keys = {}
    try:
        place, key = apply_override(mapping, override)
        clients = mapping["clients"]
        headers = clients.get("headers", {}) if is_whole else clients["headers"]
        shown = kept_headers(headers)
    except (ScenarioError, AttributeError, KeyError, TypeError):
        return f"{path}={LEFT_OUT}"
    if shown == headers:
        return override
    headers.update(shown)  # `place` is this mapping, or holds it
    value = place[key]
    return pair_text(path, value)


def pair_text(path: str, value: object) -> str:
    """`key.path=value`, a text as it is, other values as JSON."""
    return f"{path}={value if isinstance(value, str) else json.dumps(value, default=str)}"


def set_value(mapping: Keys, path: str, value: object, origin: str | None = None) -> tuple[Any, str | int]:
    """Sets the value at a key path of `mapping` in place; sections that are not there yet are made. Returns the section
    or list that holds it then, and under which key.

    An item of a list is named by its `name` or by its index. Raises ScenarioError for a path that leads through a
    value, or to an item that is not there; keys and the value are left to the validation of the whole.
    """
    here: Any = mapping
    path, origin = path.strip(), origin or f"{path}={value!r}"
    if not _PATH.fullmatch(path):
        raise ScenarioError(
            f"{origin}: {path!r} is no key path, write for example phases.burst.arrivals.rate=300/s"
        )
    *above, last = re.findall(_STEP, path)
    shown: list[str | int] = []
    for step in above:
        key = _key_in(here, step, shown, origin)
        shown.append(key)
        part = here.get(key) if isinstance(here, dict) else here[key]
        here[key] = {} if part is None else copy.copy(part)  # what else holds the part is not changed
        here = here[key]
    key = _key_in(here, last, shown, origin)
    here[key] = value
    return here, key


def _key_in(here: Any, step: str, shown: list[str | int], origin: str) -> str | int:
    """`step` as a key of the mapping, or index of the list, `here`."""
    if isinstance(here, dict):
        return step
    if not isinstance(here, list):
        raise ScenarioError(f"{origin}: {path_text(shown)} is a value, it has no key {step!r}")
    names = [str(item.get("name")) if isinstance(item, dict) else "" for item in here]
    if step in names:
        return names.index(step)
    if step.isdecimal() and int(step) < len(here):
        return int(step)
    known = ", ".join(name for name in names if name not in ("", "None")) or f"0 to {len(here) - 1}"
    hint = way_out(step, names, f"there are {known}" if here else "it is empty")
    raise ScenarioError(f"{origin}: {path_text(shown)} has no item {step!r}, {hint}")
