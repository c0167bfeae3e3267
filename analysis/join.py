"""Table `joined`: each scheduled arrival with the batch that served it, by request id.

    scheduled   sent        batch_start          batch_end        done
        │─ lag ──│── wait ──────│────── compute ──────│── reply ────│
        │                       response                            │

`scheduled`, `sent` and `done` are stamps of the client's node, `batch_start` and `batch_end` of the
server's: wait and reply carry the error of both clocks at `sent` and `batch_start`, `clock_error_ns`; compute, lag,
service and response carry none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from analysis.clock_track import ClockTrack
from analysis.query import connect
from analysis.schema import TABLES
from analysis.store import RunStore
from analysis.tables.columns import Column

_EARLIEST_NS = -(2**63)

_MEMBERS = """
CREATE TEMP TABLE members AS
SELECT request_id, count(*) AS n_batches, arg_min(batch, (batch.start_ns, batch.server, batch.instance)) AS
batch FROM (
    SELECT unnest(request_ids) AS request_id, struct_pack(
        server := server, node := node, instance := instance, batch_id := batch_id,
        start_ns := start_ns, end_ns := end_ns, rows := rows, n_requests := n_requests) AS batch
    FROM batches)
GROUP BY request_id
"""
"""One row per request id that any batch names; of several batches the first counts, and n_batches tells."""

_NO_MEMBERS = """
CREATE TEMP TABLE members(request_id BIGINT, n_batches BIGINT, batch STRUCT(
    server VARCHAR, node VARCHAR, instance VARCHAR, batch_id BIGINT,
    start_ns BIGINT, end_ns BIGINT, rows BIGINT, n_requests BIGINT))
"""

_JOINED = """
SELECT r.*,
    done_ns - scheduled_ns AS response_ns, done_ns - sent_ns AS service_ns, sent_ns - scheduled_ns AS lag_ns,
    CASE WHEN batch IS NULL THEN 'none' ELSE 'exact' END AS join_level,
    batch.server AS server, batch.instance AS instance, batch.batch_id AS batch_id,
    batch.start_ns AS batch_start_ns, batch.end_ns AS batch_end_ns,
    batch.rows AS batch_rows, batch.n_requests AS batch_n_requests,
    batch.start_ns - sent_ns AS wait_ns, batch.end_ns - batch.start_ns AS compute_ns,
    done_ns - batch.end_ns AS reply_ns,
    CASE WHEN batch.node = r.node THEN 0 ELSE client.error_ns + served.error_ns END AS clock_error_ns
FROM requests r
LEFT JOIN members m USING (request_id)
ASOF LEFT JOIN clocks client
    ON client.node = r.node AND coalesce(r.sent_ns, r.scheduled_ns) >= client.from_ns
ASOF LEFT JOIN clocks served ON served.node = m.batch.node AND m.batch.start_ns >= served.from_ns
ORDER BY request_id
"""

_REPORT = """
SELECT count(*), count(*) FILTER (outcome = 'ok'), count(*) FILTER (join_level = 'exact'),
    count(*) FILTER (outcome = 'ok' AND join_level = 'exact')
FROM joined
"""

_BATCH_REPORT = """
WITH ids AS (SELECT unnest(request_ids) AS request_id FROM batches),
named AS (SELECT request_id, count(*) AS n FROM ids GROUP BY request_id)
SELECT (SELECT count(*) FROM named WHERE n > 1),
    (SELECT coalesce(sum(n_foreign), 0) FROM batches)
    + (SELECT coalesce(sum(n), 0) FROM named ANTI JOIN joined USING (request_id))
"""


@dataclass(frozen=True)
class JoinReport:
    """How well requests and batches found each other. All are counts."""

    n_requests: int
    n_ok: int
    n_exact: int
    n_ok_exact: int
    n_duplicate_ids: int
    """Request ids that more than one batch names; the first batch was taken."""
    n_foreign: int
    """Entries of batches that are not rows of `requests`: another client's, or an id we did not plan."""


def write_joined(store: RunStore) -> JoinReport:
    """Writes table `joined`, exactly one row per row of `requests`, in order of request_id.

    Without `batches` every row is joined at level `none`, its batch columns null. Raises `MissingTable` if
    the run has no requests. The error of a clock that the manifest does not state is null.
    """
    has_batches = store.has("batches")
    with connect(store, ["requests", "batches"] if has_batches else ["requests"]) as connection:
        connection.execute(_MEMBERS if has_batches else _NO_MEMBERS)
        _add_clocks(connection, store.manifest.get("nodes", {}))
        found = set(connection.sql(f"SELECT * FROM ({_JOINED}) LIMIT 0").columns)
        columns = ", ".join(
            column.name if column.name in found else f"{_absent(column)} AS {column.name}"
            for column in TABLES["joined"].columns
        )
        query = connection.sql(f"SELECT {columns} FROM ({_JOINED})")
        store.replace_derived("joined", query.to_arrow_reader(100_000))
    return read_join_report(store)


def read_join_report(store: RunStore) -> JoinReport:
    """The report of the `joined` table as it stands. Raises `MissingTable` if it was never written."""
    has_batches = store.has("batches")
    with connect(store, ["joined", "batches"] if has_batches else ["joined"]) as connection:
        (counts,) = connection.execute(_REPORT).fetchall()
        (batch_counts,) = connection.execute(_BATCH_REPORT).fetchall() if has_batches else [(0, 0)]
    return JoinReport(*(int(count) for count in (*counts, *batch_counts)))


def _absent(column: Column) -> str:
    kind = {"text": "VARCHAR", "ratio": "DOUBLE", "Hz": "DOUBLE"}.get(column.unit, "BIGINT")
    empty = "''" if column.name == "gpu_uuid" else "'none'"
    return f"NULL::{kind}" if column.nullable else empty


def _add_clocks(connection: duckdb.DuckDBPyConnection, nodes: Mapping[str, Any]) -> None:
    """Table `clocks`: from which instant on the run clock a node's clock has which error, to its next row.

    A node without a track has one error for ever, null where the manifest does not state it.
    """
    rows = [row for node, facts in nodes.items() for row in _clock_errors(node, facts)]
    connection.execute("CREATE TEMP TABLE clocks(node VARCHAR, from_ns BIGINT, error_ns BIGINT)")
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    types = (pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    found = pa.table(arrays, names=["node", "from_ns", "error_ns"])
    connection.register("clock_rows", found)
    connection.execute("INSERT INTO clocks SELECT * FROM clock_rows")
    connection.unregister("clock_rows")


def _clock_errors(node: str, facts: Mapping[str, Any]) -> list[tuple[str, int, int | None]]:
    if "clock_track" not in facts:
        return [(node, _EARLIEST_NS, facts.get("clock_error_ns"))]
    from_ns, error_ns = ClockTrack.from_mapping(facts["clock_track"]).errors_from()
    return [(node, *row) for row in zip(from_ns.tolist(), error_ns.tolist(), strict=True)]
