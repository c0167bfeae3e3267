"""What NVML and GPM say of each GPU over a phase: means over time of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from squall.analysis.metrics.measures import NO_CLOCK_LIMIT, Measures
from squall.analysis.metrics.spans import PhaseSpan

if TYPE_CHECKING:
    import duckdb

BY_GPM = ("sm_util", "sm_occupancy", "tensor_util", "dram_util", "fp16_util", "fp32_util")
BY_NVML = ("util", "memory_util", "sm_clock_hz", "power_instant_w")


def _mean(name: str, interval: str) -> str:
    known = f"FILTER (isfinite({name}::DOUBLE))"  # a NaN says as little as a null
    return f"sum({name} * {interval}) {known} / nullif(sum({interval}) {known}, 0)"


_MEANS = [
    *(_mean(name, "gpm_interval_ns") for name in BY_GPM),
    *(_mean(name, "interval_ns") for name in BY_NVML),
]
_SAMPLES = f"""
SELECT gpu_uuid, count(*), {", ".join(_MEANS)},
    count(*) FILTER (throttle_reasons & ~{NO_CLOCK_LIMIT} <> 0) / nullif(count(throttle_reasons), 0),
    coalesce(bit_or(throttle_reasons), 0), count(throttle_reasons)
FROM gpu_samples
WHERE mig_instance = '' AND t_ns - interval_ns >= $first_ns AND t_ns <= $last_ns AND interval_ns > 0
GROUP BY gpu_uuid ORDER BY gpu_uuid
"""
NAMES = (*BY_GPM, *BY_NVML, "throttled_ratio", "throttle_reasons", "n_throttle_samples")


@dataclass(frozen=True)
class SampleFigures:
    """A GPU over a phase. `throttle_reasons`: bits that any sample had; `n_throttle_samples`: those that have bits."""

    n_samples: int
    sm_util: float | None
    sm_occupancy: float | None
    tensor_util: float | None
    dram_util: float | None
    fp16_util: float | None
    fp32_util: float | None
    util: float | None
    memory_util: float | None
    sm_clock_hz: float | None
    power_instant_w: float | None
    throttled_ratio: float | None
    throttle_reasons: int
    n_throttle_samples: int


def sample_figures(
    connection: duckdb.DuckDBPyConnection, phases: Sequence[PhaseSpan]
) -> dict[str, dict[str, SampleFigures]]:
    """By phase and GPU: of the samples that lie wholly in the measured part of the phase."""
    found = {}
    for phase in phases:
        first_ns, last_ns = phase.wall_ns
        rows = connection.execute(_SAMPLES, {"first_ns": first_ns, "last_ns": last_ns}).fetchall()
        found[phase.name] = {
            uuid: SampleFigures(n_samples=n, **dict(zip(NAMES, values, strict=True)))
            for uuid, n, *values in rows
        }
    return found


def sample_measures(figures: SampleFigures | None) -> Measures:
    """The measures that samples of the instance's GPU give."""
    if figures is None:
        return {}
    return {
        "gpu_sm_util_ratio": figures.sm_util,
        "gpu_tensor_util_ratio": figures.tensor_util,
        "gpu_dram_util_ratio": figures.dram_util,
        "gpu_util_ratio": figures.util,
        "throttled_ratio": figures.throttled_ratio,
        "n_throttle_samples": float(figures.n_throttle_samples),
    }
