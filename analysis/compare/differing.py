"""The keys in which two scenarios differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from squall.scenarios.records import Frozen

LOAD_KEYS = ("phases", "clients", "models", "load")
_ASIDE = ("name", "seed", "promises")
"""Keys of a scenario that change nothing of a run's figures, or are those of the pair."""


class Differing(Frozen):
    """A key of the scenario with its values; None where one side has it not."""

    key: str
    a: str | None
    b: str | None

    @property
    def text(self) -> str:
        """`key: a → b`."""
        return f"{self.key}: {'-' if self.a is None else self.a} → {'-' if self.b is None else self.b}"


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Differing]:
    """The keys in which two scenarios differ, by path; phases and the like by name."""
    flat_a, flat_b = dict(_flat(a)), dict(_flat(b))
    keys = [key for key in dict.fromkeys([*flat_a, *flat_b]) if key.split(".")[0] not in _ASIDE]
    return [
        Differing(key, flat_a.get(key), flat_b.get(key)) for key in keys if flat_a.get(key) != flat_b.get(key)
    ]


def is_of_profilers(found: Sequence[Differing]) -> bool:
    """Whether two scenarios differ in what is profiled, and in nothing else."""
    return bool(found) and all(one.key.startswith("profile.") for one in found)


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        return [leaf for key, one in value.items() for leaf in _flat(one, f"{path}.{key}" if path else key)]
    if isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
        return [
            leaf
            for place, one in enumerate(value)
            for leaf in _flat(one, f"{path}.{one.get('name', place) if isinstance(one, Mapping) else place}")
        ]
    return [(path, json.dumps(value) if not isinstance(value, str) else value)]
