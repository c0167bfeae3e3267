"""The discrete Fourier transform, the same bits on every CPU: real and imaginary parts apart, since numpy fuses the
products of complex numbers where the CPU can, and the twiddles of its own transform come from the C library."""

from __future__ import annotations

import numpy as np

from squall.scenarios.arrays import Floats
from squall.scenarios.exact.arrays import cos_sin


def fourier(real: Floats, imaginary: Floats) -> tuple[Floats, Floats]:
    """Σ_j x_j·exp(-2πi·jk/n) for k = 0 … n - 1, both parts, (n,) each; n is a power of two.

    In four steps (Bailey, J. Supercomputing 4, 1990): as a matrix of n1 x n2 with j = j1·n2 + j2 and k = k1 + k2·n1,
    its columns, twiddles exp(-2πi·k1·j2/n), and the columns of the transpose.
    """
    n = real.size
    if n < 1 or n & (n - 1) or imaginary.size != n:
        raise ValueError(f"a transform has a power of two of numbers in both parts, not {n}")
    n1 = 1 << ((n.bit_length() - 1) // 2)
    n2 = n // n1
    re, im = _columns(real.reshape(n1, n2), imaginary.reshape(n1, n2))
    numbers = np.arange(n2, dtype=np.float64)
    for k1 in range(n1):
        cosine, sine = cos_sin(numbers * k1 / n)
        re[k1], im[k1] = _product(re[k1], im[k1], cosine, sine)
    re, im = _columns(np.ascontiguousarray(re.T), np.ascontiguousarray(im.T))
    return re.reshape(n), im.reshape(n)


def _columns(re: Floats, im: Floats) -> tuple[Floats, Floats]:
    """The transform of each column, (m, c), by Stockham's method: log2(m) sweeps, and no row to sort."""
    m, n_columns = re.shape
    re, im = re.reshape(1, m, n_columns), im.reshape(1, m, n_columns)
    size = 1
    while size < m:
        half = m // size // 2
        cosine, sine = (
            part[:, None, None] for part in cos_sin(np.arange(size, dtype=np.float64) / (2 * size))
        )
        turned_re, turned_im = _product(re[:, half:], im[:, half:], cosine, sine)
        re = np.concatenate([re[:, :half] + turned_re, re[:, :half] - turned_re])
        im = np.concatenate([im[:, :half] + turned_im, im[:, :half] - turned_im])
        size *= 2
    return re.reshape(m, n_columns), im.reshape(m, n_columns)


def _product(re: Floats, im: Floats, cosine: Floats, sine: Floats) -> tuple[Floats, Floats]:
    """(re + i·im)·(cosine - i·sine)."""
    return re * cosine + im * sine, im * cosine - re * sine
