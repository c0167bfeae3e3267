"""Which batch an event of the server belongs to, by thread and correlation id.

    thread of the instance   ──[ squall|instance|gpu0|7|… ──────────]──[ squall|instance|gpu0|8|… ]──
                                  launch │ copy │  graph launch │
                                       cid 41   42            43        (with the process: one API call each)
    GPU                              kernel 41   copy 42   nodes 43, 43, 43

An API call belongs to the batch whose range is open on its thread when the call starts, if it ends inside; a device
event belongs to the batch of the API call that has its process *and* correlation id (correlation ids repeat between
processes: without the process 10 % of the rows of two stubs came out false, 2025.3.2). Nodes of a CUDA graph carry the
correlation id of the graph's launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.nsys.allowed import GRAPHS, KERNELS, MEMCPYS, MEMSETS, SYNCS
from squall.analysis.nsys.names import RANGE_PREFIX, numbers, range_columns
from squall.analysis.nsys.queries import CALLS, GPUS, LAUNCHES, RANGES, TIED, TIED_CALLS
from squall.analysis.nsys.ranges import BatchRanges, batch_ranges
from squall.analysis.nsys.report import ROWS_AT_A_TIME, NsysReport
from squall.analysis.nsys.scrub import parquet_options
from squall.analysis.storage.parquet import read_parquet

if TYPE_CHECKING:
    import duckdb

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Tied(NamedTuple):
    """Events of one table, and how many of them belong to a batch."""

    n: int
    n_tied: int
    n_without_call: int
    """Device events whose API call the report does not have; 0 for calls."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A connection with `api_calls`, `launches` and `gpus`, and the ranges that `api_calls.range` counts."""

    connection: duckdb.DuckDBPyConnection
    ranges: BatchRanges


@contextmanager
def prepared(report: NsysReport) -> Iterator[Prepared]:
    """The report with every CUDA API call tied to its batch. Memory is bounded: calls go through a file."""
    with report.connect() as connection:
        ranges = read_ranges(connection)
        path = Path(_setting(connection, "temp_directory")) / "calls.parquet"
        _write_calls(connection, ranges, path)
        connection.sql(f"FROM {read_parquet([path])}").create_view("api_calls")
        connection.execute(LAUNCHES)
        connection.execute(GPUS)
        yield Prepared(connection, ranges)


def _setting(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    ((value,),) = connection.execute("SELECT current_setting($name)", {"name": name}).fetchall()
    return str(value)


def read_ranges(connection: duckdb.DuckDBPyConnection) -> BatchRanges:
    """The ranges of our batches. A range still open when the collection stopped counts: its batch had begun."""
    found = connection.sql(RANGES, params={"prefix": RANGE_PREFIX}).to_arrow_table().combine_chunks()
    said = range_columns(_chunk(found["name"], pa.string()))
    is_ours = said["batch_id"].is_valid()
    thread, start, end = (_chunk(found[name], pa.int64()).filter(is_ours) for name in ("gt", "s", "e"))
    end_ns, is_closed = numbers(end)
    clock_ns, has_clock = numbers(said["clock_ns"].filter(is_ours))
    return batch_ranges(
        numbers(thread)[0],
        numbers(start)[0],
        end_ns,
        ~is_closed,
        np.where(has_clock, clock_ns, -1),
        said["instance"].filter(is_ours).to_pylist(),
        numbers(said["instance_device"].filter(is_ours))[0],
        numbers(said["batch_id"].filter(is_ours))[0],
    )


def _chunk(column: pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], type_)


def _write_calls(connection: duckdb.DuckDBPyConnection, ranges: BatchRanges, path: Path) -> None:
    reader = connection.sql(CALLS).to_arrow_reader(ROWS_AT_A_TIME)
    schema = reader.schema.append(pa.field("range", pa.int64()))
    with pq.ParquetWriter(path, schema, **parquet_options(schema)) as writer:
        for batch in reader:
            thread, start, end = (numbers(batch.column(name))[0] for name in ("gt", "s", "e"))
            range_ = pa.array(ranges.locate(thread, start, end))
            writer.write_batch(pa.record_batch([*batch.columns, range_], schema=schema))


def attribution(report: NsysReport, first_ns: int = _FIRST, end_ns: int = _LAST) -> dict[str, Tied]:
    """How many events of our tables belong to a batch, of those that start in [first_ns, end_ns) by the report."""
    span: dict[str, Any] = {"first_ns": first_ns, "end_ns": end_ns}
    tables = {"kernels": (KERNELS, GRAPHS), "memcpys": (MEMCPYS,), "memsets": (MEMSETS,), "syncs": (SYNCS,)}
    with prepared(report) as ready:
        counts = {"cuda_api": ready.connection.execute(TIED_CALLS, span).fetchall()}
        for ours, sources in tables.items():
            counts[ours] = [
                ready.connection.execute(TIED.format(table=source), span).fetchall()[0] for source in sources
            ]
    return {
        table: Tied(*(sum(column) for column in zip(*rows, strict=True))) for table, rows in counts.items()
    }
