"""What the slices of the join read beside the run's own tables: Parquet files in a folder, made once, in order.

    executions     batch of `executions` with its row of `batch_costs`, in order of its number by start: place; with the
                   state of its GPU and the error of its node's clock at its start
    members        request of ours that a batch names, by request_id: place of the batch, and how many of its rows come
                   before the request's
    traces, second_means, phase_means    of `server_parts`
    while_there    of `join_meanwhile`; only where there is any

What does not fit in memory spills.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from analysis import server_parts
from analysis.clock_errors import ClockErrors
from analysis.executions import add_executions, add_members
from analysis.gpu_states import GPU_STATE, GPU_STATES, NO_GPU_STATES
from analysis.join_meanwhile import NO_WHILE_THERE, add_while_there
from analysis.named_ids import n_repeated
from analysis.query import connect
from analysis.store import RunStore
from analysis.tables.derived import DEVICE_COSTS

_USED = ("batches", "batch_costs", "triton_samples", "triton_traces", "gpu_samples", "kernels")
_N_BUCKETS = 4096
_COSTS = ", ".join(f"b.{column.name}" for column in DEVICE_COSTS)

_MODELS = """
SELECT server, model, row_number() OVER (ORDER BY server, model) AS model_place
FROM (SELECT DISTINCT server, model FROM placed)
"""

# A batch's GPU is that of its kernels, else the only one that was sampled on its node.
_STATES = f"""
SELECT c.place, k.error_ns, {GPU_STATE.format(at="c.start_ns")}
FROM (
    SELECT p.place, p.node, p.start_ns, coalesce(nullif(b.gpu_uuid, ''), o.gpu_uuid) AS sampled_uuid
    FROM placed p LEFT JOIN batch_costs b USING (server, model, version, instance, instance_device, batch_id)
    LEFT JOIN (SELECT DISTINCT node, gpu_uuid FROM gpu_states WHERE is_only) o ON o.node = p.node) c
ASOF LEFT JOIN clocks k ON k.node = c.node AND c.start_ns >= k.from_ns
ASOF LEFT JOIN gpu_states g ON g.node = c.node AND g.gpu_uuid = c.sampled_uuid AND c.start_ns <= g.t_ns
"""
_EXECUTIONS = f"""
SELECT s.*, p.node, p.server, p.model, m.model_place, p.instance, p.instance_device, p.batch_id, p.start_ns, p.end_ns,
    p.rows, p.n_requests, p.source, coalesce(b.tie, 'none') AS tie, b.gap_before_ns,
    coalesce(b.gpu_uuid, '') AS gpu_uuid, {_COSTS}
FROM placed p JOIN states s USING (place) JOIN models m USING (server, model)
LEFT JOIN batch_costs b USING (server, model, version, instance, instance_device, batch_id)
ORDER BY place
"""

# A request id that stands in several rows was served once: its first row counts.
FIRST = ("sent_ns", "done_ns", "worker", "scheduled_ns")
"""Order of the rows of one request id, nulls last."""
_FIRST_ROWS = f"""
SELECT DISTINCT ON (request_id) * FROM requests ORDER BY request_id, {", ".join(f"{name} NULLS LAST" for name in FIRST)}
"""

_SERVED = """
SELECT n.request_id, n.place, r.rows, r.phase, r.sent_ns, r.done_ns,
    r.outcome = 'ok' AND r.sent_ns IS NOT NULL AND r.done_ns IS NOT NULL AS is_ok
FROM named n JOIN first_rows r USING (request_id)
"""
_MEMBERS = """
SELECT request_id, place, CAST(sum(rows) OVER own AS BIGINT) - rows AS rows_before
FROM served WINDOW own AS (PARTITION BY place ORDER BY request_id ROWS UNBOUNDED PRECEDING)
ORDER BY request_id
"""

_BUCKETS = """
SELECT request_id // {width} AS bucket, min(request_id), max(request_id), count(*)
FROM requests GROUP BY bucket ORDER BY bucket
"""


@dataclass(frozen=True)
class Sources:
    """The folder of files, and the slices: first and last request_id of each, in order. Pickles."""

    folder: Path
    spans: tuple[tuple[int, int], ...]

    def path(self, name: str) -> Path:
        """File of one of the tables above."""
        return self.folder / f"{name}.parquet"


def write_sources(store: RunStore, folder: Path, rows_per_slice: int, memory_limit_bytes: int) -> Sources:
    """Writes the files into `folder`, which is there and empty. Raises `MissingTable` for a run without requests."""
    there = [table for table in _USED if store.has(table)]
    with connect(store, ["requests", *there], memory_limit_bytes) as connection:
        add_executions(connection, store)
        add_members(connection, store)
        _add_first_rows(connection)
        _add_clocks(connection, store.manifest.get("nodes", {}))
        tables = {
            "served": _SERVED,
            "models": _MODELS,
            "gpu_states": GPU_STATES if "gpu_samples" in there else NO_GPU_STATES,
            "states": _STATES,
            **server_parts.sums("triton_samples" in there),
        }
        for name, query in tables.items():
            connection.execute(f"CREATE TEMP TABLE {name} AS {query}")
        files = {
            "executions": _EXECUTIONS,
            "members": _MEMBERS,
            "traces": server_parts.TRACES if "triton_traces" in there else server_parts.NO_TRACES,
            "while_there": add_while_there(connection) if "kernels" in there else NO_WHILE_THERE,
            **server_parts.means(),
        }
        sources = Sources(folder, _spans(connection, rows_per_slice))
        for name, query in files.items():
            _write(connection, sources.path(name), query)
    return sources


def _add_first_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """View `first_rows`: `requests` with one row an id."""
    query = _FIRST_ROWS if n_repeated(connection, "requests") else "FROM requests"
    connection.execute(f"CREATE TEMP VIEW first_rows AS {query}")


def _spans(connection: duckdb.DuckDBPyConnection, rows_per_slice: int) -> tuple[tuple[int, int], ...]:
    """Slices of about `rows_per_slice` rows, cut between buckets of ids: ids are dense, so that these hold as many."""
    ((least, greatest),) = connection.execute(
        "SELECT min(request_id), max(request_id) FROM requests"
    ).fetchall()
    if least is None:
        return ()
    spans: list[tuple[int, int]] = []
    n_left = 0
    width = (greatest - least) // _N_BUCKETS + 1
    for _, first, last, n_rows in connection.execute(_BUCKETS.format(width=width)).fetchall():
        if n_left < n_rows or not spans:
            spans.append((first, last))
            n_left = rows_per_slice
        else:
            spans[-1] = (spans[-1][0], last)
        n_left -= n_rows
    return tuple(spans)


def _write(connection: duckdb.DuckDBPyConnection, path: Path, query: str) -> None:
    """Small row groups: a slice reads a narrow stretch of executions and members."""
    target = str(path).replace("'", "''")
    connection.execute(
        f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION snappy, PARQUET_VERSION v2, ROW_GROUP_SIZE 20480)"
    )


def _add_clocks(connection: duckdb.DuckDBPyConnection, nodes: Mapping[str, Any]) -> None:
    """Table `clocks`: from which instant on the run clock a node's clock has which error, to its next row."""
    rows = [(node, ClockErrors.from_node(facts)) for node, facts in nodes.items()]
    found = pa.table(
        {
            "node": pa.array([node for node, one in rows for _ in one.from_ns], pa.string()),
            "from_ns": pa.array([at for _, one in rows for at in one.from_ns.tolist()], pa.int64()),
            "error_ns": pa.array(
                [error for _, one in rows for error in one.error_ns.to_pylist()], pa.int64()
            ),
        }
    )
    connection.register("clock_rows", found)
    connection.execute("CREATE TEMP TABLE clocks AS FROM clock_rows")
    connection.unregister("clock_rows")
