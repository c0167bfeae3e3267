"""What tables are made of: a column, a table, and the columns that many tables share."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 5

INSTANT = "instant"
"""Unit of a column that holds a point in time: only these are shifted between clocks."""


@dataclass(frozen=True)
class Column:
    """One column: `unit` is `instant` (ns on the run clock), ns, bytes, Hz, ratio, count, W, J, °C, cores, id, text,
    claim."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class PhaseAt:
    """A row falls in the phase that holds the instant in its column `instant`."""

    instant: str
    only_measured: bool = False
    """Rows outside measured phases are dropped: they were recorded from a little before a phase to a little after."""


@dataclass(frozen=True)
class PhaseFrom:
    """A row brings its phase: that of `source`, whatever the instants of the row."""

    source: str


@dataclass(frozen=True)
class Table:
    """One table: `row` says what one row stands for; `is_derived` tables can be made again from the raw."""

    name: str
    row: str
    phase: PhaseAt | PhaseFrom
    columns: tuple[Column, ...]
    is_derived: bool = False

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
REAL = pa.float64()


def text(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, TEXT, "text", meaning, nullable)


def at(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, INT, INSTANT, meaning, nullable)


def ns(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, INT, "ns", meaning, nullable)


def count(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, INT, "count", meaning, nullable)


def id_(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, INT, "id", meaning, nullable)


def bytes_(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, INT, "bytes", meaning, nullable)


def ratio(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, REAL, "ratio", meaning, nullable)


def real(name: str, unit: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, REAL, unit, meaning, nullable)


def flag(name: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, pa.bool_(), "claim", meaning, nullable)


RUN = text("run", "name of the run")
PHASE = text(
    "phase", "phase of the scenario in which the row falls; empty before the first and after the last"
)
NODE = text("node", "node of the cluster, node-0 being the driver's")
SERVER = text("server", "server under test: server-0, server-1, …")
NO_DEVICE = -1
"""`instance_device` of an instance on the CPU, and of one that is not known."""
INSTANCE_DEVICE = id_(
    "instance_device",
    "GPU of that instance, as its server numbers it: Triton gives instances on several GPUs one name; -1: none, as on "
    "the CPU, or not known",
)
T = at("t_ns", "end of the sampled interval")
INTERVAL = ns("interval_ns", "length of the sampled interval")
