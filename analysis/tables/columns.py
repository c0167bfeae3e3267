"""What tables are made of: a column, a table, and the columns that many tables share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

SCHEMA_VERSION = 5

INSTANT = "instant"
"""Unit of a column that holds a point in time: only these are shifted between clocks."""


Makers = tuple[str, ...]
"""Files that make a value, as paths from the root of the repository; of several each makes some of the rows, or an
earlier step."""


@dataclass(frozen=True)
class Column:
    """One column: `unit` is `instant` (ns on the run clock), ns, bytes, Hz, ratio, count, W, J, °C, cores, id, text,
    claim. `made_in` is empty where the table says it for all of its columns."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = False
    made_in: Makers = ()


@dataclass(frozen=True)
class PhaseAt:
    """A row falls in the phase that holds the instant in its column `instant`, as `made_in` finds."""

    instant: str
    made_in: str
    only_measured: bool = False
    """Rows outside measured phases are dropped: they were recorded from a little before a phase to a little after."""


@dataclass(frozen=True)
class PhaseFrom:
    """A row brings its phase: that of `source`, whatever the instants of the row. Written in `made_in`."""

    source: str
    made_in: Makers


@dataclass(frozen=True)
class Table:
    """One table: `row` says what one row stands for; `is_derived` tables can be made again from the raw. `made_in`:
    files that make the columns which do not name theirs."""

    name: str
    row: str
    phase: PhaseAt | PhaseFrom
    made_in: Makers
    columns: tuple[Column, ...]
    is_derived: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError where the table does not say whence its phases or a column of it come."""
        if isinstance(self.phase, PhaseAt) and self.phase.instant not in self.instants:
            raise ValueError(f"{self.name} has no instant {self.phase.instant} to tell its phases by")
        if isinstance(self.phase, PhaseFrom) and not self.phase.source:
            raise ValueError(f"{self.name} does not say whose phase a row brings")
        for column in self.columns:
            makers = self.makers(column)
            if not makers or not all(maker.endswith(".py") for maker in makers):
                raise ValueError(f"{self.name}.{column.name} does not say which file makes it")

    def makers(self, column: Column) -> Makers:
        """Files that make `column`, one of this table."""
        if column.name != "phase":
            return column.made_in or self.made_in
        return (self.phase.made_in,) if isinstance(self.phase, PhaseAt) else self.phase.made_in

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


def made_in(makers: str | Makers, *columns: Column) -> tuple[Column, ...]:
    """`columns`, with `makers` where they do not name theirs."""
    files = (makers,) if isinstance(makers, str) else makers
    return tuple(replace(column, made_in=column.made_in or files) for column in columns)


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


INGEST = "cluster/driver/records/ingest.py"

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
