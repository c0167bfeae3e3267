"""Every kind of arrivals: mean, dispersion and law from the first instant on, and wrong processes that are refused.

Each kind of scenario files stands in CASES with what theory says of it, each check has been seen to fail in WRONG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator
from pydantic import TypeAdapter
from scipy import stats

from squall.scenarios.arrays import Floats, Int64s
from squall.scenarios.arrivals import replay, stationary, varying
from squall.scenarios.arrivals.kinds import (
    ConcatenateArrivals,
    OpenArrivals,
    OpenPart,
    SuperposeArrivals,
)
from squall.scenarios.arrivals.process import OpenProcess, held_below, merged
from squall.scenarios.arrivals.stationary import (
    ConstantArrivals,
    Gamma,
    GammaArrivals,
    Hawkes,
    HawkesArrivals,
    PoissonArrivals,
    TicksArrivals,
    Unit,
)
from squall.scenarios.arrivals.varying import MmppArrivals, Modulated
from squall.scenarios.exact import renewals
from squall.scenarios.strict_yaml import parse_yaml
from squall.scenarios.traces.part import TracePart
from squall.scenarios.traces.reading import TraceOptions, open_trace
from tests.many_examples import examples
from tests.point_checks import (
    Chain,
    Function,
    count_faults,
    even_source_variances,
    exponential_cdf,
    hawkes_idc,
    hawkes_residuals,
    is_correlated,
    misfits,
    renewal_idc,
    replicate,
)
from tests.unit.scenarios.arrivals.test_gaps import hyperexponential, lognormal, lomax, weibull

S = 1_000_000_000
RATE = 20.0
Windows = tuple[tuple[float, float], ...]
Moment = Callable[[float, float], float]
Residuals = Callable[[OpenProcess, int], Floats]
"""What must be independent and of one law, from a process, its seed chosen here, over a horizon in ns."""


def section(text: str) -> dict[str, Any]:
    """Keys as a scenario file has them."""
    found: dict[str, Any] = parse_yaml(text, "test")
    return found


@dataclass(frozen=True)
class Case:
    """A kind of arrivals and its theory; times in s."""

    config: dict[str, Any]
    variance: Moment
    """Of the count in [begin, end)."""
    mean: Moment = lambda begin, end: RATE * (end - begin)
    windows: Windows = ((0.0, 0.5), (0.0, 10.0), (9.5, 10.0))
    n_runs: int = 300
    horizon: float = 10.0
    residuals: Residuals | None = None
    law: Function = exponential_cdf
    law_horizon: float = 500.0
    changes_for_law: dict[str, Any] = field(default_factory=dict)


ENOUGH = 0.5
"""Of the runs and of the long one: it tells all wrong twins but the closest."""
SHARES = (ENOUGH, pytest.param(1.0, marks=pytest.mark.slow))


def shorter(case: Case, share: float) -> Case:
    """With that share of its runs and of its long run, which of an envelope is one period."""
    return replace(
        case,
        n_runs=max(round(case.n_runs * share), 2),
        law_horizon=max(case.law_horizon * share, case.horizon),
    )


Make = Callable[[dict[str, Any]], OpenProcess]
"""Arrivals from the section of a scenario file."""

ADAPTER: TypeAdapter[OpenArrivals] = TypeAdapter(OpenPart)


def build(config: dict[str, Any]) -> OpenArrivals:
    return ADAPTER.validate_python(config)


def draw_s(arrivals: OpenProcess, rng: Generator, horizon_s: float) -> Floats:
    """Offsets in s."""
    return arrivals.draw(rng, round(horizon_s * S)) / S


def faults(case: Case, make: Make, sought: frozenset[str] = frozenset()) -> set[str]:
    """Which checks the arrivals fail that `make` builds from config and horizon.

    With `sought`, only the runs that can find those faults are made.
    """
    kinds = {fault.split()[0] for fault in sought} or {"mean", "idc", "expected", "law", "independence"}
    failed = count_part(case, make) if kinds & {"mean", "idc"} else set()
    if "expected" in kinds:
        failed |= expected_part(case, make)
    if case.residuals is not None and kinds & {"law", "independence"}:
        failed |= law_part(case, make)
    return failed


def count_part(case: Case, make: Make) -> set[str]:
    """Counts of many runs from the start."""
    rng, arrivals = np.random.default_rng(20261124), make(case.config)
    with pytest.MonkeyPatch.context() as patch:  # spells 64 at a time: the same law, quicker
        patch.setattr(varying, "_SPELLS", 64)
        seen = replicate(lambda: draw_s(arrivals, rng, case.horizon), case.windows, case.n_runs)
    return count_faults(seen, case.mean, case.variance)


def expected_part(case: Case, make: Make) -> set[str]:
    """What the arrivals expect themselves."""
    arrivals, failed = make(case.config), set[str]()
    whole_ns = round(case.horizon * S)
    for begin, end in case.windows:
        before, upto = (arrivals.expected_count(round(t * S), whole_ns) for t in (begin, end))
        stated = upto - before
        if not math.isclose(stated, case.mean(begin, end), rel_tol=1e-4, abs_tol=1e-3):
            failed.add("expected")
    return failed


def law_part(case: Case, make: Make) -> set[str]:
    """The residuals of one long run."""
    assert case.residuals is not None
    arrivals = make(case.config | case.changes_for_law)
    residuals = case.residuals(arrivals, round(case.law_horizon * S))
    failed = {"law"} if misfits(residuals, case.law) else set()
    return failed | ({"independence"} if is_correlated(residuals) else set())


# --- residuals ----------------------------------------------------------------------------------------------------


def gaps_of(rate: float) -> Residuals:
    """Gaps in mean gaps."""
    return lambda arrivals, horizon_ns: (
        np.diff(arrivals.draw(np.random.default_rng(31), horizon_ns)).astype(np.float64) * (rate / S)
    )


def on_the_path(arrivals: OpenProcess, horizon_ns: int) -> Floats:
    """Λ(t_i) - Λ(t_i-1), Λ the path that the same seed draws: time-rescaling theorem (Brown et al., 2002)."""
    assert isinstance(arrivals, Modulated)
    curve = arrivals.random(np.random.default_rng(32), horizon_ns)
    offsets = arrivals.draw(np.random.default_rng(32), horizon_ns) + 0.5
    residuals: Floats = np.diff(np.interp(offsets, curve.edges_ns, curve.cum)) * (arrivals.rate_hz / S)
    return residuals


def hawkes_gaps(n: float, beta_hz: float, rate: float) -> Residuals:
    def residuals(arrivals: OpenProcess, horizon_ns: int) -> Floats:
        offsets = arrivals.draw(np.random.default_rng(33), horizon_ns)
        points: Floats = offsets.astype(np.float64) * (rate / S)
        return hawkes_residuals(points, n, beta_hz / rate, 25 * rate / beta_hz)

    return residuals


# --- variances ----------------------------------------------------------------------------------------------------


def renewal_variance(cdf: Function, rate: float = RATE) -> Moment:
    @cache
    def variance(begin: float, end: float) -> float:
        count = rate * (end - begin)
        return count * renewal_idc(cdf, count, 1_500)

    return variance


def cox_variance(level_variance: Callable[[float], float], rate: float = RATE) -> Moment:
    """λw + (λw)²·Var of the mean level over w: a Poisson count on a random rate."""
    return lambda a, b: rate * (b - a) + (rate * (b - a)) ** 2 * level_variance(b - a)


def heffes_lucantoni(peak: float, base: float, tau: float) -> Callable[[float], float]:
    """Variance of the mean level of a two-state MMPP: 2(f-1)(1-b)·tau/w·g(w/tau), g(x) = 1 - (1 - e^-x)/x."""
    return lambda w: 2 * (peak - 1) * (1 - base) * tau / w * (1 + math.expm1(-w / tau) * tau / w)


def log_gaussian_variance(sigma: float, correlation: Function, bin_s: float) -> Callable[[float], float]:
    """Of m whole bins: Σ (e^(σ²r(i-j)) - 1)/m²."""

    def variance(window: float) -> float:
        lags = np.arange(round(window / bin_s), dtype=np.float64)
        covariance = np.expm1(sigma**2 * correlation(lags))
        m = lags.size
        return float((m * covariance[0] + 2 * ((m - lags[1:]) * covariance[1:]).sum()) / m**2)

    return variance


def fgn_correlation(hurst: float) -> Function:
    return lambda k: (np.abs(k + 1) ** (2 * hurst) - 2 * k ** (2 * hurst) + np.abs(k - 1) ** (2 * hurst)) / 2


def cascade_variance(bias: float, horizon: float) -> Callable[[float], float]:
    """Of a dyadic part after d splits: E p² = ((b² + (1-b)²)/2)^d, E p = 2^-d."""

    def variance(window: float) -> float:
        depth = round(math.log2(horizon / window))
        return float((2 * (bias**2 + (1 - bias) ** 2)) ** depth - 1)

    return variance


def gamma_cdf(cv: float) -> Function:
    return stats.gamma(1 / cv**2, scale=cv**2).cdf  # type: ignore[no-any-return]


def exponential_sources(on: float, off: float, n_sources: int) -> Callable[[float], float]:
    """Two states: Cov(u) = off/on/n·e^(-u/tau), 1/tau = 1/on + 1/off."""
    tau = 1 / (1 / on + 1 / off)
    return lambda w: 2 * off / on / n_sources * tau / w * (1 + math.expm1(-w / tau) * tau / w)


@cache
def pareto_sources(window: float) -> float:
    """Of 4 sources that are ON and OFF for Pareto(1.4) lengths of mean 1 s."""
    law = stats.pareto(1.4, scale=0.4 / 1.4).cdf
    return even_source_variances(law, (window,), window / 500)[0] / 4


# --- the stationary kinds -----------------------------------------------------------------------------------------


GAP_WINDOWS = ((0.0, 0.05), (0.0, 1.0), (9.5, 10.0))


def renewal_case(kind: str, cdf: Function, **keys: object) -> Case:
    config = {"kind": kind, "rate": f"{RATE:g}/s", **keys}
    return Case(config, renewal_variance(cdf), residuals=gaps_of(RATE), law=cdf, windows=GAP_WINDOWS)


RATE_TEXT = f"{RATE:g}/s"
THREE = Chain((3.0, 1.0, 0.2), (0.5, 2.0, 1.0), ((0.0, 0.7, 0.3), (0.5, 0.0, 0.5), (0.1, 0.9, 0.0)))
LONG = ((0.0, 1.0), (0.0, 10.0), (9.0, 10.0))


def no_variance(begin: float, end: float) -> float:
    del begin, end
    return 0.0


CLIENTS = [renewal_variance(gamma_cdf(2.0), RATE * weight / 11) for weight in (6, 3, 2)]
GAMMA_15, GAMMA_40 = (renewal_variance(gamma_cdf(2.0), rate) for rate in (15.0, 40.0))


def case(text: str, variance: Moment, **theory: Any) -> Case:
    return Case(section(text), variance, **theory)


def on_path(text: str, variance: Moment) -> Case:
    """Of a random rate that lasts."""
    return case(text, variance, windows=LONG, residuals=on_the_path)


CASES: dict[str, Case] = {
    "constant": case("{kind: constant, rate: 20/s}", no_variance, n_runs=2),
    "poisson": case("{kind: poisson, rate: 20/s}", lambda a, b: RATE * (b - a), residuals=gaps_of(RATE)),
    "gamma": renewal_case("gamma", gamma_cdf(2.0), cv=2.0),
    "gamma by burstiness": renewal_case("gamma", gamma_cdf(0.5), burstiness=4.0),
    "weibull": renewal_case("weibull", weibull(0.6).cdf, shape=0.6),
    "lognormal": renewal_case("lognormal", lognormal(1.5).cdf, cv=1.5),
    "pareto": renewal_case("pareto", lomax(1.5).cdf, alpha=1.5),
    "pareto by cv": renewal_case("pareto", lomax(2.5).cdf, cv=math.sqrt(5)),
    "hyperexponential": renewal_case("hyperexponential", hyperexponential(2.0).cdf, cv=2.0),
    "mmpp": on_path(
        "{kind: mmpp, rate: 20/s, peak: 3.0, base: 0.5, tau: 2s}",
        cox_variance(heffes_lucantoni(3.0, 0.5, 2.0)),
    ),
    "mmpp of three": Case(
        {
            "kind": "mmpp",
            "rate": RATE_TEXT,
            "states": [
                {"level": level, "stay": f"{stay * 1000:g}ms"}
                for level, stay in zip(THREE.levels, THREE.stays, strict=True)
            ],
            "jumps": THREE.jumps,
        },
        cox_variance(THREE.level_variance),
        windows=LONG,
        residuals=on_the_path,
    ),
    "on-off": on_path(
        "{kind: on-off, rate: 20/s, on: {kind: exponential, mean: 1s}, off: {kind: exponential, mean: 3s}}",
        cox_variance(exponential_sources(1.0, 3.0, 1)),
    ),
    "on-off of 20": on_path(
        "{kind: on-off, rate: 20/s, sources: 20, on: {kind: exponential, mean: 1s}, off: {kind: exponential, "
        "mean: 3s}}",
        cox_variance(exponential_sources(1.0, 3.0, 20)),
    ),
    "on-off pareto": on_path(
        "{kind: on-off, rate: 20/s, sources: 4, on: {kind: pareto, mean: 1s, alpha: 1.4}, "
        "off: {kind: pareto, mean: 1s, alpha: 1.4}}",
        cox_variance(pareto_sources),
    ),
    # 1/k = 400 expected arrivals: what was before 0 rules the whole window
    "hawkes slow": case(
        "{kind: hawkes, rate: 20/s, n: 0.8, beta: 0.25/s}",
        lambda a, b: RATE * (b - a) * hawkes_idc(0.8, 0.25, b - a),
        windows=LONG,
        n_runs=400,
        residuals=hawkes_gaps(0.8, 0.25, RATE),
        law_horizon=1_000.0,
    ),
    "hawkes of no children": case(
        "{kind: hawkes, rate: 20/s, n: 0.0, beta: 20/s}", lambda a, b: RATE * (b - a)
    ),
    "hawkes": case(
        "{kind: hawkes, rate: 20/s, n: 0.6, beta: 5/s}",
        lambda a, b: RATE * (b - a) * hawkes_idc(0.6, 5.0, b - a),
        windows=((0.0, 0.2), (0.0, 5.0), (9.8, 10.0)),
        residuals=hawkes_gaps(0.6, 5.0, RATE),
    ),
    "fgn": case(
        "{kind: fgn, rate: 20/s, hurst: 0.9, sigma: 0.5, bin: 500ms}",
        cox_variance(log_gaussian_variance(0.5, fgn_correlation(0.9), 0.5)),
        residuals=on_the_path,
    ),
    "b-model": case(
        "{kind: b-model, rate: 20/s, bias: 0.7, bin: 100ms}",
        cox_variance(cascade_variance(0.7, 10.0)),
        windows=((0.0, 0.625), (0.0, 2.5), (9.375, 10.0), (0.0, 10.0)),
        residuals=on_the_path,
    ),
    "clients": case(
        "{kind: clients, rate: 20/s, clients: 3, zipf: 1.0, cv: 2.0}",
        # shares in proportion to 1, 1/2, 1/3: 6/11, 3/11, 2/11
        lambda a, b: sum(client(a, b) for client in CLIENTS),
        windows=((0.0, 0.1), (0.0, 2.0), (9.9, 10.0)),
    ),
    "ticks": case(
        "{kind: ticks, rate: 20/s, period: 500ms}",
        lambda a, b: RATE * (b - a),
    ),
    "superpose": case(
        "{kind: superpose, parts: [{kind: gamma, rate: 15/s, cv: 2.0}, {kind: hawkes, rate: 5/s, "
        "n: 0.6, beta: 5/s}]}",
        lambda a, b: renewal_variance(gamma_cdf(2.0), 15.0)(a, b) + 5 * (b - a) * hawkes_idc(0.6, 5.0, b - a),
        windows=((0.0, 0.2), (0.0, 2.0), (9.8, 10.0)),
    ),
    "concatenate": case(
        "{kind: concatenate, parts: [{duration: 2s, arrivals: {kind: gamma, rate: 40/s, "
        "cv: 2.0}}, {duration: 3s, arrivals: {kind: poisson, rate: 5/s}}, {duration: 1s, "
        "arrivals: {kind: poisson, rate: 25/s}}]}",
        # within one part each; the last goes on to the end
        lambda a, b: GAMMA_40(a, b) if b <= 2 else (5 if b <= 5 else 25) * (b - a),
        mean=lambda a, b: (40 if b <= 2 else 5 if b <= 5 else 25) * (b - a),
        windows=((0.0, 0.1), (0.0, 2.0), (1.9, 2.0), (2.0, 5.0), (5.0, 10.0), (9.0, 10.0)),
    ),
}


# --- envelopes ----------------------------------------------------------------------------------------------------


@cache
def gamma_count_variance(c2: float, count: float) -> float:
    """Exactly up to 15 expected, beyond by m·c2 + 1/6 + c2²/2 - μ3/3 with μ3 = 2c2² (Cox, 1962, section 4.5)."""
    if count <= 15:
        return count * renewal_idc(gamma_cdf(math.sqrt(c2)), count, 1_000)
    return count * c2 + 1 / 6 + c2**2 / 2 - 2 * c2**2 / 3


RESIDUALS: dict[str, tuple[dict[str, Any], Callable[[float], float]]] = {
    "poisson": (section("{kind: poisson}"), lambda m: m),
    "gamma": (section("{kind: gamma, cv: 1.5}"), lambda m: gamma_count_variance(2.25, m)),
    "hawkes": (
        section("{kind: hawkes, n: 0.4, beta: 1.0}"),
        lambda m: m * hawkes_idc(0.4, 1.0, m) if m > 0 else 0.0,
    ),
}
SHAPES: dict[str, tuple[str, Callable[[Floats], Floats], str]] = {
    "piecewise": (
        "{shape: {kind: piecewise, points: [{at: 1s, level: 1.0}, {at: 4s, level: 3.0}, {at: 4s, "
        "level: 0.5}, {at: 8s, level: 2.0}]}}",
        lambda t: np.where(t < 4, 1 + np.maximum(t - 1, 0) * 2 / 3, np.minimum(0.5 + (t - 4) * 1.5 / 4, 2.0)),
        "gamma",
    ),
    "ramp": ("{shape: {kind: ramp, from: 0.2, to: 2.0}}", lambda t: 0.2 + 0.18 * t, "poisson"),
    "ramp that stays": (
        "{shape: {kind: ramp, from: 2.0, to: 0.0, over: 8s}}",
        lambda t: np.maximum(2 - t / 4, 0.0),
        "hawkes",
    ),
    "step": (
        "{shape: {kind: step, at: 4s, factor: 3.0}}",
        lambda t: np.where(t < 4, 1.0, 3.0),
        "gamma",
    ),
    "spike": (
        "{shape: {kind: spike, at: 4s, width: 2s, factor: 6.0}}",
        lambda t: np.where((t >= 4) & (t < 6), 6.0, 1.0),
        "hawkes",
    ),
    "pulses": (
        "{shape: {kind: pulses, factor: 4.0, width: 1s, period: 3s}}",
        lambda t: np.where(t % 3 >= 2, 4.0, 1.0),
        "poisson",
    ),
    "diurnal": (
        "{shape: {kind: diurnal, peak: 1.8, peak_at: 3s, period: 8s}}",
        lambda t: 1 + 0.8 * np.cos(2 * np.pi * (t - 3) / 8),
        "gamma",
    ),
    "curve": (
        "{curve: [1.0, 3.0, 0.5], bin: 2s}",
        lambda t: np.array([1.0, 3.0, 0.5])[(t // 2).astype(int) % 3],
        "gamma",
    ),
    "preset": (
        "{preset: nasa-flash-crowd, bin: 1s}",
        lambda t: np.array([1.34, 1.07, 0.961, 1.21, 1.19, 1.21, 1.09, 1.11, 1.33, 1.02, 1.26])[
            t.astype(int)
        ],
        "hawkes",
    ),
}


def integral_of(raw: Callable[[Floats], Floats], horizon: float = 10.0, rate: float = RATE) -> Function:
    """Λ(t): of `rate` on average, from 200,000 midpoints of the shape."""
    n = 200_000
    levels = raw((np.arange(n) + 0.5) * horizon / n)
    area = np.concatenate([[0.0], np.cumsum(levels)]) / levels.sum() * rate * horizon
    edges = np.linspace(0.0, horizon, n + 1)
    return lambda t: np.interp(t, edges, area)


def on_the_shape(raw: Callable[[Floats], Floats], residual: str, rate: float) -> Residuals:
    def residuals(arrivals: OpenProcess, horizon_ns: int) -> Floats:
        offsets = arrivals.draw(np.random.default_rng(34), horizon_ns)
        points = integral_of(raw, rate=rate)((offsets + 0.5) / S)
        return hawkes_residuals(points, 0.4, 1.0, 25.0) if residual == "hawkes" else np.diff(points)

    return residuals


def envelope_case(name: str) -> Case:
    keys, raw, residual = SHAPES[name]
    config, variance = RESIDUALS[residual]
    area = integral_of(raw)
    return Case(
        {"kind": "envelope", "rate": RATE_TEXT, **section(keys), "residual": config},
        lambda a, b: variance(float(area(b) - area(a))),
        mean=lambda a, b: float(area(b) - area(a)),
        windows=((0.0, 0.5), (0.0, 3.0), (3.0, 5.0), (6.0, 7.0), (9.0, 10.0), (0.0, 10.0)),
        residuals=on_the_shape(raw, residual, 2_000.0),
        law=gamma_cdf(1.5) if residual == "gamma" else exponential_cdf,
        law_horizon=10.0,
        changes_for_law={"rate": "2000/s"},
    )


def log_ar1_case(kind: str) -> Case:
    shape: dict[str, Any] = section("{kind: log-ar1, sigma: 0.5, tau: 2s, bin: 500ms}")
    correlation: Function = lambda k: np.exp(-k / 4)  # noqa: E731
    if kind == "fgn":
        shape = section("{kind: fgn, sigma: 0.5, hurst: 0.8, bin: 500ms}")
        correlation = fgn_correlation(0.8)
    return Case(
        {"kind": "envelope", "rate": RATE_TEXT, "shape": shape},
        cox_variance(log_gaussian_variance(0.5, correlation, 0.5)),
        residuals=on_the_path,
    )


CASES |= {name: envelope_case(name) for name in SHAPES}
CASES |= {"log-ar1 levels": log_ar1_case("log-ar1"), "fgn levels": log_ar1_case("fgn")}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", CASES)
def test_arrivals_have_their_mean_their_dispersion_and_their_law_from_the_first_instant(
    name: str, share: float
) -> None:
    """Of envelopes, whose residual process is that of others, `make test` counts the arrivals of one a residual."""
    is_counted = name not in SHAPES or name in ("ramp", "step", "spike") or share == 1.0
    sought = frozenset[str]() if is_counted else frozenset({"expected", "law", "independence"})
    assert faults(shorter(CASES[name], share), build, sought) == set()


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """7 arrivals in the first second, 14 in the second, 21 in the third, and so on for 10 s."""
    file = tmp_path / "trace.csv"
    rows = [second + index / (7 * (second + 1)) for second in range(10) for index in range(7 * (second + 1))]
    file.write_text("timestamp\n" + "".join(f"{row:.6f}\n" for row in rows))
    return file


class HeldTrace:
    """A trace that is read from its file once, however often it is drawn of."""

    def __init__(self, path: Path) -> None:
        reader = open_trace(path, TraceOptions(unit="s"))
        self._parts = [*reader]
        self.size_names, self.unit, self.reading = reader.size_names, reader.unit, reader.reading

    def __iter__(self) -> Iterator[TracePart]:
        return iter(self._parts)


def test_a_trace_gives_its_rate_per_bin_to_an_envelope(
    trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldTrace(trace_file)
    monkeypatch.setattr(replay, "open_trace", lambda *_: held)
    shape = {"kind": "trace", "file": str(trace_file), "unit": "s", "bin": "1s"}
    area = integral_of(lambda t: np.floor(t) + 1)
    case = Case(
        {"kind": "envelope", "rate": RATE_TEXT, "shape": shape},
        lambda a, b: float(area(b) - area(a)),
        mean=lambda a, b: float(area(b) - area(a)),
        windows=((0.0, 1.0), (4.0, 5.0), (9.0, 10.0)),
        residuals=on_the_shape(lambda t: np.floor(t) + 1, "poisson", 2_000.0),
        law_horizon=10.0,
        changes_for_law={"rate": "2000/s"},
    )
    case = shorter(case, ENOUGH)
    assert faults(case, build) == set()
    two = case.config | {"shape": shape | {"bin": "2s"}}
    assert "mean 0-1" in count_part(case, lambda config: build(config | two))


# --- wrong twins --------------------------------------------------------------------------------------------------


class OrdinaryStart(GammaArrivals):
    @property
    def law(self) -> renewals.Law:
        base = super().law
        return replace(base, first=lambda rng: float(base.gaps(rng, 1)[0]))


class LastOnTheEnd(PoissonArrivals):
    """Gaps scaled so that the last arrival falls on the end, as some tools do."""

    def _drawn(self, rng: Generator, horizon_ns: int) -> Int64s:
        count = self.stated_count(horizon_ns)
        gaps = self.points(rng, count * 3)[: int(count)]
        return held_below((gaps / gaps[-1] * horizon_ns).astype(np.int64), horizon_ns)


class FixedCount(PoissonArrivals):
    """Exactly the expected number of uniform points."""

    def points(self, rng: Generator, length: float) -> Floats:
        return np.sort(rng.random(int(length))) * length


class GapsTwice(PoissonArrivals):
    """Two Poisson processes of half the rate with gaps that are pairwise the same."""

    def points(self, rng: Generator, length: float) -> Floats:
        points = np.cumsum(np.repeat(rng.standard_exponential(int(length) + 40), 2)) - 5
        return points[(points >= 0) & (points < length)]


class SameStream(SuperposeArrivals):
    """All parts from one seed."""

    def draw(self, rng: Generator, horizon_ns: int, whole_ns: int | None = None) -> Int64s:
        seed = int(rng.integers(2**32))
        return merged([part.draw(np.random.default_rng(seed), horizon_ns, whole_ns) for part in self.parts])


class EvenTicks(TicksArrivals):
    def _drawn(self, rng: Generator, horizon_ns: int) -> Int64s:
        del rng
        ticks = np.arange(0, horizon_ns, self.period_ns, dtype=np.int64)
        return np.repeat(ticks, round(self.rate_hz * self.period_ns / S))


class GammaOnThePath(MmppArrivals):
    def unit(self) -> Unit:
        return Gamma(kind="gamma", cv=1.5)


class FromNothing(Hawkes):
    """Without roots and excitation from before 0."""

    def burn_in(self) -> float:
        return 0.0

    def _excitation(self, rng: Generator) -> float:
        del rng
        return 0.0


class SteadyStart(FromNothing):
    """The mean excitation, without its spread."""

    def _excitation(self, rng: Generator) -> float:
        del rng
        return 1 / self.beta


class NoDelay(Hawkes):
    def _children(self, rng: Generator, parents: Floats, length: float) -> Floats:
        del length
        return np.repeat(parents, rng.poisson(self.n, parents.size))


class OneGeneration(Hawkes):
    """Children, but no grandchildren: mean 1 - n + n(1 - n)."""

    def points(self, rng: Generator, length: float) -> Floats:
        start = -self.burn_in()
        roots = rng.random(rng.poisson((1 - self.n) * (length - start))) * (length - start) + start
        every = np.sort(np.concatenate([roots, self._children(rng, roots, length)]))
        return every[every >= 0]


def with_keys(**keys: Any) -> Make:
    return lambda config: build(config | keys)


def of(section: type[OpenProcess], **keys: Any) -> Make:
    """Another class for the same keys, but for `keys`."""
    return lambda config: section.model_validate(config | keys)


def other(kind: str, **keys: Any) -> Make:
    """Another kind at the rate of the config."""
    return lambda config: build({"kind": kind, "rate": config["rate"], **keys})


def changed(change: Callable[[Int64s, int], Int64s]) -> Make:
    """The right arrivals with their offsets changed."""

    def make(config: dict[str, Any]) -> OpenProcess:
        right = build(config)

        class Changed(type(right)):  # type: ignore[misc]
            def draw(self, rng: Generator, horizon_ns: int, whole_ns: int | None = None) -> Int64s:
                return change(super().draw(rng, horizon_ns, whole_ns), horizon_ns)

        made: OpenProcess = Changed.model_validate(config)
        return made

    return make


def cascades(made_by: type[Hawkes]) -> Make:
    """Hawkes arrivals of points that are made in a wrong way."""

    class Wrong(HawkesArrivals):
        def points(self, rng: Generator, length: float) -> Floats:
            beta = (self.beta_hz or 0.0) / self.rate_hz
            return made_by.model_construct(kind="hawkes", n=self.n or 0.0, beta=beta).points(rng, length)

    return of(Wrong)


def gridded(offsets: Int64s, horizon_ns: int) -> Int64s:
    del horizon_ns
    return offsets // 10_000_000 * 10_000_000


def halves_swapped(offsets: Int64s, horizon_ns: int) -> Int64s:
    return np.sort((offsets + horizon_ns // 2) % horizon_ns)


def shaped(text: str) -> Make:
    """An envelope of another shape."""
    return with_keys(shape=section(text))


SHORT_MEMORY = shaped("{kind: log-ar1, sigma: 0.5, bin: 500ms, tau: 100ms}")
WRONG: dict[str, tuple[Make, str, set[str]]] = {
    "constant a period late": (
        changed(lambda o, h: o[o + 50_000_000 < h] + 50_000_000), "constant", {"mean 0-0.5"},
    ),
    "poisson for constant": (other("poisson"), "constant", {"idc 0-10"}),
    "fast by 3 %": (with_keys(rate="20.6/s"), "poisson", {"expected"}),
    "on a grid of 10 ms": (changed(gridded), "poisson", {"law"}),
    "last arrival on the end": (of(LastOnTheEnd), "poisson", {"mean 9.5-10", "idc 0-10"}),
    "fixed count": (of(FixedCount), "poisson", {"idc 0-10"}),
    "each gap twice": (of(GapsTwice), "poisson", {"idc 0-10", "independence"}),
    "ordinary start": (of(OrdinaryStart), "gamma", {"mean 0-0.05"}),
    "ordinary start, regular": (of(OrdinaryStart), "gamma by burstiness", {"mean 0-0.05"}),
    "poisson for gamma gaps": (other("poisson"), "gamma", {"idc 0-1", "law"}),
    "cv for burstiness": (other("gamma", cv=0.25), "gamma by burstiness", {"law"}),
    "gamma for weibull": (other("gamma", cv=1.7581), "weibull", {"law"}),
    "gamma for lognormal": (other("gamma", cv=1.5), "lognormal", {"law"}),
    "index 1.9 for 1.5": (other("pareto", alpha=1.9), "pareto", {"law"}),
    "gamma for hyperexponential": (other("gamma", cv=2.0), "hyperexponential", {"law"}),
    "tau 10 for 2": (with_keys(tau="10s"), "mmpp", {"idc 0-10"}),
    "gamma on the path": (of(GammaOnThePath), "mmpp", {"law"}),
    "beta 1 for 5": (with_keys(beta="1/s"), "hawkes", {"law"}),
    "hawkes of n 0.8": (with_keys(n=0.8), "hawkes", {"idc 0-5"}),
    "children without delay": (cascades(NoDelay), "hawkes", {"law"}),
    "one generation": (cascades(OneGeneration), "hawkes", {"mean 0-5", "law"}),
    "hawkes for poisson": (with_keys(n=0.6), "hawkes of no children", {"idc 0-10"}),
    "poisson for hawkes": (other("poisson"), "hawkes", {"idc 0-5", "law"}),
    "hawkes from nothing": (cascades(FromNothing), "hawkes", {"mean 0-0.2"}),
    "slow hawkes from nothing": (cascades(FromNothing), "hawkes slow", {"mean 0-1", "mean 0-10"}),
    "slow hawkes from its mean": (cascades(SteadyStart), "hawkes slow", {"idc 0-10"}),
    "sigma 0.25 for 0.5": (with_keys(sigma=0.25), "fgn", {"idc 0-10"}),
    "bias 0.8 for 0.7": (with_keys(bias=0.8), "b-model", {"idc 0-2.5"}),
    "clients of cv 1": (with_keys(cv=1.0), "clients", {"idc 0-2"}),
    "ticks without chance": (of(EvenTicks), "ticks", {"idc 0-10"}),
    "ticks half as often": (with_keys(period="1s"), "ticks", {"mean 0-0.5"}),
    "parts from one seed": (
        of(SameStream, parts=[section("{kind: poisson, rate: 10/s}")] * 2), "superpose", {"idc 0-2"},
    ),
    "one part missing": (
        lambda config: build(config | {"parts": config["parts"][:1]}), "superpose", {"mean 0-2", "expected"},
    ),
    "halves swapped": (changed(halves_swapped), "concatenate", {"mean 0-2", "mean 2-5"}),
    "first part only": (
        lambda config: build(config["parts"][0]["arrivals"]), "concatenate", {"mean 2-5", "expected"},
    ),
    "half as many sources": (with_keys(sources=10), "on-off of 20", {"idc 0-10"}),
    "exponential sojourns": (
        with_keys(**section("{on: {kind: exponential, mean: 1s}, off: {kind: exponential, mean: 1s}}")),
        "on-off pareto", {"idc 0-10"},
    ),
    "a bin late": (with_keys(curve=[0.5, 1.0, 3.0]), "curve", {"mean 0-3", "law", "expected"}),
    "poisson for gamma": (with_keys(residual=section("{kind: poisson}")), "curve", {"idc 0-10", "law"}),
    "gamma in time, not on the clock of the curve": (
        other("gamma", cv=1.5), "step", {"mean 0-3", "law", "expected"},
    ),
    "ramp backwards": (shaped("{kind: ramp, from: 2, to: 0.2}"), "ramp", {"mean 0-3", "expected"}),
    "ramp that goes on": (shaped("{kind: ramp, from: 2, to: 0}"), "ramp that stays", {"mean 9-10", "expected"}),
    "pulses at the beginning": (
        with_keys(curve=[4.0, 1.0, 1.0], bin="1s", shape=None), "pulses", {"mean 0-0.5", "law"},
    ),
    "step 2 s early": (shaped("{kind: step, at: 2s, factor: 3}"), "step", {"law", "expected"}),
    "peak a second late": (
        shaped("{kind: diurnal, peak: 1.8, peak_at: 4s, period: 8s}"), "diurnal", {"law", "expected"},
    ),
    "without its jump": (
        shaped("{kind: piecewise, points: [{at: 4s, level: 3}, {at: 8s, level: 2}]}"), "piecewise", {"law", "expected"},
    ),
    "spike of half its width": (
        shaped("{kind: spike, at: 4s, width: 1s, factor: 6}"), "spike", {"law", "expected"},
    ),
    "another preset": (with_keys(preset="nasa-web"), "preset", {"expected"}),
    "n 0.6 for 0.4": (with_keys(residual=section("{kind: hawkes, n: 0.6, beta: 1.0}")), "preset", {"idc 0-10", "law"}),
    "log-ar1 of a short memory": (SHORT_MEMORY, "log-ar1 levels", {"idc 0-10"}),
    "log-ar1 for fgn": (SHORT_MEMORY, "fgn levels", {"idc 0-10"}),
}  # fmt: skip

CLOSE = {
    "last arrival on the end", "tau 10 for 2", "beta 1 for 5", "hawkes of n 0.8",
    "bias 0.8 for 0.7", "n 0.6 for 0.4",
}  # fmt: skip
"""Twins that only all runs tell."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in CLOSE else []) for name in WRONG]
)
def test_wrong_arrivals_are_refused(name: str) -> None:
    make, taken_for, at_least = WRONG[name]
    case = shorter(CASES[taken_for], 1.0 if name in CLOSE else ENOUGH)
    assert faults(case, make, frozenset(at_least)) >= at_least


# --- ticks and clients -------------------------------------------------------------------------------------------


def test_ticks_lie_on_their_period() -> None:
    offsets = build(section("{kind: ticks, rate: 20/s, period: 500ms}")).draw(
        np.random.default_rng(36), 400 * S
    )
    assert not (offsets % (S // 2)).any()


def test_a_client_alone_is_a_gamma_process_of_its_cv() -> None:
    client = build(section("{kind: clients, rate: 50/s, clients: 1, zipf: 1.2, cv: 2.0}"))
    gaps = gaps_of(50.0)(client, 400 * S)
    assert not misfits(gaps, gamma_cdf(2.0))
    assert misfits(gaps, gamma_cdf(1.9))


# --- processes of rate 1 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", SHARES)
def test_the_gamma_law_of_the_excitation_stands_in_for_the_burn_in(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1/k = 400 it is so close that a burn-in of 5 leaves nothing to be seen."""
    monkeypatch.setattr(stationary, "LONGEST_BURN_IN", 5.0)
    assert Hawkes(kind="hawkes", n=0.8, beta=0.0125).burn_in() == 5.0
    assert faults(shorter(CASES["hawkes slow"], share), build) == set()


def test_the_hawkes_burn_in_misses_less_than_a_billionth_arrival() -> None:
    process = Hawkes(kind="hawkes", n=0.95, beta=0.085)
    k = process.beta * (1 - process.n)
    assert process.n / k * math.exp(-k * process.burn_in()) == pytest.approx(1e-9)
    assert Hawkes(kind="hawkes", n=0.0, beta=1.0).burn_in() == 0


def test_blocks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn 100 at a time, the law is the same."""
    monkeypatch.setattr(renewals, "CHUNK", 100)
    rng = np.random.default_rng(5)
    assert not misfits(np.diff(Gamma(kind="gamma", cv=2.0).points(rng, 20_000.0)), gamma_cdf(2.0))
    points = Hawkes(kind="hawkes", n=0.3, beta=2.0).points(rng, 20_000.0)
    assert not misfits(hawkes_residuals(points, 0.3, 2.0, 100.0), exponential_cdf)


# --- exactness and properties -------------------------------------------------------------------------------------


def constant(rate: float, horizon_ns: int) -> Int64s:
    section = ConstantArrivals.model_validate({"kind": "constant", "rate": f"{rate!r}/s"})
    return section.draw(np.random.default_rng(0), horizon_ns)


def test_constant_arrivals_are_exact() -> None:
    offsets = constant(200.0, S)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == [5_000_000 * i for i in range(200)]
    assert constant(3.0, S + 1).tolist() == [0, 333_333_333, 666_666_666, 1_000_000_000]


def test_constant_arrivals_do_not_drift_over_a_day() -> None:
    offsets = constant(7.0, 86_400 * S)
    assert offsets.size == 7 * 86_400
    exact = [i * S // 7 for i in range(offsets.size - 1_000, offsets.size)]
    assert np.abs(offsets[-1_000:] - np.array(exact)).max() <= 1


@given(
    st.lists(st.tuples(st.floats(0.5, 50), st.integers(1, 3 * S)), min_size=1, max_size=5),
    st.integers(1, 9 * S),
)
@examples(40)
def test_a_concatenation_ends_with_the_horizon_and_its_last_part_goes_on(
    stretches: list[tuple[float, int]], horizon_ns: int
) -> None:
    parts = [
        {"duration": f"{length}ns", "arrivals": {"kind": "constant", "rate": f"{rate!r}/s"}}
        for rate, length in stretches
    ]
    whole = ConcatenateArrivals.model_validate({"kind": "concatenate", "parts": parts})
    offsets = whole.draw(np.random.default_rng(0), horizon_ns)
    expected, start = [], 0
    for index, (rate, length) in enumerate(stretches):
        end = horizon_ns if index == len(parts) - 1 else min(start + length, horizon_ns)
        if end > start:
            expected += (constant(rate, end - start) + start).tolist()
        start += length
    assert offsets.tolist() == expected
    # one arrival of a constant part is at most one off its expected count
    assert abs(whole.expected_count(horizon_ns, horizon_ns) - offsets.size) <= len(parts)


def test_parts_of_a_superposition_do_not_disturb_each_other() -> None:
    parts = [section("{kind: poisson, rate: 9/s}"), section("{kind: gamma, rate: 4/s, cv: 2.0}")]
    whole = build({"kind": "superpose", "parts": parts}).draw(np.random.default_rng(5), 50 * S)
    streams = np.random.default_rng(5).spawn(2)
    alone = [build(part).draw(own, 50 * S) for part, own in zip(parts, streams, strict=True)]
    assert np.array_equal(whole, np.sort(np.concatenate(alone)))
