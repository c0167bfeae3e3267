"""What an SM of a GPU holds at most, and how a kernel's launch fills it: one rule, whoever recorded the kernel.

Blocks of an SM = least of: warps; registers, given by the warp in units of 256 in each of 4 sub-partitions; shared
memory, given by the block in units of 128 bytes with 1 KiB for the system on compute capability 8 and later, 256 bytes
before; blocks (CUDA C++ Programming Guide, compute capabilities; cuda_occupancy.h). The carve-out of shared memory is
taken at its largest. Not seen: clusters of blocks, registers given back (setmaxnreg), MPS.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.records import Frozen

Int64s = NDArray[np.int64]
_UNLIMITED = np.iinfo(np.int64).max
_KIB = 1024


class DeviceLimits(NamedTuple):
    """Of a GPU: what one of its SMs holds at most."""

    sm_count: int
    max_warps_per_sm: int
    max_registers_per_sm: int
    max_shared_bytes_per_sm: int
    max_blocks_per_sm: int
    compute_major: int


class _Sm(NamedTuple):
    warps: int
    blocks: int
    shared_kib: int
    cores: int


_SMS: Final[dict[tuple[int, ...], _Sm]] = {
    (7, 0): _Sm(64, 32, 96, 64),
    (7, 5): _Sm(32, 16, 64, 64),
    (8, 0): _Sm(64, 32, 164, 64),
    (8, 6): _Sm(48, 16, 100, 128),
    (8, 7): _Sm(48, 16, 164, 128),
    (8, 9): _Sm(48, 24, 100, 128),
    (9, 0): _Sm(64, 32, 228, 128),
    (10, 0): _Sm(64, 32, 228, 128),
    (10, 3): _Sm(64, 32, 228, 128),
    (12, 0): _Sm(48, 24, 100, 128),
    (12, 1): _Sm(48, 24, 100, 128),
}
"""By compute capability: most resident warps and blocks, largest shared memory (CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"), FP32 cores (the same, "Compute Capabilities", section of each)."""
_REGISTERS: Final = 64 * _KIB
"""Of an SM of each of these (the same table)."""


def sm_count(capability: tuple[int, ...], n_cores: int) -> int | None:
    """SMs of a GPU with so many cores, as NVML counts them; None: of a compute capability that is not known here."""
    sm = _SMS.get(capability)
    return n_cores // sm.cores if sm is not None and n_cores % sm.cores == 0 and n_cores else None


def limits_of(capability: tuple[int, ...], n_sms: int) -> DeviceLimits | None:
    """By compute capability; None of one that is not known here."""
    sm = _SMS.get(capability)
    if sm is None:
        return None
    return DeviceLimits(n_sms, sm.warps, _REGISTERS, sm.shared_kib * _KIB, sm.blocks, capability[0])


class Launches(NamedTuple):
    """Sizes of kernels' launches, (n,) each."""

    threads_per_block: Int64s
    registers_per_thread: Int64s
    shared_bytes_per_block: Int64s


def _warps(launches: Launches) -> Int64s:
    return -(-launches.threads_per_block // 32)


def _blocks_per_sm(launches: Launches, limits: Int64s) -> dict[str, Int64s]:
    """Of warps, blocks, registers and shared memory each how many blocks of an SM it allows, (n,)."""
    _, max_warps, max_registers, max_shared, max_blocks, compute_major = limits.T
    warps = np.maximum(_warps(launches), 1)
    by_warp = -(-launches.registers_per_thread * 32 // 256) * 256
    by_registers = max_registers // 4 // np.maximum(by_warp, 1) * 4 // warps
    asked = launches.shared_bytes_per_block
    shared = np.where(compute_major >= 8, -(-(asked + 1024) // 128) * 128, -(-asked // 256) * 256)
    by_shared = max_shared // np.maximum(shared, 1)
    return {
        "warps": max_warps // warps,
        "blocks": max_blocks,
        "registers": np.where(by_warp > 0, by_registers, _UNLIMITED),
        "shared memory": np.where(shared > 0, by_shared, _UNLIMITED),
    }


def theoretical_occupancy(launches: Launches, limits: Int64s) -> NDArray[np.float64]:
    """Most warps that an SM holds of each launch over the most it holds at all, (n,); NaN of a launch without threads
    and of one that no SM holds. `limits`: (n, 6), the fields of `DeviceLimits` of each."""
    blocks = np.minimum.reduce(list(_blocks_per_sm(launches, limits).values()))
    warps = _warps(launches)
    found = blocks * warps / np.maximum(limits[:, 1], 1)
    return np.where((blocks > 0) & (warps > 0), found, np.nan)


class Launch(Frozen):
    """Sizes of a kernel's launch."""

    n_blocks: int
    threads_per_block: int
    registers_per_thread: int
    shared_bytes_per_block: int


class Filling(Frozen):
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


def filling(launch: Launch, limits: DeviceLimits) -> Filling | None:
    """None for a whole CUDA graph, which has no sizes, and for a launch that no SM holds."""
    sizes = launch.threads_per_block, launch.registers_per_thread, launch.shared_bytes_per_block
    launches = Launches(*(np.array([size], np.int64) for size in sizes))
    own = np.array([limits], np.int64)
    warps = int(_warps(launches)[0])
    if warps < 1 or launch.n_blocks < 1:
        return None
    blocks = {name: int(found[0]) for name, found in _blocks_per_sm(launches, own).items()}
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
        float(theoretical_occupancy(launches, own)[0]),
        min(held, launch.n_blocks) * warps / (limits.sm_count * limits.max_warps_per_sm),
    )
