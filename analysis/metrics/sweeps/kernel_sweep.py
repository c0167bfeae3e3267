"""Kernels by configuration: durations, tensor cores, how launches fill the GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from squall.analysis.metrics.measures import Measures, ratio
from squall.analysis.metrics.sweeps.batches import Batches
from squall.analysis.metrics.sweeps.device_ops import KERNEL, KERNEL_CONFIG, DeviceOps, Ops
from squall.analysis.metrics.sweeps.numbering import Numbering
from squall.analysis.metrics.sweeps.tally import Distribution, Tally, summed
from squall.analysis.occupancy import DeviceLimits, Filling, Launch, filling
from squall.analysis.storage.in_time import as_ratio
from squall.analysis.storage.row_groups import NULL
from squall.scenarios.errors import AnalysisError

TENSOR_CORES = re.compile(
    r"[shicb](884|1688|8816|16816|161616|168128|16832)|[hi]mma|wmma|gmma|tcgen05|tensorop|nvjet|xmma|flash_fwd|fmha"
    r"|conv1x1|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv2d_c1_k1|direct_group",
    re.IGNORECASE,
)
"""Names of kernels that use tensor cores, as far as names say: see docs/metrics.md for the source of each part."""

TOP = 20
SHORT_NS = 10_000
_DURATION_BITS = 40


@dataclass(frozen=True)
class Config:
    """A launch configuration: what kernels were and how large."""

    name: str
    full_name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    occupancy_ratio: float | None
    is_tensor: bool
    filling: Filling | None


@dataclass(frozen=True)
class TopKernel:
    """Kernels of one full name and grid. `block` and all from `occupancy_ratio` on: of their largest configuration."""

    name: str
    full_name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    n: int
    total_ns: int
    share_ratio: float | None
    median_ns: float | None
    min_ns: int | None
    max_ns: int | None
    is_tensor: bool
    occupancy_ratio: float | None
    limiter: str | None
    waves_count: float | None
    sm_cover_ratio: float | None


@dataclass(frozen=True)
class KernelFigures:
    """Durations and sizes of the kernels of an instance. `top`: those of most time."""

    n: int
    total_ns: int
    mean_ns: float | None
    median_ns: float | None
    p95_ns: int | None
    max_ns: int | None
    below_10us_ratio: float | None
    tensor_time_ratio: float | None
    occupancy_ratio: float | None
    grid_occupancy_ratio: float | None
    sub_wave_time_ratio: float | None
    sm_cover_ratio: float | None
    sizes_known_time_ratio: float | None
    n_configurations: int
    top: tuple[TopKernel, ...]


class KernelSweep:
    """Counts the durations of kernels of batches that count, by group and configuration."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._pairs = Numbering(2)
        self._tally = Tally(n_dense=0)

    def add(self, ops: Ops) -> None:
        group = self._batches.group_of(ops.batch)
        is_own = (ops.kind == KERNEL) & (group >= 0)
        group, config = group[is_own], ops.config[is_own]
        duration = ops.end_ns[is_own] - ops.start_ns[is_own]
        if len(duration) and int(duration.max()) >> _DURATION_BITS:
            raise AnalysisError(
                "kernels has a kernel of more than 18 minutes: the report or its clock is broken"
            )
        pair = self._pairs.encode((group, config))
        self._tally.add((pair << _DURATION_BITS) | duration)

    def durations(self) -> dict[int, dict[int, Distribution]]:
        """Durations by group and configuration."""
        keys, counts = self._tally.counted()
        pair, duration = keys >> _DURATION_BITS, keys & ((1 << _DURATION_BITS) - 1)
        found: dict[int, dict[int, Distribution]] = {}
        edges = np.searchsorted(pair, np.arange(len(self._pairs.rows) + 1))
        for number, (group, config) in enumerate(self._pairs.rows.tolist()):
            own = slice(int(edges[number]), int(edges[number + 1]))
            found.setdefault(group, {})[config] = Distribution(duration[own], counts[own])
        return found


def merged(parts: list[Distribution]) -> Distribution:
    """All of `parts` together."""
    return Distribution(*summed([(part.values, part.counts) for part in parts]))


def read_configs(ops: DeviceOps, limits: Mapping[str, DeviceLimits]) -> list[Config]:
    """The configurations seen, by number."""
    return [
        _config(dict(zip(KERNEL_CONFIG, row, strict=True)), ops, limits) for row in ops.configs.rows.tolist()
    ]


def _config(row: dict[str, int], ops: DeviceOps, limits: Mapping[str, DeviceLimits]) -> Config:
    grid = row["grid_x"], row["grid_y"], row["grid_z"]
    block = row["block_x"], row["block_y"], row["block_z"]
    full_name = ops.text(row["full_name"])
    limit = limits.get(ops.text(row["gpu_uuid"])) or (
        next(iter(limits.values())) if len(limits) == 1 else None
    )
    needed = [row[name] for name in ("registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes")]
    filled = None
    if limit is not None and NULL not in needed:
        sizes = Launch(
            grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2], needed[0], needed[1] + needed[2]
        )
        filled = filling(sizes, limit)
    return Config(
        ops.text(row["name"]), full_name, grid, block, as_ratio(row["theoretical_occupancy"]),
        TENSOR_CORES.search(full_name) is not None, filled,
    )  # fmt: skip


def kernel_figures(durations: Mapping[int, Distribution], configs: list[Config]) -> KernelFigures:
    """Figures of the kernels of an instance in a phase; see docs/metrics.md. `durations` by configuration."""
    whole = merged(list(durations.values())) if durations else Distribution(*Tally().counted())
    by_config = [(configs[number], found) for number, found in durations.items()]
    return KernelFigures(
        n=whole.n,
        total_ns=whole.total,
        mean_ns=whole.mean,
        median_ns=whole.median,
        p95_ns=whole.quantile(950),
        max_ns=whole.most,
        below_10us_ratio=ratio(whole.n_below(SHORT_NS), whole.n),
        **_weighted(by_config),
        n_configurations=len({(config.full_name, config.grid) for config, _ in by_config}),
        top=tuple(_top(by_config, whole.total)),
    )


def kernel_measures(kernels: KernelFigures) -> Measures:
    """The measures of the kernels of an instance."""
    return {
        "sub_wave_time_ratio": kernels.sub_wave_time_ratio,
        "sm_cover_ratio": kernels.sm_cover_ratio,
        "occupancy_ratio": kernels.occupancy_ratio,
        "tensor_time_ratio": kernels.tensor_time_ratio,
    }


def _weighted(by_config: list[tuple[Config, Distribution]]) -> dict[str, float | None]:
    """Means over kernel time; None where no kernel has the value."""
    time = {id(config): found.total for config, found in by_config}
    known = [(config, time[id(config)]) for config, _ in by_config if config.occupancy_ratio is not None]
    filled = [(config.filling, time[id(config)]) for config, _ in by_config if config.filling is not None]
    n_known, n_filled = sum(ns for _, ns in known), sum(ns for _, ns in filled)
    total = sum(time.values())
    return {
        "tensor_time_ratio": ratio(sum(time[id(c)] for c, _ in by_config if c.is_tensor), total),
        "occupancy_ratio": ratio(sum((c.occupancy_ratio or 0.0) * ns for c, ns in known), n_known),
        "grid_occupancy_ratio": ratio(sum(f.grid_occupancy_ratio * ns for f, ns in filled), n_filled),
        "sub_wave_time_ratio": ratio(sum(ns for f, ns in filled if f.waves_count < 1), n_filled),
        "sm_cover_ratio": ratio(sum(f.sm_cover_ratio * ns for f, ns in filled), n_filled),
        "sizes_known_time_ratio": ratio(n_filled, total),
    }


def _top(by_config: list[tuple[Config, Distribution]], total_ns: int) -> list[TopKernel]:
    """The `TOP` by time of (full name, grid)."""
    by_name: dict[tuple[str, tuple[int, int, int]], list[tuple[Config, Distribution]]] = {}
    for config, found in by_config:
        by_name.setdefault((config.full_name, config.grid), []).append((config, found))
    rows = [_row(own, total_ns) for own in by_name.values()]
    return sorted(rows, key=lambda row: (-row.total_ns, row.full_name, row.grid))[:TOP]


def _row(own: list[tuple[Config, Distribution]], total_ns: int) -> TopKernel:
    config, _ = max(own, key=lambda one: one[1].total)
    found = merged([one for _, one in own])
    filled = config.filling
    return TopKernel(
        name=config.name,
        full_name=config.full_name,
        grid=config.grid,
        block=config.block,
        n=found.n,
        total_ns=found.total,
        share_ratio=ratio(found.total, total_ns),
        median_ns=found.median,
        min_ns=found.least,
        max_ns=found.most,
        is_tensor=config.is_tensor,
        occupancy_ratio=config.occupancy_ratio,
        limiter=filled.limiter if filled else None,
        waves_count=filled.waves_count if filled else None,
        sm_cover_ratio=filled.sm_cover_ratio if filled else None,
    )
