"""What the slices of the join read beside the run's own tables: Parquet files in a folder, made once, in order.

    executed                    execution with its costs and the state of its GPU, by place
    members                     request that a batch names, by request_id: its batch, and the rows of that before it
    stepped                     request that passed several executions and one of them, by request_id
    traces                      request with a batch, by request_id: instants of its trace
    while_there                 request without a batch of its own, by request_id: what the GPU did meanwhile
    means                       server, model and second or phase: means of the parts of a request
    clocks                      node and instant from which its clock has an error, to its next row

What does not fit in memory spills.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from squall.analysis.columns import NO_DEVICE
from squall.analysis.join.children import find_children
from squall.analysis.join.executions import add_named
from squall.analysis.join.meanwhile import GPU_STATE, GPU_STATES, MEANWHILE, WHILE_THERE
from squall.analysis.join.named_ids import id_spans, n_repeated
from squall.analysis.join.server_parts import MEANS, TRACES
from squall.analysis.recorded import add_windows
from squall.analysis.storage.clock_errors import ClockErrors
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.object_folder import ObjectFolder, Part
from squall.analysis.storage.query import add_view, attach, connect, write_rows
from squall.analysis.storage.store import RunStore
from squall.scenarios.records import Frozen

_USED = ("triton_samples", "gpu_samples", "kernels")

ROWS = {
    False: "SELECT *, true AS is_first FROM requests",
    True: """
    SELECT *, row_number() OVER (PARTITION BY request_id ORDER BY sent_ns NULLS LAST, done_ns NULLS LAST, worker,
        scheduled_ns NULLS LAST) = 1 AS is_first
    FROM requests
    """,
}
"""Rows of `requests`, by whether any request id stands in several: it was served once, and its first row counts."""

_CLOCKS = """
CREATE TEMP TABLE clocks AS
SELECT unnest($nodes::VARCHAR[]) AS node, unnest($from_ns::BIGINT[]) AS from_ns, unnest($error_ns::BIGINT[]) AS error_ns
"""
_SERVER_GPUS = """
-- GPU that a server sees by its own ordinal, and by none where it sees one alone.
CREATE TEMP TABLE server_gpus AS
SELECT unnest($servers::VARCHAR[]) AS server, unnest($devices::BIGINT[]) AS instance_device,
    unnest($gpus::VARCHAR[]) AS gpu_uuid
"""
_CHILDREN = """
-- Execution that names no request, and the one of another model that holds it, by place.
CREATE TEMP TABLE children(place BIGINT, parent_place BIGINT)
"""
_PREPARED = f"""
CREATE TEMP VIEW first_rows AS FROM ({{rows}}) WHERE is_first;

-- Request that a batch names; ok ones were sent and ended.
CREATE TEMP TABLE served AS
SELECT n.request_id, n.place, r.request_kind, r.rows, r.phase, r.sent_ns, r.done_ns,
    r.outcome = 'ok' AND r.sent_ns IS NOT NULL AND r.done_ns IS NOT NULL AS is_ok
FROM named n JOIN first_rows r USING (request_id);
{GPU_STATES}
{MEANWHILE}
"""
_FILES = {
    # with the error of its node's clock, and the state of its GPU at its start. That is the GPU of its kernels, else
    # the one that its server knows by the ordinal of its instance, else, of a server that may see all of its node's,
    # the only one that was sampled there.
    "executed": f"""
        SELECT p.*, s.* EXCLUDE (place)
        FROM placed p JOIN (
            SELECT c.place, k.error_ns, {GPU_STATE.format(at="c.start_ns")}
            FROM (
                SELECT p.place, p.node, p.start_ns,
                    coalesce(nullif(p.gpu_uuid, ''), v.gpu_uuid, o.gpu_uuid) AS sampled_uuid
                FROM placed p
                LEFT JOIN server_gpus v ON v.server = p.server AND v.instance_device = p.instance_device
                LEFT JOIN (SELECT DISTINCT node, gpu_uuid FROM gpu_states WHERE is_only) o
                    ON o.node = p.node AND p.server NOT IN (SELECT server FROM server_gpus)) c
            ASOF LEFT JOIN clocks k ON k.node = c.node AND c.start_ns >= k.from_ns
            ASOF LEFT JOIN gpu_states g
                ON g.node = c.node AND g.gpu_uuid = c.sampled_uuid AND c.start_ns <= g.t_ns) s USING (place)
        ORDER BY place
        """,
    "members": """
        SELECT request_id, place, CAST(sum(rows) OVER own AS BIGINT) - rows AS rows_before
        FROM served WINDOW own AS (PARTITION BY place ORDER BY request_id ROWS UNBOUNDED PRECEDING)
        ORDER BY request_id
        """,
    # what a request passed, with the executions that name nobody within
    "stepped": """
        SELECT request_id, place, is_on_path, is_joined, is_by_time FROM (
            SELECT *, count(*) OVER (PARTITION BY request_id) AS n_steps FROM (
                SELECT *, false AS is_by_time FROM passed
                UNION ALL
                SELECT p.request_id, c.place, false, false, true
                FROM passed p JOIN children c ON c.parent_place = p.place)
            SEMI JOIN requests USING (request_id))
        WHERE n_steps > 1 ORDER BY request_id, place
        """,
    "traces": TRACES,
    "while_there": WHILE_THERE,
    "means": MEANS,
    "clocks": "FROM clocks",
}


class Sources(Frozen):
    """The files, and the slices: first and last request_id of each, in order."""

    files: Mapping[str, tuple[Part, ...]]
    is_repeated: bool
    """Whether a request id stands in several rows."""
    spans: tuple[tuple[int, int], ...]
    step_spans: tuple[tuple[int, int], ...]
    """Likewise of `steps`; none where no request passed several executions."""


def write_sources(
    store: RunStore, folder: Path | ObjectFolder, rows_per_slice: int, memory_limit_bytes: int
) -> Sources:
    """Writes the files into `folder`, which is empty. Raises `MissingTable` for a run without requests."""
    with connect(store, ["requests"], memory_limit_bytes) as connection:
        attach(connection, store, _USED)
        add_named(connection, store)
        add_windows(connection, store)
        _add_children(connection, store.manifest)
        _add_stated(connection, store.manifest)
        is_repeated = n_repeated(connection, "requests") > 0
        connection.execute(_PREPARED.format(rows=ROWS[is_repeated]))
        files = {name: write_rows(connection, query, folder, name) for name, query in _FILES.items()}
        add_view(connection, "steps_by_id", files["stepped"])
        return Sources(
            files,
            is_repeated,
            id_spans(connection, "requests", rows_per_slice),
            id_spans(connection, "steps_by_id", rows_per_slice),
        )


def _add_children(connection: duckdb.DuckDBPyConnection, manifest: Manifest) -> None:
    connection.execute(_CHILDREN)
    for one in find_children(connection, manifest, is_placed=True):
        connection.register("child_rows", pa.table({"place": one.place, "parent_place": one.parent_place}))
        connection.execute("INSERT INTO children FROM child_rows")


def _add_stated(connection: duckdb.DuckDBPyConnection, manifest: Manifest) -> None:
    """Tables `clocks` and `server_gpus`, of what the manifest states."""
    errors = {node: ClockErrors.from_node(facts) for node, facts in manifest.nodes.items()}
    clocks: dict[str, list[Any]] = {
        "nodes": [node for node, one in errors.items() for _ in one.from_ns],
        "from_ns": [at for one in errors.values() for at in one.from_ns.tolist()],
        "error_ns": [error for one in errors.values() for error in one.error_ns.to_pylist()],
    }
    connection.execute(_CLOCKS, clocks)
    gpus = [
        (server, device, uuid)
        for server, facts in manifest.servers.items()
        for number, uuid in enumerate(facts.gpus)
        for device in ((number, NO_DEVICE) if len(facts.gpus) == 1 else (number,))
    ]
    named = {name: [row[i] for row in gpus] for i, name in enumerate(("servers", "devices", "gpus"))}
    connection.execute(_SERVER_GPUS, named)
