"""What each request says beside its inputs: configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from squall.scenarios.fields import Count, PositiveDuration, Section, Text, refuse, repeated

Parameter = bool | int | float | str
NS_PER_US = 1_000
LARGEST_PRIORITY = 65_535  # levels of a queue; more is a mistyped number
_INT64 = range(-(2**63), 2**63)
_OWN_KEYS = {
    "priority": "clients.request.priority",
    "timeout": "clients.request.timeout",
    "binary_data_output": "clients.request.binary",
}
_OF_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")
_OF_TRITON = "triton_"


def _each_once(outputs: tuple[str, ...]) -> tuple[str, ...]:
    twice = repeated(outputs)
    refuse({f"{twice!r} is named twice": twice})
    return outputs


def _sendable(value: object) -> object:
    """Types that the protocol has, and names that are not Triton's own; what is no mapping is left for validation."""
    for name, one in value.items() if isinstance(value, Mapping) else ():
        if name in _OWN_KEYS:
            raise ValueError(f"{name}: is {_OWN_KEYS[name]}")
        if name in _OF_SEQUENCES:
            raise ValueError(f"{name}: is clients.sequences")
        if str(name).startswith(_OF_TRITON):
            raise ValueError(f"{name}: Triton keeps names that begin with {_OF_TRITON} for itself")
        is_number = type(one) is float and math.isfinite(one)
        if not (type(one) in (bool, str) or is_number or (type(one) is int and one in _INT64)):
            raise ValueError(
                f"{name}: {one!r} is no text, true, false, whole number of 64 bits or finite number"
            )
    return value


def _whole_us(duration_ns: int) -> int:
    if duration_ns % NS_PER_US:
        raise ValueError("must be whole microseconds, as Triton counts it")
    return duration_ns


class RequestConfig(Section):
    """Of every request: the outputs it asks for, parameters of the KServe v2 protocol, Triton's priority and timeout.

    `timeout_ns` is how long the server lets it wait, not the client: that is `clients.timeout`. `binary`: over HTTP
    tensors travel as bytes behind the JSON, else as numbers and texts in it. `compression`: of requests; replies come
    as they are.
    """

    outputs: Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(_each_once)] | None = None
    parameters: Annotated[dict[Text, Parameter], BeforeValidator(_sendable)] = Field(default_factory=dict)
    priority: Annotated[Count, Field(le=LARGEST_PRIORITY)] | None = None
    timeout_ns: Annotated[PositiveDuration, AfterValidator(_whole_us)] | None = Field(
        default=None, alias="timeout"
    )
    binary: bool = True
    compression: Literal["gzip"] | None = None

    def sent_parameters(self) -> dict[str, Parameter]:
        """All that travel, by name: the timeout in µs."""
        found = dict(self.parameters)
        if self.priority is not None:
            found["priority"] = self.priority
        if self.timeout_ns is not None:
            found["timeout"] = self.timeout_ns // NS_PER_US
        return found
