"""The scenario that `faults.yaml` and `accepted.yaml` change."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario

FAULTS, ACCEPTED = (
    yaml.safe_load((Path(__file__).parent / name).read_text()) for name in ("faults.yaml", "accepted.yaml")
)
DEMO = Path(__file__).parents[4] / "scenarios" / "config" / "demo.yaml"
INSTEAD = {"models": "model", "load": "phases"}


def changed(place: str, value: Any) -> dict[str, Any]:
    """The base with `value` at a place; under `scenario` with these keys, or without those that are null."""
    changes = value if place == "scenario" else [place.partition(".")[0]]
    left_out = [INSTEAD.get(key) for key in changes]
    mapping = {key: one for key, one in deepcopy(FAULTS["base"]).items() if key not in left_out}
    if place == "scenario":
        return {key: one for key, one in (mapping | value).items() if one is not None or key == "phases"}
    *above, last = place.split(".")
    here: Any = mapping
    for step in above:
        here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
    here[int(last) if isinstance(here, list) else last] = value
    return mapping


def scenario_of(**changes: Any) -> Scenario:
    return scenario_from_mapping(changed("scenario", changes), "test")


def at(root: Any, path: str) -> Any:
    """What stands at keys, indexes and attributes."""
    for step in path.split("."):
        if isinstance(root, list | tuple):
            root = root[int(step)]
        else:
            root = root[step] if isinstance(root, Mapping) else getattr(root, step)
    return root


def holds(whole: Any, part: Any) -> bool:
    """Whether a part of a mapping stands in the whole as it was given."""
    if isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return (type(whole), whole) == (type(part), part)
