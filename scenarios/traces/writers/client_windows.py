"""A trace with sessions as ServeGen's client windows: rate and law of the gaps of each client every 600 s.

Family and shape are matched to the mean and the CV of the gaps within the window, Gamma or Weibull, whichever has
the higher likelihood. Where a window has fewer than three gaps, or all are equal, it is taken for Poisson.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.traces.parts.part import TracePart, join_parts, session_text
from squall.scenarios.traces.servegen import WINDOW_S

_WINDOW_NS = WINDOW_S * 10**9
_SHAPES = (0.02, 50.0)  # of gaps with a CV of about 7 (Gamma), beyond any (Weibull), to nearly even ones


@dataclass
class ClientWindows:
    """Writes the windows of a trace; holds the rows of one window."""

    held: list[TracePart] = field(default_factory=list)

    def head(self) -> bytes:
        return b"model,client,window_start_s,rate,cv,iat_family,shape,scale\n"

    def rows(self, part: TracePart) -> bytes:
        windows = part.stamp_ns // _WINDOW_NS
        cuts = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(part)]
        text = b""
        for start, end in pairwise(cuts):
            piece = part.take(slice(start, end))
            if self.held and int(self.held[0].stamp_ns[0]) // _WINDOW_NS != int(windows[start]):
                text += self.tail()
            self.held.append(piece)
        return text

    def tail(self) -> bytes:
        if not self.held:
            return b""
        window = join_parts(self.held)
        self.held = []
        return "".join(_lines(window)).encode()


def _lines(window: TracePart) -> Iterator[str]:
    start_s = int(window.stamp_ns[0]) // _WINDOW_NS * WINDOW_S
    session = np.zeros(len(window), dtype=np.int64) if window.session is None else window.session
    order = np.argsort(session, kind="stable")
    cuts = [0, *(np.flatnonzero(np.diff(session[order])) + 1).tolist(), len(window)]
    for start, end in pairwise(cuts):
        stamps = window.stamp_ns[order[start:end]]
        number = int(session[order[start]])
        name = "0" if window.session is None else session_text(number) or "-"
        rate_hz = stamps.size / WINDOW_S
        cv, family, shape, scale_s = gap_law(np.diff(stamps) / 1e9, 1 / rate_hz)
        yield f",{name},{start_s},{rate_hz!r},{cv:.7g},{family},{shape:.7g},{scale_s:.7g}\n"


def gap_law(gaps_s: NDArray[np.float64], mean_s: float) -> tuple[float, str, float, float]:
    """CV, family, shape and scale (s) of the law nearest to `gaps_s`, of mean `mean_s`."""
    if gaps_s.size < 3 or not float(gaps_s.std()) > 0:
        return 1.0, "Gamma", 1.0, mean_s
    cv = float(gaps_s.std() / gaps_s.mean())
    gamma = min(max(1 / cv**2, _SHAPES[0]), 1 / _SHAPES[0])
    weibull = weibull_shape(cv)
    gaps = np.maximum(gaps_s / gaps_s.mean(), 1e-9)
    scale = 1 / math.gamma(1 + 1 / weibull)
    logs = np.log(gaps)
    of_gamma = (gamma - 1) * logs.mean() - gamma * gaps.mean() - math.lgamma(gamma) + gamma * math.log(gamma)
    bent = (gaps / scale) ** weibull
    of_weibull = math.log(weibull / scale) + (weibull - 1) * (logs.mean() - math.log(scale)) - bent.mean()
    if of_gamma >= of_weibull:
        return cv, "Gamma", gamma, mean_s / gamma
    return cv, "Weibull", weibull, mean_s * scale


def weibull_shape(cv: float) -> float:
    """Shape k with Γ(1 + 2/k) / Γ(1 + 1/k)² - 1 = cv², by bisection within 0.1 to 50."""
    low, high = 0.1, _SHAPES[1]
    for _ in range(60):
        middle = math.sqrt(low * high)
        log_ratio = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)
        low, high = (middle, high) if math.expm1(log_ratio) > cv**2 else (low, middle)
    return math.sqrt(low * high)
