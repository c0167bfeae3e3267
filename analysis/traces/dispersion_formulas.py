"""Index of dispersion of the processes whose curve is fitted, and the c2 of an MMPP's gaps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from squall.analysis.arrays import Floats


def fgn_idc(
    rate_hz: float,
    sigma: float,
    hurst: float,
    n_bins: NDArray[np.int64],
    bin_s: float,
    span_bins: float = math.inf,
) -> Floats:
    """IDC of a Poisson process of log-fGn rate at windows of `n_bins` bins, as a series of `span_bins` shows it.

    Levels e^(sigma Z - sigma²/2) have covariance c_k = e^(sigma² ρ_k) - 1 at lag k, ρ_k that of fractional Gaussian
    noise, so that IDC(m) = 1 + rate·bin·(c_0 + 2/m Σ_(k<m) (m - k) c_k). The mean of Z over n bins, of variance
    n^(2H - 2), is part of the rate that is seen and not of its spread: it is taken off ρ_k.
    """
    lags = _lags(int(n_bins.max()))
    power = 2 * hurst
    rho = ((lags + 1) ** power - 2 * lags**power + np.abs(lags - 1) ** power) / 2
    covariances = np.expm1(sigma**2 * (rho - span_bins ** (power - 2)))
    plain, weighted = _cumulated(lags, covariances), _cumulated(lags, lags * covariances)
    inside = n_bins * np.interp(n_bins - 1, lags, plain) - np.interp(n_bins - 1, lags, weighted)
    idc: Floats = 1 + rate_hz * bin_s * (covariances[0] + 2 * inside / n_bins)
    return idc


def _lags(last: int) -> Floats:
    """0 … 99, then about 40 a factor of ten up to `last`."""
    coarse = np.round(np.geomspace(100, max(last, 101), 2 + round(40 * math.log10(max(last, 101) / 100))))
    return np.concatenate([np.arange(100.0), np.unique(coarse)])


def _cumulated(lags: Floats, values: Floats) -> Floats:
    """Σ of `values` over lags 1 … k at each k of `lags`; between lags that are apart, by the trapezoidal rule."""
    steps = np.diff(lags)
    # Σ over (a, b] of a linear piece: its integral plus half of the difference of its ends
    pieces = (values[1:] + values[:-1]) / 2 * steps + (values[1:] - values[:-1]) / 2
    return np.concatenate([[0.0], np.cumsum(pieces)])


def hawkes_idc(n: float, beta: float, windows: Floats) -> Floats:
    """IDC(w) = 1 + 2A/k (1 - (1 - e^(-kw))/(kw)), A = n·beta(2 - n)/(2(1 - n)), k = beta(1 - n) (Hawkes, 1971)."""
    k = beta * (1 - n)
    idc: Floats = 1 + n * (2 - n) / (1 - n) ** 2 * (1 + np.expm1(-k * windows) / (k * windows))
    return idc


def mmpp_idc(rate: float, peak: float, base: float, tau: float, windows: Floats) -> Floats:
    """IDC(w) = 1 + 2·rate·tau(peak - 1)(1 - base)(1 - (1 - e^-x)/x), x = w/tau (Heffes, Lucantoni, JSAC 4, 1986)."""
    x = windows / tau
    idc: Floats = 1 + 2 * rate * tau * (peak - 1) * (1 - base) * (1 + np.expm1(-x) / x)
    return idc


def mmpp_c2(rate: float, peak: float, base: float, tau: float) -> float:
    """c2 of the gaps: with D0 = Q - L, M = (-D0)^-1, φ = πL/(πL1): m1 = φM1, m2 = 2φM²1."""
    share = (1 - base) / (peak - base)
    out_high, out_low = (1 - share) / tau, share / tau
    rates = np.array([rate * peak, rate * base])
    leave = rates + np.array([out_high, out_low])
    inverse = np.linalg.inv(np.diag(leave) - np.array([[0, out_high], [out_low, 0]]))
    phi = np.array([share, 1 - share]) * rates / rate
    first = phi @ inverse @ np.ones(2)
    return float(2 * phi @ inverse @ inverse @ np.ones(2) / first**2 - 1)
