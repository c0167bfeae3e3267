"""Operations of the GPUs, kernels, copies and sets, as relations; unions of intervals as queries, quantiles.

    operations  ├────────┤      ├──┤
                   ├───────┤
    pieces      [────────)[─)   [──)      the part of each beyond all that start before it: disjoint, in order
    gaps                     ───          from the end that those before it reached to its start

The lengths of the pieces add up to the union.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from squall.analysis.arrays import Int64s
from squall.analysis.columns import NO_DEVICE
from squall.analysis.metrics.measures import INSTANCE
from squall.analysis.storage.nsys import OPERATIONS
from squall.analysis.storage.query import rows

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]

KEY = "server, instance, instance_device, batch_id"
OWNER = ", ".join(INSTANCE)
BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"

# Those that end before they start are left out. A GPU that the report does not name is the ordinal of its server, by
# which another server of the node may know another GPU.
_OF_STREAM = "server, gpu_uuid, device, process, context, stream"
_LANES = f"""
-- What a stream's operations say of where they ran; a `lane` is a stream, and it and its GPU have numbers.
CREATE TEMP TABLE lanes AS
SELECT dense_rank() OVER (ORDER BY node, process, context, stream, gpu)::INTEGER AS lane,
    (dense_rank() OVER (ORDER BY gpu) - 1)::INTEGER AS gpu_number, *
FROM (
    SELECT DISTINCT node, {_OF_STREAM},
        CASE WHEN gpu_uuid <> '' THEN gpu_uuid ELSE server || '/device-' || device END AS gpu
    FROM ({{events}}))
"""
_OPERATIONS = """
SELECT {is_kernel} AS is_kernel, {is_copy} AS is_copy, {columns}, o.start_ns, o.end_ns, launch_start_ns, launch_end_ns
FROM {table} o {joins} WHERE o.end_ns >= o.start_ns
"""
_AT_LANE = "JOIN lanes l ON " + " AND ".join(
    f"o.{name} IS NOT DISTINCT FROM l.{name}" for name in _OF_STREAM.split(", ")
)

# What figures are of: an instance in a phase. `key` as `measures.instance_key` makes it.
_INSTANCES = f"""
CREATE TEMP TABLE instances AS
SELECT (row_number() OVER (ORDER BY phase, {OWNER}))::INTEGER AS grp, *,
    server || '/' || CASE WHEN instance <> '' THEN instance ELSE model END
        || CASE WHEN instance_device = {NO_DEVICE} THEN '' ELSE '@gpu' || instance_device END AS key
FROM (SELECT DISTINCT phase, {OWNER} FROM picked)
"""
# Batches of a group have numbers that follow one another.
_NUMBERED = f"""
CREATE TEMP TABLE numbered AS
SELECT (row_number() OVER (ORDER BY grp))::INTEGER AS batch, grp, node, process, start_ns, end_ns, tie, {KEY}
FROM picked JOIN instances USING (phase, {OWNER})
"""
IS_WHOLE = "(recorded_by <> 'library' OR tie <> 'none')"
"""SQL, of an event of a batch: no edge of a recorded window cuts that batch, all of its events were recorded."""
_AT_BATCH = "JOIN numbered b ON " + " AND ".join(f"o.{name} = b.{name}" for name in KEY.split(", "))


NONE_NS = -(1 << 62)
"""Stands for an instant that is not known, in arrays."""
ROWS_AT_ONCE = 1 << 17
"""Of a query, worked on as arrays: they stay in the caches."""


def add_table(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Mapping[str, Any],
    values: Iterable[Sequence[Any]],
) -> None:
    """Makes a temporary table; `columns`: name and type of Arrow of each."""
    made = [dict(zip(columns, row, strict=True)) for row in values]
    connection.register("rows_to_add", pa.Table.from_pylist(made, pa.schema(dict(columns))))
    connection.execute(f"CREATE TEMP TABLE {name} AS FROM rows_to_add")
    connection.unregister("rows_to_add")


def add_lanes(connection: duckdb.DuckDBPyConnection, tables: Collection[str]) -> list[str]:
    """Makes `lanes`, and returns the GPUs that operations of `tables` ran on, in order of their numbers."""
    events = " UNION ALL ".join(
        f"SELECT node, {_OF_STREAM} FROM {table} WHERE end_ns >= start_ns"
        for table in OPERATIONS
        if table in tables
    )
    if not events:
        return []
    connection.execute(_LANES.format(events=events))
    return [gpu for (gpu,) in connection.execute("SELECT DISTINCT gpu FROM lanes ORDER BY gpu").fetchall()]


def add_operations(
    connection: duckdb.DuckDBPyConnection, tables: Collection[str], of: Literal["lanes", "batches", "both"]
) -> bool:
    """Makes `operations`, those of `tables`, in numbers alone: text takes most of the time of a query. False
    where there are none of them: it is not made then.

    Columns: is_kernel, is_copy, start_ns, end_ns, launch_start_ns, launch_end_ns; lane and gpu_number of `lanes`;
    batch and grp of `numbered`, null of one of no batch, and is_whole: of a batch of which all were recorded. Those of
    `numbered` batches alone where it is not of lanes.
    """
    columns, joins = [], []
    if of != "batches":
        columns += ["lane", "gpu_number"]
        joins.append(_AT_LANE)
    if of != "lanes":
        columns += ["batch", "grp", f"coalesce({IS_WHOLE} AND batch IS NOT NULL, false) AS is_whole"]
        joins.append(_AT_BATCH if of == "batches" else f"LEFT {_AT_BATCH}")
    queries = [
        _OPERATIONS.format(
            is_kernel=kind == "kernel", is_copy=kind == "copy", columns=", ".join(columns), table=table,
            joins=" ".join(joins),
        )
        for table, kind in OPERATIONS.items() if table in tables
    ]  # fmt: skip
    if queries:
        kind = "VIEW" if of == "lanes" else "TABLE"  # of lanes alone they are read once
        connection.execute(f"CREATE TEMP {kind} operations AS {' UNION ALL '.join(queries)}")
    return bool(queries)


def number_batches(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes of `picked` tables `instances`, by phase, and `numbered`, the batches with the number of each."""
    connection.execute(_INSTANCES)
    connection.execute(_NUMBERED)


def by_group(connection: duckdb.DuckDBPyConnection, query: str) -> dict[int, Row]:
    """Rows by their column `grp`."""
    return {row["grp"]: row for row in rows(connection, query)}


def pieces(source: str, owner: str) -> str:
    """Query: `from_ns` and `to_ns` of the pieces of the union of the intervals (owner, start_ns, end_ns) of each owner,
    and `before_ns`, the length of those before."""
    return f"""
SELECT {owner}, from_ns, end_ns AS to_ns,
    sum(end_ns - from_ns) OVER (PARTITION BY {owner} ORDER BY from_ns ROWS UNBOUNDED PRECEDING)::BIGINT
        - (end_ns - from_ns) AS before_ns
FROM (
    SELECT {owner}, end_ns,
        greatest(start_ns, max(end_ns) OVER (PARTITION BY {owner} ORDER BY start_ns, end_ns {BEFORE})) AS from_ns
    FROM ({source}))
WHERE end_ns > from_ns
"""


def covered(t_ns: str, piece: str) -> str:
    """SQL: length that pieces cover before an instant; `piece`: the last that begins by then, by ASOF LEFT JOIN."""
    return f"coalesce({piece}.before_ns + least({t_ns}, {piece}.to_ns) - {piece}.from_ns, 0)"


def arrays_of(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[list[Any]]:
    """The columns of a query as arrays, some rows at a time."""
    for rows_here in connection.sql(query).to_arrow_reader(ROWS_AT_ONCE):
        yield [one.to_numpy(zero_copy_only=False) for one in rows_here.columns]


def runs_of_rows(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[int, list[Any]]]:
    """The rows of a query, in pieces of one value of their first column: that value, and arrays of the other columns.
    Rows of one value may come in several pieces."""
    for first, *columns in arrays_of(connection, query):
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(first)) + 1), len(first)]):
            yield int(first[start]), [column[start:end] for column in columns]


def groups_of_rows(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[int, list[Any]]]:
    """The rows of a query in order of its first column, those of one value in memory at a time: that value, and arrays
    of the other columns."""
    for value, pieces_of in groupby(runs_of_rows(connection, query), key=itemgetter(0)):
        yield (
            value,
            [np.concatenate(parts) for parts in zip(*(rows_of for _, rows_of in pieces_of), strict=True)],
        )


def median(values: Int64s) -> float | None:
    """The mean of the middle two."""
    return float(np.median(values)) if len(values) else None
