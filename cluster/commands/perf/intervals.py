"""A file of --request-intervals: gaps between requests, again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from squall.scenarios.errors import ScenarioError
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S, format_duration

_NS_PER_US = 1_000


class Intervals(Frozen):
    """`n` gaps that take `period_ns` together."""

    path: Path
    n: int
    period_ns: int

    @property
    def rate_hz(self) -> float:
        """What perf_analyzer calls the request rate of the file: one over the mean gap."""
        return self.n * NS_PER_S / self.period_ns

    @property
    def arrivals(self) -> dict[str, Any]:
        """As a scenario states them: the gaps in their order, from the second on, the first one between two rounds."""
        return {
            "kind": "trace", "file": str(self.path.resolve()), "format": "intervals", "unit": "us",
            "length": format_duration(self.period_ns), "loop": True,
        }  # fmt: skip


def read_intervals(path: Path) -> Intervals:
    """Raises ScenarioError for a file without a gap above 0, or with other lines than whole numbers of us."""
    try:
        gaps_us = [int(line) for line in path.read_text(encoding="utf-8").split()]
    except (OSError, ValueError) as error:
        raise ScenarioError(
            f"--request-intervals: {path}: has other lines than whole numbers of us"
        ) from error
    if not gaps_us or min(gaps_us) < 0 or not sum(gaps_us):
        raise ScenarioError(f"--request-intervals: {path}: has no gap above 0 us, or one below")
    return Intervals(path, len(gaps_us), sum(gaps_us) * _NS_PER_US)
