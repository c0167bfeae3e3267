"""Figures of gaps: how many, how long, and how their time falls on classes of length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from squall.analysis.metrics.measures import ratio
from squall.analysis.metrics.sweeps.tally import Distribution

CLASSES_NS = (
    ("below_10us", 0, 10_000),
    ("10us_to_100us", 10_000, 100_000),
    ("100us_to_1ms", 100_000, 1_000_000),
)
LONG_NS = 1_000_000


@dataclass(frozen=True)
class GapShare:
    """Gaps of one class of length, or of one cause: how many, how long together, and their share of all gaps' time."""

    n: int
    ns: int
    time_ratio: float | None


@dataclass(frozen=True)
class GapFigures:
    """Gaps and how their time falls on classes of length."""

    n: int
    total_ns: int
    p50_ns: int | None
    max_ns: int | None
    classes: Mapping[str, GapShare]


def gap_figures(gaps: Distribution) -> GapFigures:
    """The figures of gaps of these lengths."""
    classes = {}
    for name, low, high in CLASSES_NS:
        n = gaps.n_below(high) - gaps.n_below(low)
        ns = gaps.total_below(high) - gaps.total_below(low)
        classes[name] = GapShare(n, ns, ratio(ns, gaps.total))
    n, ns = gaps.n - gaps.n_below(LONG_NS), gaps.total - gaps.total_below(LONG_NS)
    classes["1ms_or_more"] = GapShare(n, ns, ratio(ns, gaps.total))
    return GapFigures(gaps.n, gaps.total, gaps.quantile(500), gaps.most, classes)
