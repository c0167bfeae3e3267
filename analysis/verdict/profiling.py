"""What profiling changed, as the comparison tells that a run is of: the same scenario without profilers (A) and with
them (B)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from squall.analysis.storage.beneath import read_plain
from squall.scenarios.foreign_text import is_component, json_of
from squall.scenarios.records import Frozen

_FILE = "compare.json"
_SIDES = ("a", "b")


class ProfilingCost(Frozen):
    """Of the run's own side. `runs`: names of those of its pairs that count, in their order."""

    runs: tuple[str, ...]
    p50_ratio: float | None
    """with profilers over without, None where that is not known"""
    told: str
    """what became of the p99, one sentence"""


def profiling_cost(run_dir: Path) -> ProfilingCost | None:
    """None for a run of no such comparison, and for a file that is damaged or of another version."""
    run_dir = run_dir.resolve()
    side = run_dir.parent.name
    if side not in _SIDES:
        return None
    try:
        found = json_of(read_plain(run_dir.parent.parent / _FILE))
        keys = [one["key"] for one in found["differs"]]
        if not keys or not all(key.startswith("profile.") for key in keys):
            return None
        runs = tuple(one[f"run_{side}"] for one in found["pairs"] if not one["left_out"])
        if not all(map(is_component, runs)) or len(set(runs)) < len(runs):
            return None
        changes = {one["metric"]: one for one in found["changes"]}
        p50 = changes["p50_ns"]["change"]
        told = _told(changes["p99_ns"], str(found["latency_name"]))
        return ProfilingCost(runs, None if p50 is None else 1.0 + float(p50), told)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _told(change: dict[str, Any], latency_name: str) -> str:
    what = f"p99 of the {latency_name} time"
    low, high = change["low"], change["high"]
    if change["change"] is None or low is None or high is None:
        return (
            f"{what}: the cost of profiling is not assessed, {change['reason'] or 'its interval has no end'}"
        )
    is_shown = not low <= 0.0 <= high
    return (
        f"profiling changed {what} by {_percent(change['change'])} (95 %: {_percent(low)} to {_percent(high)}) over"
        f" {int(change['n_pairs'])} pairs; {'' if is_shown else 'not '}distinguishable from none"
    )


def _percent(change: float) -> str:
    """A signed change in percent, with as many digits as tell it from none: `+3.1 %`, `-0.04 %`."""
    return f"{100.0 * change:+.{1 if abs(change) >= 0.001 else 2}f} %"
