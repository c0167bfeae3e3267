"""A scenario whose load runs to its end, whatever becomes certain before. Pure over its mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ENDING = ("abortOnFail", "delayAbortEval")


def without_early_end(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario's mapping without `stop_when`, and with promises that end no load. `mapping` stays as it is."""
    found = {key: value for key, value in mapping.items() if key != "stop_when"}
    promises = found.get("promises")
    if isinstance(promises, Mapping):
        found["promises"] = {key: _lasting(conditions) for key, conditions in promises.items()}
    return found


def _lasting(conditions: Any) -> Any:
    """A condition, or a list of them."""
    if isinstance(conditions, list | tuple):
        return [_lasting(one) for one in conditions]
    if not isinstance(conditions, Mapping):
        return conditions
    left = {key: value for key, value in conditions.items() if key not in _ENDING}
    return left["threshold"] if set(left) == {"threshold"} else left
