"""Every process that is tried on a trace."""

from __future__ import annotations

from collections.abc import Iterator

from squall.analysis.traces.dispersion import CURVES, Times, fit_curve
from squall.analysis.traces.envelope import ResidualKind, envelope_bins, fit_envelope
from squall.analysis.traces.fitted import Fitted, excerpts_of
from squall.analysis.traces.hawkes import fit_hawkes
from squall.analysis.traces.mmpp import fit_mmpp
from squall.analysis.traces.renewal import FAMILIES, constant_of, fit_poisson, fit_renewal
from squall.scenarios.units import NS_PER_S

RESIDUALS: tuple[ResidualKind, ...] = ("poisson", "gamma", "hawkes")


def fit_all(times_ns: Times, end_ns: int, seed: int = 1) -> Iterator[Fitted]:
    """The fits to sorted instants in [0, end_ns), simple ones first, without those that the series cannot carry.

    ON-OFF is not fitted: of one aggregate stream the number of sources, their rate while ON and both sojourns cannot be
    told apart; `fgn` has the same long memory with two parameters.
    """
    rate_hz = times_ns.size / end_ns * NS_PER_S
    excerpts = excerpts_of(times_ns, end_ns)
    yield constant_of(rate_hz)
    yield fit_poisson(excerpts, rate_hz)
    for family in FAMILIES:
        yield fit_renewal(family, excerpts, rate_hz)
    yield fit_hawkes(excerpts, rate_hz)
    yield fit_mmpp(excerpts, rate_hz)
    for fit in CURVES:
        found = fit_curve(fit, times_ns, end_ns, seed)
        if found is not None:
            yield found
    for bin_ns in envelope_bins(times_ns.size, end_ns):
        for kind in RESIDUALS:
            yield fit_envelope(times_ns, end_ns, bin_ns, kind)
