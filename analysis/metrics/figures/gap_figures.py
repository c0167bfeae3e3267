"""Figures of gaps: how many, how long, and how their time falls on classes of length."""

from __future__ import annotations

from typing import Any

from squall.analysis.metrics.measures import ratio
from squall.analysis.metrics.sweeps.tally import Distribution

CLASSES_NS = (
    ("below_10us", 0, 10_000),
    ("10us_to_100us", 10_000, 100_000),
    ("100us_to_1ms", 100_000, 1_000_000),
)
LONG_NS = 1_000_000


def gap_figures(gaps: Distribution) -> dict[str, Any]:
    """n, total, p50, max; for each class of length n and its share of the time of all gaps."""
    classes = {}
    for name, low, high in CLASSES_NS:
        n = gaps.n_below(high) - gaps.n_below(low)
        ns = gaps.total_below(high) - gaps.total_below(low)
        classes[name] = {"n": n, "ns": ns, "time_ratio": ratio(ns, gaps.total)}
    n, ns = gaps.n - gaps.n_below(LONG_NS), gaps.total - gaps.total_below(LONG_NS)
    classes["1ms_or_more"] = {"n": n, "ns": ns, "time_ratio": ratio(ns, gaps.total)}
    return {
        "n": gaps.n,
        "total_ns": gaps.total,
        "p50_ns": gaps.quantile(500),
        "max_ns": gaps.most,
        "classes": classes,
    }
