"""What an SM of a GPU holds at most, as nsys reports it, and what follows for a kernel's launch sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError

_GPUS = """
SELECT uuid, smCount, maxWarpsPerSm, maxRegistersPerSm, maxShmemPerSm, maxBlocksPerSm, computeMajor
FROM TARGET_INFO_GPU ORDER BY id
"""


class DeviceLimits(NamedTuple):
    """TARGET_INFO_GPU of an nsys report."""

    sm_count: int
    max_warps_per_sm: int
    max_registers_per_sm: int
    max_shared_bytes_per_sm: int
    max_blocks_per_sm: int
    compute_major: int


@dataclass(frozen=True)
class Launch:
    """Sizes of a kernel's launch."""

    n_blocks: int
    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int


@dataclass(frozen=True)
class Filling:
    """How a launch fills a GPU."""

    blocks_per_sm: int
    limiter: str
    """What the number of blocks of an SM is limited by: warps, registers, shared memory or blocks."""
    waves_count: float
    """Grid over the blocks that the GPU holds at once; below 1 some of it stays empty throughout."""
    sm_cover_ratio: float
    """SMs that get a block, at most: min(1, grid / SMs)."""
    occupancy_ratio: float
    """Most resident warps of an SM over its limit."""
    grid_occupancy_ratio: float
    """Most resident warps of the whole GPU over its limit: a small grid cannot fill it."""


def read_device_limits(store: RunStore) -> dict[str, DeviceLimits]:
    """By UUID, from the scrubbed reports of the run; a GPU that no report describes fully is missing."""
    found: dict[str, DeviceLimits] = {}
    for path in sorted((store.run_dir / "nsys").glob("**/TARGET_INFO_GPU.parquet")):
        try:
            with NsysReport(path.parent).connect() as connection:
                rows = connection.execute(_GPUS).fetchall()
        except AnalysisError:
            continue  # a report that cannot be read says nothing of its GPUs
        for uuid, *limits in rows:
            if uuid and None not in limits:
                name = (
                    uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
                )  # NVML writes GPU- before it
                found[name] = DeviceLimits(*limits)
    return found


def filling(launch: Launch, limits: DeviceLimits) -> Filling | None:
    """None for a whole CUDA graph, which has no sizes, and for a launch that no SM holds.

    Blocks of an SM = least of: warps; registers, given by the warp in units of 256 in each of 4 sub-partitions; shared
    memory, given by the block in units of 128 bytes with 1 KiB for the system on compute capability 8 and later, 256
    bytes before; blocks (CUDA Programming Guide, compute capabilities; cuda_occupancy.h). The carve-out of shared
    memory is taken at its largest. Not seen: clusters of blocks, registers given back (setmaxnreg), MPS.
    """
    warps = -(-launch.threads_per_block // 32)
    if warps < 1 or launch.n_blocks < 1:
        return None
    blocks = {"warps": limits.max_warps_per_sm // warps, "blocks": limits.max_blocks_per_sm}
    if launch.registers_per_thread > 0:
        by_warp = -(-launch.registers_per_thread * 32 // 256) * 256
        blocks["registers"] = limits.max_registers_per_sm // 4 // by_warp * 4 // warps
    if (shared_bytes := _shared_bytes(launch.shared_bytes_per_block, limits.compute_major)) > 0:
        blocks["shared memory"] = limits.max_shared_bytes_per_sm // shared_bytes
    limiter = min(blocks, key=lambda name: blocks[name])
    per_sm = blocks[limiter]
    if per_sm < 1:
        return None
    held = per_sm * limits.sm_count
    return Filling(
        per_sm,
        limiter,
        launch.n_blocks / held,
        min(1.0, launch.n_blocks / limits.sm_count),
        per_sm * warps / limits.max_warps_per_sm,
        min(held, launch.n_blocks) * warps / (limits.sm_count * limits.max_warps_per_sm),
    )


def _shared_bytes(asked_bytes: int, compute_major: int) -> int:
    if compute_major >= 8:
        return -(-(asked_bytes + 1024) // 128) * 128
    return -(-asked_bytes // 256) * 256
