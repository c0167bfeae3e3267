"""SQL over the views that `squall.analysis.nsys.report` makes of a scrubbed report: from nsys's names to ours.

Every view has every column that the allow list names, null where the version did not export it. Rows come in no order
since 2025.6 (release notes), so each query orders. Names and batches stay numbers here: ids of StringIds, rows of the
ranges. `api_calls` are the CUDA API calls with their batch; `launches` the same by process and correlation id.
"""

from __future__ import annotations

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

RANGES = f"""
SELECT globalTid AS gt, start AS s, "end" AS e, coalesce(text, value) AS name
FROM {NVTX} LEFT JOIN StringIds ON id = textId
WHERE globalTid IS NOT NULL AND starts_with(coalesce(text, value), $prefix)
"""

THREADS = "SELECT globalTid, min(value) FROM ThreadNames JOIN StringIds ON id = nameId GROUP BY globalTid"

OSRT_EVENTS = f"""
SELECT globalTid AS gt, start AS s, "end" AS e, nameId FROM {OSRT}
WHERE coalesce(eventClass, {OS_RUNTIME_CALL}) = {OS_RUNTIME_CALL} AND globalTid IS NOT NULL
    AND "end" - start >= $least_ns
ORDER BY s, e, gt
"""

NVTX_EVENTS = f"""
SELECT globalTid AS gt, start AS s, "end" AS e, coalesce(text, value, '') AS name
FROM {NVTX} LEFT JOIN StringIds ON id = textId
WHERE "end" IS NOT NULL AND globalTid IS NOT NULL
ORDER BY s, e, gt, name
"""

API_CALLS = "SELECT * FROM api_calls ORDER BY s, e, gt, cid"

_ON_GPU = f"""
    (d.globalPid >> {PID_SHIFT}) & {ID_MASK} AS process, d.deviceId, g.uuid, d.contextId, d.streamId,
    d.start AS s, d."end" AS e, d.correlationId AS cid, d.graphId, d.graphNodeId AS graphNodeId,
    l.gt AS launch_gt, l.s AS launch_s, l.e AS launch_e, l.range"""
_JOINS = f"""
    LEFT JOIN launches l ON l.gp = d.globalPid >> {PID_SHIFT} AND l.cid = d.correlationId
    LEFT JOIN gpus g ON g.cudaId = d.deviceId AND (g.pid IS NULL OR g.pid = (d.globalPid >> {PID_SHIFT}) & {ID_MASK})
ORDER BY s, e, d.globalPid, cid, d.streamId, graphNodeId"""

GPUS = """
CREATE TEMP TABLE gpus AS
SELECT DISTINCT ON (c.cudaId, c.pid) c.cudaId, c.pid, coalesce(g.uuid, c.uuid) AS uuid,
    g.computeMajor, g.maxWarpsPerSm, g.maxBlocksPerSm, g.maxRegistersPerSm, g.maxShmemPerSm
FROM (SELECT cudaId, pid, gpuId, uuid FROM TARGET_INFO_CUDA_DEVICE
    UNION ALL SELECT id, NULL, id, NULL FROM TARGET_INFO_GPU
        WHERE NOT EXISTS (SELECT 1 FROM TARGET_INFO_CUDA_DEVICE)) c
LEFT JOIN TARGET_INFO_GPU g ON g.id = c.gpuId
ORDER BY c.cudaId, c.pid, g.id
"""
"""A process numbers its CUDA devices itself; 2022.4 does not tell them apart: a device is the GPU of that id. In
2026.4 a device may have no GPU here, and then its own UUID."""

KERNEL_EVENTS = f"""
SELECT {_ON_GPU}, shortName,
    coalesce(demangledName, mangledName, shortName) AS fullName,
    gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory, dynamicSharedMemory,
    g.maxWarpsPerSm, g.maxRegistersPerSm, g.maxShmemPerSm, g.maxBlocksPerSm, g.computeMajor
FROM (SELECT * FROM {KERNELS} UNION ALL BY NAME SELECT * EXCLUDE (graphExecId) FROM {GRAPHS}) d {_JOINS}
"""
MEMCPY_EVENTS = f"""
SELECT {_ON_GPU}, copyKind, srcKind, dstKind, bytes FROM {MEMCPYS} d {_JOINS}
"""
MEMSET_EVENTS = f"""
SELECT {_ON_GPU}, memKind, bytes FROM {MEMSETS} d {_JOINS}
"""
SYNC_EVENTS = f"""
SELECT (d.globalPid >> {PID_SHIFT}) & {ID_MASK} AS process, d.contextId,
    CASE WHEN d.streamId NOT IN (4294967295, -1) THEN d.streamId END AS streamId, d.start AS s, d."end" AS e,
    d.correlationId AS cid, d.syncType, l.gt AS launch_gt, l.nameId, l.range
FROM {SYNCS} d LEFT JOIN launches l ON l.gp = d.globalPid >> {PID_SHIFT} AND l.cid = d.correlationId
ORDER BY s, e, d.globalPid, cid
"""

TIED = f"""
SELECT count(*), count(*) FILTER (l.range >= 0), count(*) FILTER (l.cid IS NULL)
FROM {{table}} d LEFT JOIN launches l ON l.gp = d.globalPid >> {PID_SHIFT} AND l.cid = d.correlationId
WHERE d.start >= $first_ns AND d.start < $end_ns
"""
TIED_CALLS = (
    "SELECT count(*), count(*) FILTER (range >= 0), 0 FROM api_calls WHERE s >= $first_ns AND s < $end_ns"
)
