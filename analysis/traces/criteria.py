"""What a drawn series is compared with a trace by: dispersion, tail of the gaps, peaks and waits."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from squall.analysis.statistics.bootstrap import shifted_band
from squall.scenarios.records import Frozen
from squall.scenarios.series.burstiness import gd1_wait_p99, idc_shifted, largest, peak_to_mean
from squall.scenarios.units import NS_PER_S

_IDCS = {f"idc {10**power / 10:g}s": NS_PER_S * 10**power // 10 for power in range(5)}
"""Windows by the names of their figures."""
PEAK_WINDOWS_NS = (NS_PER_S, 10 * NS_PER_S, 60 * NS_PER_S)
GAP_QUANTILES = (0.99, 0.999)
LEAST_BEYOND = 10
"""Gaps beyond a quantile below which it is not compared."""
LEAST_PER_WINDOW = 0.005
"""Arrivals per window, on average, below which its counts say nothing: hardly a window holds two."""
LOAD_RATIOS = (0.5, 0.8)
LIMIT = 1.3
BANDED_PEAK = "peak 10s"
JUDGED = ("idc 1s", "idc 10s", "idc 100s", BANDED_PEAK, "wait 50%", "wait 80%")
"""What must lie in its band. At 0.1 s a log's own clock shows, and at 1000 s there are few windows."""

Kind = Literal["dispersion", "tail", "peak", "wait"]
_KINDS: dict[str, Kind] = {"idc": "dispersion", "gap": "tail", "peak": "peak", "wait": "wait"}
"""By the first word of a figure's name."""
_FLOORS: dict[Kind, float] = {"dispersion": 0.01, "tail": 0.01, "peak": 0.01, "wait": 0.1}
"""Added to both sides of a ratio: a constant rate has dispersion and waits of 0."""


class Figure(Frozen):
    """One figure of a trace: windows in s, gaps in mean gaps, waits in service times.

    `low` and `high` of a dispersion are the trace's 90 % block-bootstrap band. Of a wait and of the peak over 10 s they
    are 1.3 times less and more: a bootstrap of a largest value never exceeds the one seen (Bickel, Freedman, Annals of
    Statistics 9, 1981, section 6). None: not judged.
    """

    name: str
    kind: Kind
    value: float
    low: float | None = None
    high: float | None = None

    def log_ratio(self, other: float) -> float:
        """ln(other/value), 0.01 (a wait: 0.1) added to both."""
        floor = _FLOORS[self.kind]
        return math.log((other + floor) / (self.value + floor))

    def holds(self, other: float) -> bool | None:
        """Whether `other` lies in the band; None without one."""
        if self.low is None or self.high is None:
            return None
        slack = _FLOORS[self.kind] if self.value == 0 else 0.0
        return self.low - slack <= other <= self.high + slack


def figures_of(times_ns: NDArray[np.int64], end_ns: int) -> dict[str, float]:
    """Every figure that the sorted instants in [0, end_ns) carry, by its name."""
    shortest_ns = LEAST_PER_WINDOW * end_ns / max(times_ns.size, 1)
    found: dict[str, float | None] = {}
    for name, window_ns in _IDCS.items():
        if window_ns >= shortest_ns:
            found[name] = idc_shifted(times_ns, window_ns, 0, end_ns)
    for window_ns in PEAK_WINDOWS_NS:
        if shortest_ns <= window_ns <= end_ns / 10:
            found[f"peak {window_ns // NS_PER_S}s"] = peak_to_mean(times_ns, window_ns, 0, end_ns)
    found |= {f"gap p{100 * q:g}": _gap_quantile(times_ns, q) for q in GAP_QUANTILES}
    found |= {f"wait {load:.0%}": gd1_wait_p99(times_ns, load) for load in LOAD_RATIOS}
    return {name: value for name, value in found.items() if value is not None}


def target_figures(times_ns: NDArray[np.int64], end_ns: int) -> tuple[Figure, ...]:
    """The figures of a trace with their bands."""
    figures = []
    for name, value in figures_of(times_ns, end_ns).items():
        kind = _KINDS[name.split()[0]]
        band: tuple[float, float] | None = None
        if kind == "wait" or name == BANDED_PEAK:
            band = value / LIMIT, value * LIMIT
        elif kind == "dispersion":
            band = shifted_band(times_ns, _IDCS[name], 0, end_ns)
        figures.append(Figure(name, kind, value, *(band or ())))
    return tuple(figures)


def _gap_quantile(times_ns: NDArray[np.int64], q: float) -> float | None:
    """Quantile, nearest rank, in mean gaps; None with fewer than 10 gaps beyond it."""
    n = times_ns.size - 1
    if n * (1 - q) < LEAST_BEYOND or times_ns[-1] == times_ns[0]:
        return None
    gaps = np.diff(times_ns)
    return float(largest(gaps, n - math.ceil(q * n) + 1)[0]) / (int(times_ns[-1] - times_ns[0]) / n)
