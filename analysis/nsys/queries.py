"""SQL over the views that `squall.analysis.nsys.report` makes of a scrubbed report: from nsys's names to ours.

Every view has every column that the allow list names, null where the version did not export it. Rows come in no order
since 2025.6 (release notes), so each query orders. Names and batches stay numbers here: ids of StringIds, rows of the
ranges. `api_calls` are the CUDA API calls with their batch; `launches` the same by process and correlation id.
"""

from __future__ import annotations

from squall.analysis.columns import NO_DEVICE
from squall.analysis.nsys.allowed import (
    GRAPHS,
    KERNELS,
    MEMCPYS,
    MEMSETS,
    NVTX,
    OS_RUNTIME_CALL,
    OSRT,
    RUNTIME,
    SYNCS,
)
from squall.analysis.nsys.names import BATCH_RANGE, CLOCK_RANGE

NEVER_NS = 2**63 - 1

# globalTid holds pid and tid in 24 bits each: hardware, VM | pid << 24 | tid (nsys export schema reference).
PID_SHIFT, ID_MASK = 24, 0xFFFFFF

CALLS = f"""
SELECT globalTid AS gt, start AS s, "end" AS e, correlationId AS cid, nameId, eventClass, returnValue
FROM {RUNTIME} WHERE globalTid IS NOT NULL
"""

LAUNCHES = f"""
CREATE TEMP TABLE launches AS
SELECT (gt >> {PID_SHIFT}) AS gp, cid, min(s) AS s, arg_min(e, s) AS e, arg_min(gt, s) AS gt,
    arg_min(nameId, s) AS nameId, arg_min(range, s) AS range
FROM api_calls WHERE cid IS NOT NULL GROUP BY ALL
"""
"""One row per process (with hardware and VM) and correlation id, so that a join never makes rows."""

_RANGES = f"""
SELECT globalTid AS gt, start AS s, "end" AS e, coalesce(text, value) AS name
FROM {NVTX} LEFT JOIN StringIds ON id = textId WHERE globalTid IS NOT NULL AND start IS NOT NULL
"""
BATCH_RANGES = f"""
-- Ranges of our batches. One that had not ended with the collection lasts to the next of its thread: its batch had
-- begun. A range that began before the collection is not in a report: what it launched belongs to no batch.
SELECT gt, s, coalesce(e, lead(s) OVER (PARTITION BY gt ORDER BY s, e DESC NULLS LAST), {NEVER_NS}) AS end_ns,
    said.instance, coalesce(nullif(said.device, '')::BIGINT, {NO_DEVICE}) AS device,
    said.batch_id::BIGINT AS batch_id
FROM (
    SELECT gt, s, e, regexp_extract(name, '{BATCH_RANGE}', ['instance', 'device', 'batch_id', 'clock_ns']) AS said
    FROM ({_RANGES}) WHERE regexp_matches(name, '{BATCH_RANGE}'))
ORDER BY gt, s, e DESC NULLS LAST
"""
STAMPED_RANGES = f"""
-- Closed ranges that carry a clock reading.
SELECT gt, clock_ns::BIGINT AS clock_ns, s, e
FROM (
    SELECT gt, s, e, coalesce(nullif(regexp_extract(name, '{BATCH_RANGE}', 4), ''),
        nullif(regexp_extract(name, '{CLOCK_RANGE}', 1), '')) AS clock_ns
    FROM ({_RANGES}))
WHERE clock_ns IS NOT NULL AND e IS NOT NULL ORDER BY gt, s
"""

THREADS = "SELECT globalTid, min(value) FROM ThreadNames JOIN StringIds ON id = nameId GROUP BY globalTid"

GPUS = """
CREATE TEMP TABLE gpus AS
SELECT DISTINCT ON (c.cudaId, c.pid) c.cudaId, c.pid,
    -- NVML writes GPU- before it
    regexp_replace(coalesce(g.uuid, c.uuid), '^([0-9a-fA-F]{8}-)', 'GPU-\\1') AS uuid,
    g.computeMajor, g.maxWarpsPerSm, g.maxBlocksPerSm, g.maxRegistersPerSm, g.maxShmemPerSm
FROM (SELECT cudaId, pid, gpuId, uuid FROM TARGET_INFO_CUDA_DEVICE
    UNION ALL SELECT id, NULL, id, NULL FROM TARGET_INFO_GPU
        WHERE NOT EXISTS (SELECT 1 FROM TARGET_INFO_CUDA_DEVICE)) c
LEFT JOIN TARGET_INFO_GPU g ON g.id = c.gpuId
ORDER BY c.cudaId, c.pid, g.id
"""
"""A process numbers its CUDA devices itself; 2022.4 does not tell them apart: a device is the GPU of that id. In
2026.4 a device may have no GPU here, and then its own UUID."""

# Of a call on a thread: `gt` names the thread too.
_ON_THREAD = (
    f"({{gt}} >> {PID_SHIFT}) & {ID_MASK} AS process, {{gt}} & {ID_MASK} AS thread, {{gt}} AS thread_name"
)

_OSRT_EVENTS = f"""
SELECT {_ON_THREAD.format(gt="globalTid")}, start AS start_ns, "end" AS end_ns, nameId AS name FROM {OSRT}
WHERE coalesce(eventClass, {OS_RUNTIME_CALL}) = {OS_RUNTIME_CALL} AND globalTid IS NOT NULL
    AND "end" - start >= $least_ns
ORDER BY start_ns, end_ns, globalTid
"""
_NVTX_EVENTS = f"""
SELECT {_ON_THREAD.format(gt="globalTid")}, start AS start_ns, "end" AS end_ns, coalesce(text, value, '') AS name
FROM {NVTX} LEFT JOIN StringIds ON id = textId
WHERE "end" IS NOT NULL AND globalTid IS NOT NULL
ORDER BY start_ns, end_ns, globalTid, name
"""
_API_CALLS = f"""
SELECT {_ON_THREAD.format(gt="gt")}, s AS start_ns, e AS end_ns, nameId AS name, nameId AS call_class,
    eventClass AS api, coalesce(cid, 0) AS correlation_id, returnValue AS return_value, range
FROM api_calls ORDER BY s, e, gt, cid
"""

# What every event on a GPU begins with, and the call that launched it.
_ON_GPU = f"""
    coalesce((d.globalPid >> {PID_SHIFT}) & {ID_MASK}, 0) AS process, l.gt & {ID_MASK} AS thread,
    coalesce(d.deviceId, 0) AS device, coalesce(g.uuid, '') AS gpu_uuid, coalesce(d.contextId, 0) AS context,
    coalesce(d.streamId, 0) AS stream, d.start AS start_ns, d."end" AS end_ns,
    coalesce(d.correlationId, 0) AS correlation_id, l.s AS launch_start_ns, l.e AS launch_end_ns,
    d.graphId AS graph_id, d.graphNodeId AS graph_node_id, l.range"""
_JOINS = f"""
    LEFT JOIN launches l ON l.gp = d.globalPid >> {PID_SHIFT} AND l.cid = d.correlationId
    LEFT JOIN gpus g ON g.cudaId = d.deviceId AND (g.pid IS NULL OR g.pid = (d.globalPid >> {PID_SHIFT}) & {ID_MASK})
ORDER BY start_ns, end_ns, d.globalPid, d.correlationId, d.streamId, d.graphNodeId"""

WHOLE_GRAPH_ID = -1
"""In place of an id of StringIds the name of a kernel that stands for a whole launch of a graph."""

_KERNEL_EVENTS = f"""
SELECT {_ON_GPU}, if(gridX IS NULL, {WHOLE_GRAPH_ID}, shortName) AS name,
    if(gridX IS NULL, {WHOLE_GRAPH_ID}, coalesce(demangledName, mangledName, shortName)) AS full_name,
    coalesce(gridX, 0) AS grid_x, coalesce(gridY, 0) AS grid_y, coalesce(gridZ, 0) AS grid_z,
    coalesce(blockX, 0) AS block_x, coalesce(blockY, 0) AS block_y, coalesce(blockZ, 0) AS block_z,
    registersPerThread AS registers_per_thread, staticSharedMemory AS static_shared_bytes,
    dynamicSharedMemory AS dynamic_shared_bytes,
    g.maxWarpsPerSm, g.maxRegistersPerSm, g.maxShmemPerSm, g.maxBlocksPerSm, g.computeMajor
FROM (SELECT * FROM {KERNELS} UNION ALL BY NAME SELECT * EXCLUDE (graphExecId) FROM {GRAPHS}) d {_JOINS}
"""
_MEMCPY_EVENTS = f"""
SELECT {_ON_GPU}, copyKind AS copy_kind, srcKind AS source_kind, dstKind AS destination_kind,
    coalesce(bytes, 0) AS bytes
FROM {MEMCPYS} d {_JOINS}
"""
_MEMSET_EVENTS = f"""
SELECT {_ON_GPU}, memKind AS memory_kind, coalesce(bytes, 0) AS bytes FROM {MEMSETS} d {_JOINS}
"""
_SYNC_EVENTS = f"""
SELECT coalesce((d.globalPid >> {PID_SHIFT}) & {ID_MASK}, 0) AS process, l.gt & {ID_MASK} AS thread,
    d.contextId AS context, CASE WHEN d.streamId NOT IN (4294967295, -1) THEN d.streamId END AS stream,
    d.start AS start_ns, d."end" AS end_ns, coalesce(d.correlationId, 0) AS correlation_id, l.nameId AS name,
    d.syncType AS kind, l.range
FROM {SYNCS} d LEFT JOIN launches l ON l.gp = d.globalPid >> {PID_SHIFT} AND l.cid = d.correlationId
ORDER BY start_ns, end_ns, d.globalPid, d.correlationId
"""

EVENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "osrt": ((OSRT,), _OSRT_EVENTS),
    "nvtx": ((NVTX,), _NVTX_EVENTS),
    "cuda_api": ((RUNTIME,), _API_CALLS),
    "kernels": ((KERNELS, GRAPHS), _KERNEL_EVENTS),
    "memcpys": ((MEMCPYS,), _MEMCPY_EVENTS),
    "memsets": ((MEMSETS,), _MEMSET_EVENTS),
    "syncs": ((SYNCS,), _SYNC_EVENTS),
}
"""By our table those of nsys that it is made of, and the query for its columns: by our names, instants still on the
report's clock, names as numbers, and with `range` the row of the batch's range (-1: of none). `$least_ns`: the shortest
OS-runtime call that is kept."""

TIED = f"""
SELECT events, count(*), count(*) FILTER (range >= 0), count(*) FILTER (is_without_call)
FROM (
    SELECT 'cuda_api' AS events, range, false AS is_without_call FROM api_calls
    UNION ALL
    SELECT d.events, l.range, l.cid IS NULL FROM (
        SELECT 'kernels' AS events, globalPid, correlationId FROM {KERNELS}
        UNION ALL SELECT 'kernels', globalPid, correlationId FROM {GRAPHS}
        UNION ALL SELECT 'memcpys', globalPid, correlationId FROM {MEMCPYS}
        UNION ALL SELECT 'memsets', globalPid, correlationId FROM {MEMSETS}
        UNION ALL SELECT 'syncs', globalPid, correlationId FROM {SYNCS}) d
    LEFT JOIN launches l ON l.gp = d.globalPid >> {PID_SHIFT} AND l.cid = d.correlationId)
GROUP BY events
"""
"""Of each table the events, those that belong to a batch, and those whose API call the report does not have."""
