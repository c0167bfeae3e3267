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
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.nsys.names import numbers
from squall.analysis.nsys.queries import BATCH_RANGES, CALLS, GPUS, LAUNCHES, TIED
from squall.analysis.nsys.ranges import BatchRanges
from squall.analysis.nsys.report import ROWS_AT_A_TIME, NsysReport
from squall.analysis.nsys.scrub import parquet_options
from squall.analysis.storage.collected import TiedEvents
from squall.analysis.storage.parquet import read_parquet
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import duckdb


class Prepared(Frozen, eq=False):
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
    """The ranges of our batches."""
    thread, start, end, instance, device, batch_id = connection.execute(BATCH_RANGES).fetchnumpy().values()
    return BatchRanges(thread, start, end, tuple(instance.tolist()), device, batch_id)


def _write_calls(connection: duckdb.DuckDBPyConnection, ranges: BatchRanges, path: Path) -> None:
    reader = connection.sql(CALLS).to_arrow_reader(ROWS_AT_A_TIME)
    schema = reader.schema.append(pa.field("range", pa.int64()))
    with pq.ParquetWriter(path, schema, **parquet_options(schema)) as writer:
        for batch in reader:
            thread, start, end = (numbers(batch.column(name))[0] for name in ("gt", "s", "e"))
            range_ = pa.array(ranges.locate(thread, start, end))
            writer.write_batch(pa.record_batch([*batch.columns, range_], schema=schema))


def attribution(report: NsysReport) -> dict[str, TiedEvents]:
    """How many events of our tables belong to a batch."""
    tables = ("cuda_api", "kernels", "memcpys", "memsets", "syncs")
    with prepared(report) as ready:
        rows = ready.connection.execute(TIED).fetchall()
    return dict.fromkeys(tables, TiedEvents()) | {
        table: TiedEvents(n=n, n_tied=n_tied, n_without_call=n_without_call)
        for table, n, n_tied, n_without_call in rows
    }
