"""What perf_analyzer's flags say of each request beside its inputs: parameters, and the sequence that it is of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from squall.scenarios.config.client import NS_PER_US, Parameter
from squall.scenarios.errors import ScenarioError
from squall.scenarios.records import Frozen
from squall.scenarios.units import format_duration

_FLAG = "--request-parameter"
_BOOLEANS = {"true": True, "false": False}


class Parameters(Frozen):
    """Of every request, by name, as they travel; Triton's own `priority` and `timeout` (us) among them."""

    given: dict[str, Parameter]

    @property
    def section(self) -> dict[str, Any]:
        """Keys of `clients.request`; a value that these refuse stands there as it is, for them to name."""
        plain = {name: one for name, one in self.given.items() if name not in ("priority", "timeout")}
        found: dict[str, Any] = {"parameters": plain} if plain else {}
        if "priority" in self.given:
            found["priority"] = self.given["priority"]
        timeout = self.given.get("timeout")
        if timeout is not None:
            found["timeout"] = format_duration(timeout * NS_PER_US) if type(timeout) is int else timeout
        return found


def parameters_of(texts: Sequence[str]) -> Parameters:
    """Of `name:value:type` each; the last one of a name. Raises ScenarioError for what is none, or of another type."""
    return Parameters(dict(map(_parameter, texts)))


def _parameter(text: str) -> tuple[str, Parameter]:
    parts = text.split(":")
    if len(parts) != len(("name", "value", "type")) or not parts[0]:
        raise ScenarioError(f"{_FLAG}: {text!r} is not name:value:type")
    name, value, kind = parts
    match kind:
        case "string":
            return name, value
        case "bool" if value in _BOOLEANS:
            return name, _BOOLEANS[value]
        case "bool":
            raise ScenarioError(f"{_FLAG}: {text!r}: {value!r} is neither true nor false")
        case "int":
            try:
                return name, int(value)
            except ValueError as error:
                raise ScenarioError(f"{_FLAG}: {text!r}: {value!r} is not a whole number") from error
        case _:
            raise ScenarioError(f"{_FLAG}: {text!r}: type {kind!r} is none of bool, int, string")


class Lengths(Frozen):
    """Requests of a sequence: `low` to `high`, equally often."""

    low: int
    high: int

    @property
    def law(self) -> int | dict[str, Any]:
        """As `clients.sequences.length` takes it."""
        return self.low if self.low == self.high else {"kind": "uniform", "low": self.low, "high": self.high}


def lengths_of(base: int, variation: float) -> Lengths:
    """As perf_analyzer's sequence manager draws them: base + the whole part of a number that is uniform in
    ±variation · base, both ends excluded; at least 1."""
    most = max(0, math.ceil(variation * base - 1e-9) - 1)
    return Lengths(max(1, base - most), base + most)
