"""When what the nodes record is brought to the driver, and how much network that may take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from squall.scenarios.fields import Section
from squall.scenarios.units import format_bandwidth, parse_bandwidth

Bandwidth = Annotated[
    int, BeforeValidator(parse_bandwidth), PlainSerializer(format_bandwidth, return_type=str)
]
"""Bytes per second, 0 or more; `50MB/s` in the file."""


class RecordsConfig(Section):
    """`fetch` and bandwidths: of nodes whose disk the driver cannot read itself."""

    fetch: Literal["after", "during"] = "during"  # during: also in phases that are not measured
    bandwidth: Annotated[Bandwidth, Field(gt=0)] | None = (
        None  # of all nodes together; none: as fast as it goes
    )
    bandwidth_measured: Bandwidth = 0  # while a measured phase lasts; 0: nothing
