"""How far below the mean of a few normal values a bound must lie that most of all values are above.

Of n values with mean m and standard deviation s, at least the share p of their normal distribution lies above m - k s
with confidence c, where sqrt(n) k is the c-quantile of Student's noncentral t with n - 1 degrees of freedom and
noncentrality z(p) sqrt(n) (Hahn and Meeker, Statistical Intervals, 1991, section 4.6; Natrella, NBS Handbook 91, 1963,
table A-7).
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist


@functools.cache
def tolerance_factor(n: int, share: float = 0.9, confidence: float = 0.95) -> float:
    """k of `n` values.

    Raises ValueError for fewer than two values, shares below a half and confidence outside (0, 1).
    Of 5, 8, 10, 20 values, 0.9 and 0.95: 3.41, 2.58, 2.35, 1.93.
    """
    if n < 2 or not (0.5 <= share < 1.0 and 0.0 < confidence < 1.0):
        raise ValueError(f"no tolerance factor of {n} values for {share:g} at {confidence:g}")
    from scipy.stats import nct

    shift = NormalDist().inv_cdf(share) * math.sqrt(n) if share > 0.5 else 0.0
    return float(nct.ppf(confidence, n - 1, shift)) / math.sqrt(n)
