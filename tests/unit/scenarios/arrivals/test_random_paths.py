"""Random rate paths: levels, lengths, memory and tails as their models state, and each check refuses a wrong path."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from pydantic import TypeAdapter
from scipy import stats

from squall.scenarios.arrays import Bools, Floats
from squall.scenarios.arrivals import varying
from squall.scenarios.arrivals.curve import Curve, curve_of
from squall.scenarios.arrivals.kinds import OpenPart
from squall.scenarios.arrivals.varying import (
    MmppArrivals,
    Modulated,
    OnOffArrivals,
    ParetoSojourn,
    noise_autocorrelation,
)
from squall.scenarios.strict_yaml import parse_yaml
from tests.point_checks import (
    Chain,
    Function,
    exponential_cdf,
    is_correlated,
    misfits,
    misses,
    misses_mean,
    misses_shares,
    misses_tail,
    misses_variance,
)
from tests.unit.scenarios.arrivals.test_process import fgn_correlation

S = 1_000_000_000
Draw = Callable[[Generator, int], Curve]


def generator() -> Generator:
    return np.random.default_rng(20261123)


def path(text: str, section: type[Modulated] | None = None) -> Draw:
    """The random path of arrivals as a scenario file has them, or of another class for the same keys."""
    keys = {"rate": "1/s", **parse_yaml(text, "test")}
    if section is not None:
        return section.model_validate(keys).random
    arrivals: Any = TypeAdapter(OpenPart).validate_python(keys)
    draw: Draw = arrivals.random
    return draw


def spells(curve: Curve) -> tuple[Floats, Floats]:
    """Levels and lengths of the pieces, without the last one, which the horizon cuts."""
    widths = np.diff(curve.edges_ns)
    return (np.diff(curve.cum) / np.maximum(widths, 1e-9))[:-1], widths[:-1]


# --- Markov-modulated ---------------------------------------------------------------------------------------------

THREE = (
    "{kind: mmpp, states: [{level: 3, stay: 2s}, {level: 1, stay: 10s}, {level: 0.2, stay: 5s}],"
    " jumps: [[0, 0.7, 0.3], [0.5, 0, 0.5], [0.1, 0.9, 0]]}"
)
TWO = "{kind: mmpp, peak: 3, base: 0.5, tau: 4s}"
# share of the high state (1 - b)/(f - b) = 1/5, so that it lasts tau/(1 - 1/5) = 5 s and the low one tau·5 = 20 s
TWO_STATE = Chain((3.0, 0.5), (5.0 * S, 20.0 * S), ((0.0, 1.0), (1.0, 0.0)))


CHAINS: dict[str, tuple[Draw, Chain]] = {
    "two states": (path(TWO), TWO_STATE),
    "three states": (
        path(THREE),
        Chain(
            (3.0, 1.0, 0.2), (2.0 * S, 10.0 * S, 5.0 * S), ((0.0, 0.7, 0.3), (0.5, 0.0, 0.5), (0.1, 0.9, 0.0))
        ),
    ),
}


def chain_faults(draw: Draw, chain: Chain) -> set[str]:
    """Which checks a path fails that should be of `chain`."""
    return spell_faults(draw, chain) | start_faults(draw, chain)


def spell_faults(draw: Draw, chain: Chain) -> set[str]:
    """Levels, stays and jumps of one long path."""
    failed = set()
    levels, lengths = spells(draw(generator(), 300_000 * S))
    states = np.abs(levels[:, None] - chain.scaled).argmin(axis=1)
    if not np.allclose(levels, chain.scaled[states], rtol=1e-6):
        failed.add("levels")
    for state, stay in enumerate(chain.stays):
        if misfits(lengths[states == state] / stay, exponential_cdf):
            failed.add("stays")
        follows = np.bincount(states[1:][states[:-1] == state], minlength=len(chain.levels))
        if misses_shares(follows, follows.sum() * np.array(chain.jumps[state])):
            failed.add("jumps")
    if is_correlated(lengths / np.array(chain.stays)[states]):
        failed.add("independence")
    return failed


def start_faults(draw: Draw, chain: Chain) -> set[str]:
    """First state, mean level and its variance over the first 5 s of many paths."""
    rng, failed = generator(), set()
    with (
        pytest.MonkeyPatch.context() as patch
    ):  # spells 64 at a time instead of 65,536: the same law, quicker
        patch.setattr(varying, "_SPELLS", 64)
        short = [draw(rng, 5 * S) for _ in range(300)]
    first = np.array([np.abs(curve.cum[1] / curve.edges_ns[1] - chain.scaled).argmin() for curve in short])
    if misses_shares(np.bincount(first, minlength=len(chain.levels)), chain.shares * len(short)):
        failed.add("first")
    means = np.array([np.interp(5 * S, curve.edges_ns, curve.cum) / (5 * S) for curve in short])
    variance = chain.level_variance(5.0 * S)
    if misses_mean(means, 1.0, variance):
        failed.add("mean")
    if misses_variance(means, variance):
        failed.add("memory")
    return failed


@pytest.mark.parametrize("name", CHAINS)
def test_an_mmpp_path_has_the_levels_stays_and_jumps_of_its_chain_from_the_start(name: str) -> None:
    assert chain_faults(*CHAINS[name]) == set()


def test_blocks_of_full_size_have_the_same_law() -> None:
    chain = TWO_STATE
    levels, lengths = spells(path(TWO)(generator(), 1_500_000 * S))
    states = (levels < 1).astype(int)
    assert lengths.size > 1.5 * varying._SPELLS  # over the seam
    assert (states[1:] != states[:-1]).all()
    for state in (0, 1):
        assert not misfits(lengths[states == state] / chain.stays[state], exponential_cdf)


class FirstStateAlways(MmppArrivals):
    def _chain(self) -> tuple[Floats, Floats, Floats]:
        levels, stays, shares = super()._chain()
        return levels, stays, np.eye(shares.size)[0]


class UnscaledLevels(MmppArrivals):
    def _chain(self) -> tuple[Floats, Floats, Floats]:
        levels, stays, shares = super()._chain()
        return levels * 1.25, stays, shares


def even_stays(rng: Generator, horizon_ns: int) -> Curve:
    """Stays of Erlang(2) law: the same mean, half the variance."""
    levels, lengths = spells(path(TWO)(rng, 3 * horizon_ns))
    half = levels.size // 4 * 2  # even, so that the same state is at both places
    ends = np.cumsum((lengths[:half] + lengths[half : 2 * half]) / 2)
    return curve_of(np.append(0.0, ends), levels[:half], horizon_ns)


TURNED = THREE.replace("0.7, 0.3", "0.3, 0.7").replace("0.1, 0.9", "0.9, 0.1")
WRONG_CHAINS: dict[str, tuple[Draw, str, set[str]]] = {
    "starts high": (path(TWO, FirstStateAlways), "two states", {"first", "mean"}),
    "starts in the first": (path(THREE, FirstStateAlways), "three states", {"first", "mean"}),
    "levels not scaled": (path(THREE, UnscaledLevels), "three states", {"levels", "mean"}),
    "tau for the stay": (
        path("{kind: mmpp, states: [{level: 3, stay: 4s}, {level: 0.5, stay: 16s}]}"),
        "two states",
        {"stays"},
    ),
    "stays of Erlang law": (even_stays, "two states", {"stays"}),
    "stays 10 % longer": (path(TWO.replace("4s", "4400ms")), "two states", {"stays"}),
    "jumps transposed": (path(TURNED), "three states", {"jumps"}),
}


@pytest.mark.parametrize("name", WRONG_CHAINS)
def test_a_wrong_mmpp_path_is_refused(name: str) -> None:
    draw, taken_for, at_least = WRONG_CHAINS[name]
    is_of_start = at_least <= {"first", "mean", "memory"}
    check = start_faults if is_of_start else chain_faults if "mean" in at_least else spell_faults
    assert check(draw, CHAINS[taken_for][1]) >= at_least


@pytest.mark.parametrize(
    ("jumps", "problem"),
    [
        (((0.0, 1.0),), "a row for each state"),
        (((0.5, 0.5), (1.0, 0.0)), "with 0 for the state itself"),
        (((0.0, 0.9), (1.0, 0.0)), "probabilities that sum to 1"),
        (((0, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)), "some states cannot reach each other"),
    ],
)
def test_a_chain_that_is_none_is_refused(jumps: tuple[tuple[float, ...], ...], problem: str) -> None:
    states = [{"level": 1.0, "stay": "1ns"}] * max(len(jumps), 2)
    with pytest.raises(ValueError, match=problem):
        MmppArrivals.model_validate({"kind": "mmpp", "rate": "1/s", "states": states, "jumps": jumps})


def test_levels_that_are_all_0_are_refused() -> None:
    with pytest.raises(ValueError, match="levels that are not all 0"):
        path("{kind: mmpp, states: [{level: 0, stay: 1ns}, {level: 0, stay: 1ns}]}")


# --- ON-OFF -------------------------------------------------------------------------------------------------------


def pareto_cdf(mean: float, alpha: float) -> Function:
    return stats.pareto(alpha, scale=mean * (alpha - 1) / alpha).cdf  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Sources:
    """ON-OFF as sojourn laws state it; times in s."""

    on: float
    off: float
    on_alpha: float | None = None
    off_alpha: float | None = None

    @property
    def share(self) -> float:
        return self.on / (self.on + self.off)

    def law(self, is_on: bool) -> Function:
        mean, alpha = (self.on, self.on_alpha) if is_on else (self.off, self.off_alpha)
        return (
            pareto_cdf(mean, alpha) if alpha is not None else lambda x: exponential_cdf(np.asarray(x) / mean)
        )

    def rest_law(self, is_on: bool) -> Function:
        """∫_0^x (1 - F)/mean: of Pareto x/mean up to x_m, then 1 - (x_m/x)^(α-1)/α."""
        mean, alpha = (self.on, self.on_alpha) if is_on else (self.off, self.off_alpha)
        if alpha is None:
            return self.law(is_on)
        least = mean * (alpha - 1) / alpha
        return lambda x: np.where(
            np.asarray(x) < least,
            np.asarray(x) / mean,
            1 - (least / np.maximum(x, least)) ** (alpha - 1) / alpha,
        )


EXPONENTIAL = Sources(2.0, 6.0)
PARETO = Sources(2.0, 6.0, 1.5, 1.3)
OF_EXPONENTIAL = "{kind: on-off, on: {kind: exponential, mean: 2s}, off: {kind: exponential, mean: 6s}}"
OF_PARETO = (
    "{kind: on-off, on: {kind: pareto, mean: 2s, alpha: 1.5}, off: {kind: pareto, mean: 6s, alpha: 1.3}}"
)
ON_OFF: dict[str, tuple[Draw, Sources]] = {
    "exponential": (path(OF_EXPONENTIAL), EXPONENTIAL),
    "pareto": (path(OF_PARETO), PARETO),
}


N_FIRST = 400


def source_faults(draw: Draw, theory: Sources) -> set[str]:
    """Which checks a path of one source fails; the variance of several stands in test_process.py."""
    rng, failed = generator(), set()
    levels, lengths = spells(draw(rng, 200_000 * S))
    levels, lengths = (
        levels[1:20_000],
        lengths[1:20_000] / S,
    )  # by number, not by time: no long one is left out
    is_on = levels > 0
    if not np.allclose(levels[is_on], 1 / theory.share):
        failed.add("levels")
    if (is_on[1:] == is_on[:-1]).any():
        failed.add("turns")
    for state, alpha in ((True, theory.on_alpha), (False, theory.off_alpha)):
        found = lengths[is_on == state]
        if misfits(found, theory.law(state)):
            failed.add("lengths")
        if alpha is not None and misses_tail(found, alpha, 1_000):
            failed.add("tail")
        if is_correlated(found):
            failed.add("independence")
    firsts = [draw(rng, 4_000 * S) for _ in range(N_FIRST)]
    first_is_on = np.array([curve.cum[1] > 0 for curve in firsts])
    # binomial: s.e. √(p(1 - p)/n)
    if misses(
        float(first_is_on.mean()), theory.share, math.sqrt(theory.share * (1 - theory.share) / N_FIRST)
    ):
        failed.add("first")
    first = np.array([curve.edges_ns[1] / S for curve in firsts])
    for state in (True, False):
        if misfits(first[first_is_on == state], censored(theory.rest_law(state), 4_000.0)):
            failed.add("rest")
    return failed


def censored(law: Function, end: float) -> Function:
    """The law of what is cut at `end`: all that is beyond lies there."""
    return lambda x: np.where(np.asarray(x) >= end, 1.0, law(x))


@pytest.mark.parametrize("name", ON_OFF)
def test_a_source_stays_on_and_off_as_its_laws_say_and_starts_in_its_stationary_state(name: str) -> None:
    theory = ON_OFF[name][1]
    failed = source_faults(*ON_OFF[name])
    if theory.on_alpha is not None:
        failed -= {"rest"}  # KS takes the mass at the cut for a step, see the next test
    assert failed == set()


@pytest.mark.parametrize("alpha", [1.2, 1.5, 3.0])
def test_the_rest_of_a_pareto_sojourn_is_of_its_equilibrium_law(alpha: float) -> None:
    rng, theory = generator(), Sources(2.0, 1.0, alpha)
    pareto = ParetoSojourn(kind="pareto", mean="2s", alpha=alpha)
    rests = pareto.rests(rng, 10_000) / S
    assert not misfits(rests, theory.rest_law(True))
    assert misfits(
        pareto.lengths(rng, 10_000) / S, theory.rest_law(True)
    )  # an ordinary sojourn is another law
    if alpha < 2:
        # beyond x_m it is Pareto of index α - 1
        assert not misses_tail(rests, alpha - 1, 1_000)
        assert misses_tail(rests, alpha, 1_000)


class OnFirst(OnOffArrivals):
    def _begins(self, rng: Generator, on_share: float) -> Bools:
        del rng, on_share
        return np.full(self.sources, True)


class OrdinaryRest(ParetoSojourn):
    def rests(self, rng: Generator, count: int) -> Floats:
        return self.lengths(rng, count)


ORDINARY = OnOffArrivals(
    kind="on-off",
    rate="1/s",
    on=OrdinaryRest(kind="pareto", mean="2s", alpha=1.5),
    off=OrdinaryRest(kind="pareto", mean="6s", alpha=1.3),
)
WRONG_SOURCES: dict[str, tuple[Draw, str, set[str]]] = {
    "on first, exponential": (path(OF_EXPONENTIAL, OnFirst), "exponential", {"first"}),
    "on first, pareto": (path(OF_PARETO, OnFirst), "pareto", {"first"}),
    "pareto for exponential": (
        path(OF_EXPONENTIAL.replace("{kind: exponential, mean: 2s", "{kind: pareto, alpha: 1.8, mean: 2s")),
        "exponential",
        {"lengths"},
    ),
    "exponential for pareto": (path(OF_EXPONENTIAL), "pareto", {"lengths", "tail"}),
    "index 2 for 1.5": (path(OF_PARETO.replace("1.5", "2.0")), "pareto", {"lengths", "tail"}),
    "off 10 % longer": (path(OF_EXPONENTIAL.replace("6s", "6600ms")), "exponential", {"lengths"}),
    "ordinary first sojourn": (ORDINARY.random, "pareto", {"rest"}),
}


@pytest.mark.parametrize("name", WRONG_SOURCES)
def test_a_wrong_source_is_refused(name: str) -> None:
    draw, taken_for, at_least = WRONG_SOURCES[name]
    assert source_faults(draw, ON_OFF[taken_for][1]) >= at_least


# --- log-Gaussian -------------------------------------------------------------------------------------------------

BINS = 32
N_PATHS = 600
LAGS = np.arange(BINS, dtype=np.float64)


@dataclass(frozen=True)
class Noise:
    """Log-levels: standard deviation, and autocorrelation at lags of 0 to BINS - 1 bins."""

    sigma: float
    correlation: Floats


AR1 = "{kind: envelope, shape: {kind: log-ar1, sigma: 0.5, tau: 5s, bin: 1s}}"


def fgn(hurst: float, sigma: float) -> Draw:
    return path(f"{{kind: fgn, sigma: {sigma}, hurst: {hurst}, bin: 1s}}")


NOISES: dict[str, tuple[Draw, Noise]] = {
    "fgn 0.9": (fgn(0.9, 0.7), Noise(0.7, fgn_correlation(0.9)(LAGS))),
    "fgn 0.6": (fgn(0.6, 0.3), Noise(0.3, fgn_correlation(0.6)(LAGS))),
    "fgn 0.3": (fgn(0.3, 0.3), Noise(0.3, fgn_correlation(0.3)(LAGS))),
    "ar1": (path(AR1), Noise(0.5, np.exp(-LAGS / 5))),
}


def noise_faults(draw: Draw, theory: Noise, n_paths: int = N_PATHS) -> set[str]:
    """Which checks fail. The log-levels, made independent by the Cholesky factor of their covariance, must be N(0, 1):
    a test of goodness of fit of sigma, mean and every autocorrelation at once."""
    rng, failed = generator(), set()
    curves = [draw(rng, BINS * S) for _ in range(n_paths)]
    logs = np.array([np.log(np.diff(curve.cum) / np.diff(curve.edges_ns)) for curve in curves])
    series = (logs + theory.sigma**2 / 2) / theory.sigma
    row = theory.correlation
    factor = np.linalg.cholesky(row[np.abs(np.subtract.outer(np.arange(BINS), np.arange(BINS)))])
    white = np.linalg.solve(factor, series.T)
    if misfits(white.ravel(), stats.norm.cdf):
        failed.add("law")
    if misfits(series[:, 0], stats.norm.cdf):
        failed.add("first")
    # products of independent N(0, 1): variance 1
    if misses_mean((white[1:] * white[:-1]).ravel(), 0.0, 1.0):
        failed.add("memory")
    # over m bins the mean has variance Σ r(i - j)/m²
    for m in (4, BINS):
        lags = np.arange(1, m)
        variance = (m + 2 * float(((m - lags) * row[1:m]).sum())) / m**2
        if misses_variance(series[:, :m].mean(axis=1), variance):
            failed.add("dispersion")
    levels = np.exp(logs)
    # Var e^(σZ - σ²/2) = e^σ² - 1
    if misses_mean(levels[:, 0], 1.0, math.expm1(theory.sigma**2)):
        failed.add("mean")
    return failed


@pytest.mark.parametrize("n_paths", [N_PATHS // 2, pytest.param(N_PATHS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "fgn 0.6" else []) for name in NOISES]
)
def test_a_log_gaussian_path_has_the_law_and_the_memory_of_its_model(name: str, n_paths: int) -> None:
    assert noise_faults(*NOISES[name], n_paths) == set()


def changed(draw: Draw, change: Callable[[Floats], Floats]) -> Draw:
    """A path with its levels changed."""

    def redrawn(rng: Generator, horizon_ns: int) -> Curve:
        curve = draw(rng, horizon_ns)
        return curve_of(curve.edges_ns, change(np.diff(curve.cum) / np.diff(curve.edges_ns)), horizon_ns)

    return redrawn


WRONG_NOISES: dict[str, tuple[Draw, str, set[str]]] = {
    "hurst 0.5 for 0.9": (fgn(0.5, 0.7), "fgn 0.9", {"law", "dispersion"}),
    "hurst 0.85 for 0.9": (fgn(0.85, 0.7), "fgn 0.9", {"memory"}),
    "hurst 0.5 for 0.3": (fgn(0.5, 0.3), "fgn 0.3", {"memory", "dispersion"}),
    "mean not mended": (
        changed(fgn(0.9, 0.7), lambda levels: levels * math.exp(0.7**2 / 2)),
        "fgn 0.9",
        {"law", "first", "mean"},
    ),
    "each draw forced to its mean": (
        changed(fgn(0.9, 0.7), lambda levels: levels / levels.mean()),
        "fgn 0.9",
        {"first", "dispersion"},
    ),
    "sigma 10 % more": (fgn(0.9, 0.77), "fgn 0.9", {"law"}),
    "fgn for ar1": (fgn(0.9, 0.5), "ar1", {"memory"}),
    "tau 8 for 5": (path(AR1.replace("5s", "8s")), "ar1", {"memory"}),
    "ar1 from 0": (changed(path(AR1), lambda levels: levels / levels[0]), "ar1", {"law", "first"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG_NOISES)
def test_a_wrong_log_gaussian_path_is_refused(name: str) -> None:
    draw, taken_for, at_least = WRONG_NOISES[name]
    assert noise_faults(draw, NOISES[taken_for][1]) >= at_least


@pytest.mark.parametrize("hurst", [0.1, 0.5, 0.9, 0.999])
def test_the_autocorrelation_of_noise_is_that_of_the_powers_at_every_lag(hurst: float) -> None:
    found, power = noise_autocorrelation(hurst, 1 << 20), Decimal(2 * hurst)
    for lag in (0, 1, 2, 7, 8, 9, 100, 12_345, 1 << 20):
        with localcontext(prec=60):
            powers = [Decimal(abs(lag + step)) ** power if lag + step else Decimal(0) for step in (-1, 0, 1)]
            right = float((powers[0] - 2 * powers[1] + powers[2]) / 2)
        assert found[lag] == pytest.approx(right, rel=3e-14)
    assert np.array_equal(noise_autocorrelation(hurst, 5), found[:6])


@pytest.mark.parametrize("n_bins", [1, 2, 3])
def test_a_path_of_few_bins_has_a_level_for_each(n_bins: int) -> None:
    curve = fgn(0.8, 0.5)(generator(), n_bins * S - 1)
    assert curve.edges_ns.tolist() == [i * S for i in range(n_bins + 1)]


# --- b-model ------------------------------------------------------------------------------------------------------

LEVELS = 8
BIAS = 0.7


def b_model(bias: float, bin_s: int = 1) -> Draw:
    return path(f"{{kind: b-model, bias: {bias}, bin: {bin_s}s}}")


def cascade_faults(draw: Draw) -> set[str]:
    """Which checks a cascade of LEVELS halvings with BIAS fails; E Σp² is exact in every draw."""
    rng, failed = generator(), set()
    horizon_ns = 2**LEVELS * S
    lefts, top = [], []
    for _ in range(60):
        curve = draw(rng, horizon_ns)
        mass = np.diff(curve.cum) / horizon_ns
        if mass.size != 2**LEVELS or not math.isclose(mass.sum(), 1.0, rel_tol=1e-9):
            failed.add("total")
        # Σp² falls by b² + (1-b)² a level: with H = 1/2 - log2(b² + (1-b)²)/2 this is 2^(LEVELS (1 - 2H))
        if not math.isclose(float((mass**2).sum()), (BIAS**2 + (1 - BIAS) ** 2) ** LEVELS, rel_tol=1e-6):
            failed.add("dispersion")
        if not math.isclose(mass.max() * mass.size, (2 * BIAS) ** LEVELS, rel_tol=1e-6):
            failed.add("peak")
        top.append(int(mass.argmax()))
        while mass.size > 1:
            pairs = mass.reshape(-1, 2)
            mass = pairs.sum(axis=1)
            if not np.allclose(pairs.max(axis=1) / mass, BIAS):
                failed.add("split")
            lefts.append(pairs[:, 0] > pairs[:, 1])
    is_left = np.concatenate(lefts)
    # the larger part to either side alike: binomial, s.e. √(1/4n), and one place does not tell of the next
    if misses(float(is_left.mean()), 0.5, 0.5 / math.sqrt(is_left.size)) or is_correlated(is_left):
        failed.add("sides")
    if misfits((np.array(top) + rng.random(len(top))) / 2**LEVELS, stats.uniform.cdf):
        failed.add("place")
    return failed


def test_a_b_model_splits_each_interval_by_its_bias_to_either_side() -> None:
    assert cascade_faults(b_model(BIAS)) == set()


def rigid(rng: Generator, horizon_ns: int) -> Curve:
    """The larger part always left."""
    del rng
    mass = np.ones(1)
    for _ in range(LEVELS):
        mass = np.stack([mass * BIAS, mass * (1 - BIAS)], axis=1).ravel()
    return curve_of(np.arange(mass.size + 1, dtype=np.float64) * S, mass * mass.size, horizon_ns)


def shuffled(rng: Generator, horizon_ns: int) -> Curve:
    """The right masses in any order: no memory."""
    curve = b_model(BIAS)(rng, horizon_ns)
    return curve_of(curve.edges_ns, rng.permutation(np.diff(curve.cum)) / float(S), horizon_ns)


@pytest.mark.parametrize(
    ("draw", "at_least"),
    [
        (rigid, {"sides", "place"}),
        (shuffled, {"split"}),
        (b_model(0.72), {"dispersion", "peak", "split"}),
        (b_model(BIAS, 2), {"total", "dispersion", "peak"}),
        (lambda rng, horizon_ns: b_model(BIAS)(rng, 2 * horizon_ns), {"total"}),
    ],
)
def test_a_wrong_cascade_is_refused(draw: Draw, at_least: set[str]) -> None:
    assert cascade_faults(draw) >= at_least


def test_a_b_model_of_one_piece_or_of_equal_halves_is_even() -> None:
    assert b_model(0.5)(generator(), 4 * S).cum.tolist() == [0, S, 2 * S, 3 * S, 4 * S]
    assert b_model(0.9, 5)(generator(), 4 * S).cum.tolist() == [0, 4 * S]
