"""What arrivals are made of, every kind of each: laws of gaps, processes of rate 1, rate paths, arrivals."""

from __future__ import annotations

from squall.scenarios.arrivals.gaps import (
    GammaGaps,
    GapLaw,
    HyperexponentialGaps,
    LognormalGaps,
    LomaxGaps,
    WeibullGaps,
)
from squall.scenarios.arrivals.process import (
    Arrivals,
    Clients,
    Concatenation,
    Constant,
    Modulated,
    Stationary,
    Superposition,
    Ticks,
)
from squall.scenarios.arrivals.random_paths import (
    BModelPath,
    LogGaussianPath,
    MarkovPath,
    OnOffPath,
    Sojourn,
)
from squall.scenarios.arrivals.rate_paths import RatePath, diurnal, piecewise, pulses, steps
from squall.scenarios.arrivals.unit import UnitHawkes, UnitPoisson, UnitProcess, UnitRenewal

S = 1_000_000_000
HORIZON_NS = 4 * S
RATE_HZ = 100.0

LAWS: dict[str, GapLaw] = {
    "even gamma": GammaGaps(0.4),
    "gamma": GammaGaps(2.0),
    "weibull": WeibullGaps(0.6),
    "lognormal": LognormalGaps(1.5),
    "lomax": LomaxGaps(3.5),
    "hyperexponential": HyperexponentialGaps(2.0),
}

UNITS: dict[str, UnitProcess] = {
    "poisson": UnitPoisson(),
    "hawkes": UnitHawkes(0.6, 2.0),
    **{f"{name} renewal": UnitRenewal(law) for name, law in LAWS.items()},
}

PATHS: dict[str, RatePath] = {
    "steps": steps((1.0, 0.0, 3.0), 300_000_000, HORIZON_NS),
    "piecewise": piecewise(((S, 1.0), (2 * S, 2.5), (2 * S, 0.0), (3 * S, 1.0)), HORIZON_NS),
    "pulses": pulses(6.0, S // 10, S // 3, HORIZON_NS),
    "diurnal": diurnal(1.8, S, 3 * S, HORIZON_NS),
    "two states": MarkovPath.two_state(3.0, 0.5, S / 10),
    "on-off": OnOffPath(Sojourn(S / 20), Sojourn(S / 5), 5),
    "on-off, pareto": OnOffPath(Sojourn(S / 20, 1.6), Sojourn(S / 5, 1.6), 5),
    "ar1": LogGaussianPath("ar1", 0.5, S // 50, tau_ns=S / 10),
    "fgn": LogGaussianPath("fgn", 0.5, S // 50, hurst=0.7),
    "b-model": BModelPath(0.7, S // 50, HORIZON_NS),
}

_ALONE: dict[str, Arrivals] = {
    **{name: Stationary(RATE_HZ, unit) for name, unit in UNITS.items()},
    **{name: Modulated(RATE_HZ, path, UnitPoisson()) for name, path in PATHS.items()},
    "steps of hawkes": Modulated(RATE_HZ, PATHS["steps"], UNITS["hawkes"]),
    "constant": Constant(RATE_HZ),
    "ticks": Ticks(RATE_HZ, S // 10),
    "clients": Clients(RATE_HZ, 20, 1.1, 1.5, 0.5),
}

ARRIVALS: dict[str, Arrivals] = {
    **_ALONE,
    "superposition": Superposition((_ALONE["gamma renewal"], _ALONE["diurnal"], _ALONE["ticks"])),
    "concatenation": Concatenation(((_ALONE["hawkes"], S), (_ALONE["constant"], S // 2), (_ALONE["fgn"], S))),
}
"""With a file to replay: `test_arrivals.py`."""
