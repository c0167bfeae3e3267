"""Why self-checks were not assessed, those of one reason together: what the run has not, which they would read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from analysis.findings.self_check import UNASSESSED

_OF_REPORT = (
    "launched before run", "operations tied", "calls tied", "batches profiled", "kernel sums", "broken events",
    "report clock", "kernel shares",
)  # fmt: skip
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "Little's law": ("requests", "joined"),
    "in flight": ("requests", "worker_samples"),
    **dict.fromkeys(("sent before batch", "batch before reply", "unjoined", "parts add up", "residual"), ("joined",)),
    "wall": ("batch_costs",),
    "batches profiled": ("batch_costs",),
    "kernel shares": ("joined", "batch_costs"),
}  # fmt: skip
NOTHING = "nothing in the run that they compare"


def unassessed_groups(
    checks: Sequence[Mapping[str, Any]],
    tables: Collection[str],
    collectors: Mapping[str, Any],
    has_report: bool,
) -> dict[str, list[str]]:
    """Names of the checks that were not assessed, by reason. `tables` and `collectors` of the run; `has_report`: of
    nsys."""
    found: dict[str, list[str]] = {}
    for one in checks:
        if one["status"] == UNASSESSED:
            reason = _reason(str(one["name"]), tables, collectors, has_report)
            found.setdefault(reason, []).append(str(one["name"]))
    return found


def _reason(name: str, tables: Collection[str], collectors: Mapping[str, Any], has_report: bool) -> str:
    missing = [table for table in _NEEDED.get(name, ()) if table not in tables]
    if name in _OF_REPORT and not has_report:
        why = collectors.get("nsys", {}).get("reason")
        return f"no nsys report{f': {why}' if why else ''}"
    return f"no table {', '.join(missing)}" if missing else NOTHING
