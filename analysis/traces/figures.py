"""The figures of a trace as values, as `trace_info` makes them and the summary holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from squall.scenarios.series.logging_tick import Grid


@dataclass(frozen=True)
class Dispersion:
    """Index of dispersion over 10 shifted grids, with the 90 % block-bootstrap band; rough below 10 windows."""

    window_ns: int
    idc_ratio: float | None
    n_windows: int
    is_rough: bool
    low_ratio: float | None
    high_ratio: float | None


@dataclass(frozen=True)
class Peak:
    """The busiest window of a grid from the first arrival on, and its count over the mean one."""

    window_ns: int
    start_ns: int
    count: int
    peak_to_mean_ratio: float


@dataclass(frozen=True)
class Tail:
    """Hill's index of the largest `share_ratio` of the values, with its standard error."""

    share_ratio: float
    index: float | None
    stderr: float | None
    n_tail: int


@dataclass(frozen=True)
class SeriesFigures:
    """Figures of one series of instants. `count_unit_ns` is the window of the counts that remember."""

    first_ns: int
    span_ns: int
    rate_hz: float | None
    gap_c2_ratio: float | None
    local_c2_ratio: float | None
    local_window_ns: int
    n_local_windows: int
    peaks: tuple[Peak, ...]
    safe_load_ratio: float | None
    dispersion: tuple[Dispersion, ...]
    gap_autocorrelation: float | None
    gap_rank_correlation: float | None
    count_unit_ns: int
    count_autocorrelation: Mapping[str, float | None]
    gap_tails: tuple[Tail, ...]
    hurst_variance_time: float | None
    hurst_variance_time_from_10: float | None
    hurst_haar: float | None
    gd1_wait_p99: Mapping[str, float | None]


@dataclass(frozen=True)
class SizeFigures:
    """Figures of a size column without its empty rows. `cap`: where it was cut off, and how many rows have that."""

    n: int
    n_empty: int
    mean: float | None
    c2_ratio: float | None
    p99: float | None
    max: float | None
    tails: tuple[Tail, ...]
    cap: tuple[float, int] | None


@dataclass(frozen=True)
class Sessions:
    """How many sessions there are, and the share of rows of the ten largest."""

    n: int
    top_count: int
    top_ratio: float


@dataclass(frozen=True)
class TraceInfo:
    """All figures of a trace. `spread`: of the arrivals spread inside their ticks, where the grid is coarse."""

    n: int
    first_ns: int
    last_ns: int
    stamps: Grid
    as_is: SeriesFigures
    spread: SeriesFigures | None
    spread_seed: int
    sizes: Mapping[str, SizeFigures]
    sessions: Sessions | None
    notes: tuple[str, ...]
