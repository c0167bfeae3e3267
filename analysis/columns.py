"""What tables are made of: a column, a table, and the columns that many tables share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent

import pyarrow as pa

from squall.scenarios.records import Frozen

SCHEMA_VERSION = 5

INSTANT = "instant"
"""Unit of a column that holds a point in time: only these are shifted between clocks."""


class Column(Frozen):
    """One column: `unit` is `instant` (ns on the run clock), ns, bytes, bytes/s, Hz, ratio, count, W, J, °C, cores, id,
    text, claim."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = False


class PhaseAt(Frozen):
    """A row falls in the phase that holds the instant in its column `instant`."""

    instant: str
    only_measured: bool = False
    """Rows outside measured phases are dropped: they were recorded from a little before a phase to a little after."""


class PhaseFrom(Frozen):
    """A row brings its phase: that of `source`, whatever the instants of the row."""

    source: str


class Table(Frozen):
    """One table: `row` says what one row stands for; `made_in` is the module that makes a derived one from the raw."""

    name: str
    row: str
    phase: PhaseAt | PhaseFrom
    columns: tuple[Column, ...]
    made_in: str = ""

    @property
    def is_derived(self) -> bool:
        """Whether it can be made again from the raw tables."""
        return bool(self.made_in)

    @property
    def instants(self) -> tuple[str, ...]:
        """Names of the columns that hold points in time."""
        return tuple(column.name for column in self.columns if column.unit == INSTANT)

    def arrow(self) -> pa.Schema:
        """The Arrow schema, with unit and meaning as field metadata and the schema version on the table."""
        fields = [
            pa.field(c.name, c.type, c.nullable, {"unit": c.unit, "meaning": c.meaning}) for c in self.columns
        ]
        return pa.schema(fields, {"table": self.name, "schema_version": str(SCHEMA_VERSION)})


TEXT = pa.dictionary(pa.int32(), pa.string())
INT = pa.int64()
_TYPES = {
    "text": TEXT,
    "claim": pa.bool_(),
    "list": pa.list_(INT),
    **dict.fromkeys((INSTANT, "ns", "count", "id", "bytes"), INT),
    **dict.fromkeys(("real", "ratio", "Hz", "W", "J", "°C", "cores", "bytes/s"), pa.float64()),
}


def columns(*parts: Column | str) -> tuple[Column, ...]:
    """The columns of a table. A text has some: name, unit and meaning, a column a line; further lines of a meaning are
    indented.

    `?` behind the unit: the column may be null. The unit says the type, unless one stands before it: `list:id`.
    """
    return tuple(
        column for part in parts for column in ([part] if isinstance(part, Column) else _columns_of(part))
    )


def _columns_of(text: str) -> Iterator[Column]:
    for line in re.sub(r"\n +", " ", dedent(text).strip()).splitlines():
        name, kind, meaning = line.split(maxsplit=2)
        type_name, _, unit = kind.removesuffix("?").rpartition(":")
        yield Column(name, _TYPES[type_name or unit], unit, meaning, kind.endswith("?"))


RUN, PHASE, NODE, SERVER, INSTANCE_DEVICE, T, INTERVAL = columns(
    """
    run              text     name of the run
    phase            text     phase of the scenario in which the row falls; empty before the first and after the last
    node             text     node of the cluster, node-0 being the driver's
    server           text     server under test: server-0, server-1, …
    instance_device  id       GPU of that instance, as its server numbers it: Triton gives instances on several GPUs
                              one name; -1: none, as on the CPU, or not known
    t_ns             instant  end of the sampled interval
    interval_ns      ns       length of the sampled interval
    """
)
OF_NODE = (RUN, PHASE, NODE)
"""First columns of a row of a node."""
OF_SERVER = (*OF_NODE, SERVER)
"""First columns of a row of a server."""
NO_DEVICE = -1
"""`instance_device` of an instance on the CPU, and of one that is not known."""
