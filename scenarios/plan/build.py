"""From the configuration of arrivals to the process."""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np

from squall.scenarios.arrivals.gaps import (
    GammaGaps,
    HyperexponentialGaps,
    LognormalGaps,
    LomaxGaps,
    WeibullGaps,
)
from squall.scenarios.arrivals.presets import CLIENT_PRESETS, PRESETS
from squall.scenarios.arrivals.process import (
    MOST_DRAWN,
    Arrivals,
    Clients,
    Concatenation,
    Constant,
    Modulated,
    Stationary,
    Superposition,
    Ticks,
)
from squall.scenarios.arrivals.random_paths import BModelPath, LogGaussianPath, MarkovPath, OnOffPath, Sojourn
from squall.scenarios.arrivals.rate_paths import FixedPath, RatePath, diurnal, piecewise, pulses, steps
from squall.scenarios.arrivals.unit import UnitHawkes, UnitPoisson, UnitProcess, UnitRenewal
from squall.scenarios.config.arrivals import (
    BModelArrivals,
    ClientsArrivals,
    ConcatenateArrivals,
    ConstantArrivals,
    EnvelopeArrivals,
    FgnArrivals,
    HawkesArrivals,
    MmppArrivals,
    OnOffArrivals,
    OpenArrivals,
    SuperposeArrivals,
    TicksArrivals,
)
from squall.scenarios.config.residuals import (
    GammaResidual,
    HawkesResidual,
    HyperexponentialResidual,
    LognormalResidual,
    ParetoResidual,
    PoissonResidual,
    ResidualConfig,
    WeibullResidual,
)
from squall.scenarios.config.shapes import (
    DiurnalShape,
    FgnShape,
    LogAr1Shape,
    ParetoSojourn,
    PiecewiseShape,
    PulsesShape,
    RampShape,
    ShapeConfig,
    SpikeShape,
    StepShape,
    TraceShape,
)
from squall.scenarios.config.shapes import Sojourn as SojournConfig
from squall.scenarios.config.trace import TraceArrivals
from squall.scenarios.plan.replay import TraceReplay
from squall.scenarios.units import digits_text, format_duration

LARGEST_FIXED = 1 << 24
"""Pieces of a fixed curve over a phase, its repeats included: about 1 GiB while it is drawn."""


def build_arrivals(
    config: OpenArrivals, horizon_ns: int, sizes: tuple[str, ...] = (), session: str | None = None
) -> Arrivals:
    """The process that `config` describes; `horizon_ns` is the phase, over which a fixed rate curve has its mean.

    `sizes` names the columns of a trace that the rows or entries of its requests follow, `session` that of its
    sessions. Raises ScenarioError, with file and row, for a trace that cannot be used, and ValueError for parameters
    that only the whole phase shows to be wrong.
    """
    match config:
        case ConstantArrivals():
            return Constant(config.rate_hz)
        case TraceArrivals():
            return TraceReplay(config, sizes, session)
        case ClientsArrivals():
            return _clients(config)
        case TicksArrivals():
            return Ticks(config.rate_hz, config.period_ns)
        case SuperposeArrivals():
            return Superposition(tuple(build_arrivals(part, horizon_ns) for part in config.parts))
        case ConcatenateArrivals():
            return _concatenation(config, horizon_ns)
        case HawkesArrivals():
            return Stationary(config.rate_hz, _hawkes(config))
        case MmppArrivals() | OnOffArrivals() | FgnArrivals() | BModelArrivals():
            return Modulated(config.rate_hz, _random_path(config, horizon_ns), UnitPoisson())
        case EnvelopeArrivals():
            return _envelope(config, horizon_ns)
        case _:
            return Stationary(config.rate_hz, build_unit(config))


def build_unit(config: ResidualConfig) -> UnitProcess:
    """The process of rate 1 that `config` describes."""
    match config:
        case PoissonResidual():
            return UnitPoisson()
        case GammaResidual():
            return UnitRenewal(GammaGaps(config.gap_cv()))
        case WeibullResidual():
            return UnitRenewal(WeibullGaps(config.gap_shape()))
        case LognormalResidual():
            return UnitRenewal(LognormalGaps(config.cv))
        case ParetoResidual():
            return UnitRenewal(LomaxGaps(config.gap_alpha()))
        case HyperexponentialResidual():
            return UnitRenewal(HyperexponentialGaps(config.cv))
        case HawkesResidual():
            return UnitHawkes(config.n, config.beta)
        case _:
            assert_never(config)


def _hawkes(config: HawkesArrivals) -> UnitHawkes:
    if config.preset is not None:
        fit = PRESETS[config.preset].hawkes
        return UnitHawkes(fit.n, fit.beta_hz / config.rate_hz)
    assert config.n is not None
    assert config.beta_hz is not None
    return UnitHawkes(config.n, config.beta_hz / config.rate_hz)


def _clients(config: ClientsArrivals) -> Clients:
    if config.preset is not None:
        fit = CLIENT_PRESETS[config.preset]
        return Clients(config.rate_hz, fit.n_clients, fit.zipf, fit.cv, fit.cv_sigma)
    assert config.clients is not None
    assert config.zipf is not None
    assert config.cv is not None
    return Clients(config.rate_hz, config.clients, config.zipf, config.cv, config.cv_sigma or 0.0)


def _concatenation(config: ConcatenateArrivals, horizon_ns: int) -> Concatenation:
    """Each part is built for its own stretch; the last one's ends with the phase."""
    parts, start = [], 0
    for index, stretch in enumerate(config.parts):
        is_last = index == len(config.parts) - 1
        length_ns = max(horizon_ns - start, 1) if is_last else stretch.duration_ns
        parts.append((build_arrivals(stretch.arrivals, length_ns), length_ns))
        start += stretch.duration_ns
    return Concatenation(tuple(parts))


def _random_path(
    config: MmppArrivals | OnOffArrivals | FgnArrivals | BModelArrivals, horizon_ns: int
) -> RatePath:
    match config:
        case MmppArrivals():
            return _markov(config)
        case OnOffArrivals():
            return OnOffPath(_sojourn(config.on), _sojourn(config.off), config.sources)
        case FgnArrivals():
            return _noise(config)
        case BModelArrivals():
            bias = PRESETS[config.preset].b_model_bias if config.preset is not None else config.bias
            assert bias is not None
            return BModelPath(bias, config.bin_ns, horizon_ns)
        case _:
            assert_never(config)


def _markov(config: MmppArrivals) -> MarkovPath:
    if config.preset is not None:
        return PRESETS[config.preset].mmpp
    if config.states is None:
        assert config.peak is not None
        assert config.base is not None
        assert config.tau_ns is not None
        return MarkovPath.two_state(config.peak, config.base, config.tau_ns)
    return config.chain()


def _noise(config: FgnArrivals) -> LogGaussianPath:
    if config.preset is not None:
        fit = PRESETS[config.preset].fgn
        return LogGaussianPath("fgn", fit.sigma, config.bin_ns, hurst=fit.hurst)
    assert config.sigma is not None
    assert config.hurst is not None
    return LogGaussianPath("fgn", config.sigma, config.bin_ns, hurst=config.hurst)


def _sojourn(config: SojournConfig) -> Sojourn:
    return Sojourn(float(config.mean_ns), config.alpha if isinstance(config, ParetoSojourn) else None)


def _envelope(config: EnvelopeArrivals, horizon_ns: int) -> Modulated:
    """Curve, bin and residual from the config, and from the preset where the config leaves them open."""
    residual = build_unit(config.residual) if config.residual is not None else None
    if config.shape is not None:
        path = _shape(config.shape, horizon_ns)
    elif config.preset is not None:
        preset = PRESETS[config.preset]
        path = steps(preset.curve, config.bin_ns or preset.bin_ns, horizon_ns)
        residual = residual or preset.residual
    else:
        assert config.curve is not None
        assert config.bin_ns is not None
        path = steps(config.curve, config.bin_ns, horizon_ns)
    if isinstance(path, FixedPath):
        n_pieces = path.begins.size * math.ceil(horizon_ns / float(path.edges_ns[-1]))
        _refuse_long(n_pieces, "pieces of the curve")
    return Modulated(config.rate_hz, path, residual or UnitPoisson())


def _refuse_long(n_pieces: int, what: str) -> None:
    if n_pieces > LARGEST_FIXED:
        raise ValueError(
            f"{what} are too short for the phase: {digits_text(n_pieces)}, at most {LARGEST_FIXED:,}"
        )


def _shape(shape: ShapeConfig, horizon_ns: int) -> RatePath:
    match shape:
        case PiecewiseShape():
            return piecewise(tuple((point.at_ns, point.level) for point in shape.points), horizon_ns)
        case RampShape():
            over_ns = shape.over_ns if shape.over_ns is not None else horizon_ns
            return piecewise(((0, shape.begin), (over_ns, shape.end)), horizon_ns)
        case StepShape():
            _refuse_behind(shape.at_ns, horizon_ns)
            return piecewise(((0, 1.0), (shape.at_ns, 1.0), (shape.at_ns, shape.factor)), horizon_ns)
        case SpikeShape():
            _refuse_behind(shape.at_ns, horizon_ns)
            begin, end = shape.at_ns, shape.at_ns + shape.width_ns
            levels = ((0, 1.0), (begin, 1.0), (begin, shape.factor), (end, shape.factor), (end, 1.0))
            return piecewise(levels, horizon_ns)
        case PulsesShape():
            return pulses(shape.factor, shape.width_ns, shape.period_ns, horizon_ns)
        case DiurnalShape():
            return diurnal(shape.peak, shape.peak_at_ns, shape.period_ns, horizon_ns)
        case LogAr1Shape():
            return LogGaussianPath("ar1", shape.sigma, shape.bin_ns, tau_ns=float(shape.tau_ns))
        case FgnShape():
            return LogGaussianPath("fgn", shape.sigma, shape.bin_ns, hurst=shape.hurst)
        case TraceShape():
            return _trace_path(shape, horizon_ns)
        case _:
            assert_never(shape)


def _refuse_behind(at_ns: int, horizon_ns: int) -> None:
    if at_ns >= horizon_ns:
        at, phase = format_duration(at_ns), format_duration(horizon_ns)
        raise ValueError(f"shape.at: {at} lies behind the phase of {phase}")


def _trace_path(shape: TraceShape, horizon_ns: int) -> FixedPath:
    """The counts of the replayed trace per bin, over the phase; what its scaling draws is drawn from seed 0."""
    n_bins = -(-horizon_ns // shape.bin_ns)
    _refuse_long(n_bins, "bins of the shape")
    replay = TraceReplay(shape)
    counts = np.zeros(n_bins, np.int64)
    for part in replay.parts(np.random.default_rng(0), horizon_ns):
        bins = part.offset_ns // shape.bin_ns
        first = int(bins[0])
        found = np.bincount(bins - first)
        counts[first : first + found.size] += found
        if counts.sum() > MOST_DRAWN:
            raise ValueError(f"the shape's trace has more than {MOST_DRAWN:,} arrivals in the phase")
    rates = counts.astype(np.float64)
    rates[-1] *= shape.bin_ns / (
        horizon_ns - (n_bins - 1) * shape.bin_ns
    )  # the last bin may end with the phase
    return steps(rates, shape.bin_ns, horizon_ns)
