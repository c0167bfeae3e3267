"""What the machine drifts by over an experiment, from the runs of the reference cell. Pure.

    log figure of reference run j at position x(j) of its site = a(site) + b x(j) + error

All of them have one scenario and one seed, so that nothing but the machine differs. b by least squares, with Student's
interval of n - sites - 1 degrees; the drift is b times the longest way from first to last position of a site.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from squall.analysis.statistics.student import student_quantile
from squall.analysis.studies.sweep_rows import SweepRow
from squall.scenarios.records import Frozen

LEVEL = 0.05


class Drift(Frozen):
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
    counted = [(row.site, row.position, row.figures.value(objective)) for row in rows if row.is_counted]
    known = [(site, at, math.log(value)) for site, at, value in counted if value and 0 < value < math.inf]
    sites = {site for site, *_ in known}
    centred, span = [np.empty((0, 2))], 0.0
    for site in sites:  # positions and log figures less their means of the site
        own = np.array([at_and_log for name, *at_and_log in known if name == site])
        centred.append(own - own.mean(axis=0))
        span = max(span, float(np.ptp(own[:, 0])))
    x, y = np.concatenate(centred).T
    degrees, sum_xx = len(known) - len(sites) - 1, float(x @ x)
    if degrees < 1 or sum_xx == 0:
        return Drift(len(known), None, None, None, False, f"{len(known)} valid reference runs are too few")
    slope = float(x @ y) / sum_xx
    rest = float(((y - slope * x) ** 2).sum())
    half = student_quantile(1 - LEVEL / 2, degrees) * math.sqrt(rest / degrees / sum_xx)
    low, high = span * (slope - half), span * (slope + half)
    return Drift(len(known), math.exp(span * slope), math.exp(low), math.exp(high), not low <= 0.0 <= high)
