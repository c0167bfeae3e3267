"""When requests arrive: the protocol, the stationary processes, and the way from a config to a process.

No clock and no sleep: an arrival process turns a generator and a horizon into absolute offsets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from scenarios.envelope import Envelope
from scenarios.load import (
    ConstantArrivals,
    EnvelopeArrivals,
    GammaArrivals,
    GammaResidual,
    HawkesResidual,
    OpenArrivals,
    PoissonArrivals,
    PoissonResidual,
    ResidualConfig,
    TraceArrivals,
)
from scenarios.presets import PRESETS
from scenarios.processes import UnitGamma, UnitHawkes, UnitPoisson, UnitProcess
from scenarios.trace import Trace, read_trace
from scenarios.units import NS_PER_S

Offsets = NDArray[np.int64]
Rates = NDArray[np.float64]


class Arrivals(Protocol):
    """An open-loop arrival process over a phase; t = 0 is the start of the phase."""

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        """Arrivals in [0, horizon_ns), (n,) int64, sorted, ties allowed."""

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        """Intended rate at `t_ns` (0 or more), same shape."""

    def expected_count(self, t_ns: int) -> float:
        """Expected arrivals in [0, t_ns)."""


@dataclass(frozen=True)
class Constant:
    """One arrival every 1/rate, the first at 0; the generator is not used."""

    rate_hz_mean: float

    def __post_init__(self) -> None:
        _refuse_bad_rate(self.rate_hz_mean)

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        """Arrival i at floor(i · 1e9 / rate)."""
        del rng
        count = math.ceil(self.expected_count(horizon_ns)) + 1
        offsets: Offsets = np.floor(np.arange(count) * float(NS_PER_S) / self.rate_hz_mean).astype(np.int64)
        return offsets[offsets < horizon_ns]

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        return np.full(np.shape(t_ns), self.rate_hz_mean)

    def expected_count(self, t_ns: int) -> float:
        return self.rate_hz_mean * (t_ns / NS_PER_S)


@dataclass(frozen=True)
class Poisson:
    """Independent arrivals at a constant rate."""

    rate_hz_mean: float

    def __post_init__(self) -> None:
        _refuse_bad_rate(self.rate_hz_mean)

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        """Exact on the ns grid: a Poisson count, each arrival uniform over the whole ns of the horizon."""
        count = int(rng.poisson(self.expected_count(horizon_ns)))
        return np.sort(rng.integers(0, horizon_ns, count, dtype=np.int64))

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        return np.full(np.shape(t_ns), self.rate_hz_mean)

    def expected_count(self, t_ns: int) -> float:
        return self.rate_hz_mean * (t_ns / NS_PER_S)


@dataclass(frozen=True)
class Gamma:
    """Renewal process with Gamma gaps of coefficient of variation `cv`, started in equilibrium.

    An ordinary renewal process would put an arrival of every worker at 0: a start burst of its own.
    """

    rate_hz_mean: float
    cv: float

    def __post_init__(self) -> None:
        _refuse_bad_rate(self.rate_hz_mean)
        UnitGamma(self.cv)

    def offsets_ns(self, rng: np.random.Generator, horizon_ns: int) -> Offsets:
        """Unit-rate points stretched by 1/rate and floored to ns."""
        points = UnitGamma(self.cv).points(rng, self.expected_count(horizon_ns))
        offsets = np.floor(points * (NS_PER_S / self.rate_hz_mean)).astype(np.int64)
        return offsets[offsets < horizon_ns]

    def rate_hz(self, t_ns: NDArray[np.int64]) -> Rates:
        return np.full(np.shape(t_ns), self.rate_hz_mean)

    def expected_count(self, t_ns: int) -> float:
        return self.rate_hz_mean * (t_ns / NS_PER_S)


def build_arrivals(config: OpenArrivals, horizon_ns: int) -> Arrivals:
    """The process that `config` describes; `horizon_ns` is the phase, over which an envelope has its mean.

    Reads the file of a trace: raises ScenarioError with file and row where it cannot be used.
    """
    match config:
        case ConstantArrivals():
            return Constant(config.rate_hz)
        case PoissonArrivals():
            return Poisson(config.rate_hz)
        case GammaArrivals():
            return Gamma(config.rate_hz, config.gap_cv())
        case TraceArrivals():
            offsets = read_trace(Path(config.file), config.unit)
            return Trace(offsets, config.quantum_width_ns if config.quantum == "spread" else None)
        case EnvelopeArrivals():
            return _build_envelope(config, horizon_ns)
        case _:
            assert_never(config)


def _build_envelope(config: EnvelopeArrivals, horizon_ns: int) -> Envelope:
    """Curve, bin and residual from the config, and from the preset where the config leaves them open."""
    preset = PRESETS[config.preset] if config.preset is not None else None
    curve = config.curve if preset is None else preset.curve
    bin_ns = config.bin_ns if config.bin_ns is not None or preset is None else preset.bin_ns
    assert curve is not None
    assert bin_ns is not None  # EnvelopeArrivals refuses a curve without a bin
    if config.residual is not None:
        residual = _build_residual(config.residual)
    else:
        residual = UnitPoisson() if preset is None else preset.residual
    return Envelope(config.rate_hz, curve, bin_ns, residual, horizon_ns)


def _build_residual(config: ResidualConfig) -> UnitProcess:
    match config:
        case PoissonResidual():
            return UnitPoisson()
        case GammaResidual():
            return UnitGamma(config.cv)
        case HawkesResidual():
            return UnitHawkes(config.n, config.beta)
        case _:
            assert_never(config)


def _refuse_bad_rate(rate_hz: float) -> None:
    if not 0 < rate_hz < math.inf:
        raise ValueError(f"a rate is finite and above 0, not {rate_hz} Hz")
