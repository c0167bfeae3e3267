"""What ran on the GPUs and which CUDA calls the host made, as two views of a query over the tables of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.executions import attach
from analysis.store import RunStore

if TYPE_CHECKING:
    import duckdb

OPERATIONS = {"kernels": "kernel", "memcpys": "copy", "memsets": "set"}
"""Tables whose rows are operations of a GPU, and what kind of operation each row is."""
DEVICE_TABLES = tuple(OPERATIONS)
EVENT_TABLES = (*DEVICE_TABLES, "syncs", "cuda_api", "osrt", "nvtx")

_COLUMNS = {
    "kernels": "name, 0::BIGINT AS bytes, '' AS copy_kind, '' AS source_kind, '' AS destination_kind",
    "memcpys": "copy_kind AS name, bytes, copy_kind, source_kind, destination_kind",
    "memsets": "'memset' AS name, bytes, '' AS copy_kind, '' AS source_kind, memory_kind AS destination_kind",
}
_OPS_OF = """
SELECT node, server, phase, process, thread, device, gpu_uuid, stream, start_ns, end_ns, launch_start_ns, launch_end_ns,
    correlation_id, instance, instance_device, batch_id, '{kind}' AS kind, {columns}
FROM {table} WHERE end_ns >= start_ns
"""
_NO_OPS = """
SELECT '' AS node, '' AS server, '' AS phase, 0::BIGINT AS process, 0::BIGINT AS thread, 0::BIGINT AS device,
    '' AS gpu_uuid, 0::BIGINT AS stream, 0::BIGINT AS start_ns, 0::BIGINT AS end_ns, 0::BIGINT AS launch_start_ns,
    0::BIGINT AS launch_end_ns, 0::BIGINT AS correlation_id, '' AS instance, 0::BIGINT AS instance_device,
    0::BIGINT AS batch_id, '' AS kind,
    '' AS name, 0::BIGINT AS bytes, '' AS copy_kind, '' AS source_kind, '' AS destination_kind
WHERE false
"""

# A copy from or to pageable memory goes through a buffer of the driver, and the call waits for it, whatever its name
# says (CUDA runtime API, "API synchronization behavior").
_IS_PAGEABLE = "source_kind = 'pageable' OR destination_kind = 'pageable'"
_CALLS = """
SELECT c.*,
    c.call_class IN ('blocking sync', 'blocking copy') OR c.call_class = 'async copy' AND {is_pageable} AS blocks
FROM cuda_api c {copies}
WHERE c.end_ns >= c.start_ns
"""
_PAGEABLE_COPIES = f"""LEFT JOIN (
    SELECT DISTINCT node, server, process, correlation_id, true AS is_pageable FROM memcpys WHERE {_IS_PAGEABLE}) p
    USING (node, server, process, correlation_id)"""
_NO_CALLS = """
SELECT '' AS node, '' AS server, '' AS phase, 0::BIGINT AS process, 0::BIGINT AS thread, '' AS thread_name,
    0::BIGINT AS start_ns, 0::BIGINT AS end_ns, '' AS name, '' AS api, '' AS call_class, 0::BIGINT AS correlation_id,
    0::BIGINT AS return_value, '' AS instance, 0::BIGINT AS instance_device, 0::BIGINT AS batch_id, false AS blocks
WHERE false
"""


def add_ops(connection: duckdb.DuckDBPyConnection, store: RunStore) -> None:
    """Makes views `ops` and `calls`; what the run has no table of has no rows there. Once in a connection.

    `ops`: a row per kernel, copy and set: kind ('kernel', 'copy', 'set'), node, server, phase, process, thread, device,
    gpu_uuid, stream, start_ns, end_ns, launch_start_ns, launch_end_ns, correlation_id, instance, instance_device,
    batch_id, name, bytes, copy_kind, source_kind, destination_kind; texts that a kind has not are empty. `calls`:
    `cuda_api` and `blocks`: whether the call makes its thread wait, by its name or for the pageable memory that it
    copies. Events that end before they start are left out (`findings.event_checks` counts them).
    """
    there = attach(connection, store, (*DEVICE_TABLES, "cuda_api"))
    queries = [
        _OPS_OF.format(table=table, kind=kind, columns=_COLUMNS[table])
        for table, kind in OPERATIONS.items()
        if table in there
    ]
    connection.execute(f"CREATE TEMP VIEW ops AS {' UNION ALL BY NAME '.join(queries) or _NO_OPS}")
    if "cuda_api" not in there:
        calls = _NO_CALLS
    elif "memcpys" in there:
        calls = _CALLS.format(is_pageable="coalesce(is_pageable, false)", copies=_PAGEABLE_COPIES)
    else:
        calls = _CALLS.format(is_pageable="false", copies="")
    connection.execute(f"CREATE TEMP VIEW calls AS {calls}")
