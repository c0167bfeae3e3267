"""What the machine drifts by over an experiment, from the runs of the reference cell. Pure.

    log figure of reference run j at position x(j) of its site = a(site) + b x(j) + error

All of them have one scenario and one seed, so that nothing but the machine differs. b by least squares, with Student's
interval of n - sites - 1 degrees; the drift is b times the longest way from first to last position of a site.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from squall.analysis.statistics.student import student_quantile
from squall.analysis.studies.sweep_rows import SweepRow

LEVEL = 0.05


@dataclass(frozen=True)
class Drift:
    """Last over first figure of the `n` reference runs, by the line through them, and its 95 % interval; None where
    `reason` says why. `is_drifting`: the interval leaves out 1."""

    n: int
    ratio: float | None
    low: float | None
    high: float | None
    is_drifting: bool
    reason: str = ""


def drift_of(rows: Sequence[SweepRow], objective: str) -> Drift | None:
    """The drift by the reference runs among `rows`; None where there are none. An infinite figure has no logarithm."""
    if not rows:
        return None
    points = [(row.site, float(row.position), value) for row in rows if row.is_counted
              and (value := row.figures.value(objective)) is not None and 0 < value < math.inf]  # fmt: skip
    sites = {site for site, _, _ in points}
    degrees = len(points) - len(sites) - 1
    x, y, span = _centred(points)
    sum_xx = math.fsum(one * one for one in x)
    if degrees < 1 or sum_xx == 0:
        return Drift(len(points), None, None, None, False, f"{len(points)} valid reference runs are too few")
    slope = math.fsum(a * b for a, b in zip(x, y, strict=True)) / sum_xx
    rest = math.fsum((b - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    half = student_quantile(1 - LEVEL / 2, degrees) * math.sqrt(rest / degrees / sum_xx)
    low, high = span * (slope - half), span * (slope + half)
    return Drift(len(points), math.exp(span * slope), math.exp(low), math.exp(high), not low <= 0.0 <= high)


def _centred(points: Sequence[tuple[str, float, float]]) -> tuple[list[float], list[float], float]:
    """Positions and log figures less their means of the site, and the longest span of positions of a site."""
    x, y, span = list[float](), list[float](), 0.0
    for site in {site for site, _, _ in points}:
        own_x = [at for name, at, _ in points if name == site]
        own_y = [math.log(value) for name, _, value in points if name == site]
        x += [at - math.fsum(own_x) / len(own_x) for at in own_x]
        y += [value - math.fsum(own_y) / len(own_y) for value in own_y]
        span = max(span, max(own_x) - min(own_x))
    return x, y, span
