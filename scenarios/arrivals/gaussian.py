"""Stationary Gaussian series of a given memory, and the memory of fractional Gaussian noise."""

from __future__ import annotations

import numpy as np

from squall.scenarios.arrivals.rate_paths import Floats
from squall.scenarios.exact import arrays, draws, scalars
from squall.scenarios.exact.fourier import fourier


def gaussian_series(autocorrelation: Floats, rng: np.random.Generator) -> Floats:
    """A stationary Gaussian series of variance 1 with that autocorrelation at lags 0..m, (m + 1,); m a power of two.

    Circulant embedding, exact where no eigenvalue is negative, as holds for fractional Gaussian noise and for falling
    convex autocorrelations; rounding below 0 is cut. The real part of the transform of √(eigenvalue/2m)·(A + iB), A and
    B independent normals (Dietrich, Newsam, SIAM J. Sci. Comput. 18, 1997).
    """
    row = np.concatenate([autocorrelation, autocorrelation[-2:0:-1]])
    scale, _ = fourier(row, np.zeros(row.size))
    np.maximum(scale, 0.0, out=scale)
    scale /= row.size
    np.sqrt(scale, out=scale)
    noise = draws.standard_normal(rng, row.size)
    noise *= scale
    scale *= draws.standard_normal(rng, row.size)
    return fourier(noise, scale)[0][: autocorrelation.size]


def noise_autocorrelation(hurst: float, n_lags: int) -> Floats:
    """That of fractional Gaussian noise at lags 0 to `n_lags`, (n_lags + 1,).

    From lag 8 on by Σ_j C(2H, 2j)·k^(2H - 2j), the binomial series of what is a small difference of powers.
    """
    power = 2 * hurst
    found = np.empty(n_lags + 1)
    for lag in range(min(n_lags + 1, 8)):
        outer, inner = scalars.power(lag + 1, power), scalars.power(abs(lag - 1), power) if lag != 1 else 0.0
        found[lag] = (outer - 2 * (scalars.power(lag, power) if lag else 0.0) + inner) / 2
    lags = np.arange(8, n_lags + 1, dtype=np.float64)
    below, binomial, coefficients = 1 / (lags * lags), 1.0, []
    for j in range(1, 21):
        binomial *= (power - j + 1) / j
        coefficients += [binomial] if j % 2 == 0 else []
    series = np.zeros(lags.size)
    for coefficient in reversed(coefficients):
        series *= below
        series += coefficient
    found[8:] = series * arrays.power(lags, power - 2)
    return found
