"""What an SM of each GPU of a run holds at most: as nsys reports it, else by the GPU's compute capability."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from squall.analysis.nsys.allowed import UUID
from squall.analysis.nsys.report import NsysReport
from squall.analysis.occupancy import DeviceLimits, limits_of
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError

_MOST_ROWS = 1024
"""Of a report: GPUs of a node. A larger table is none that nsys wrote, and is not read."""
_GPUS = f"""
SELECT uuid, smCount, maxWarpsPerSm, maxRegistersPerSm, maxShmemPerSm, maxBlocksPerSm, computeMajor
FROM TARGET_INFO_GPU WHERE regexp_full_match(uuid, $uuid) ORDER BY id LIMIT {_MOST_ROWS}
"""


def read_device_limits(store: RunStore) -> dict[str, DeviceLimits]:
    """By UUID; a GPU that neither a report nor the kernel library's facts describe fully is missing."""
    return _by_library(store) | _by_nsys(store)


def _by_library(store: RunStore) -> dict[str, DeviceLimits]:
    facts = store.manifest.kernels
    found = {
        one.uuid: limits_of(one.compute_capability, one.sm_count) for one in (facts.gpus if facts else ())
    }
    return {uuid: limits for uuid, limits in found.items() if limits is not None}


def _by_nsys(store: RunStore) -> dict[str, DeviceLimits]:
    """From the scrubbed reports of the run."""
    found: dict[str, DeviceLimits] = {}
    for path in sorted(store.folder("nsys").glob("**/TARGET_INFO_GPU.parquet")):
        try:
            if pq.read_metadata(path).num_rows > _MOST_ROWS:
                continue
            with NsysReport(path.parent).connect() as connection:
                rows = connection.execute(_GPUS, {"uuid": UUID.pattern}).fetchall()
        except (AnalysisError, OSError, pa.ArrowException):
            continue  # a report that cannot be read says nothing of its GPUs
        for uuid, *limits in rows:
            if None not in limits:
                name = (
                    uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
                )  # NVML writes GPU- before it
                found[name] = DeviceLimits(*limits)
    return found
