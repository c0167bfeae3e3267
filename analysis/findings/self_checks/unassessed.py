"""Why self-checks were not assessed, those of one reason together: what the run has not, which they would read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from squall.analysis.findings.self_checks.self_check import UNASSESSED, SelfCheck
from squall.analysis.tables.collected import CollectorState

_OF_REPORT = (
    "launched before run", "operations tied", "calls tied", "batches profiled", "kernel sums", "broken events",
    "report clock", "kernel shares",
)  # fmt: skip
_OF_BATCHES = ("sent before batch", "batch before reply", "unjoined", "parts add up", "residual", "wall")
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "Little's law": ("requests", "joined"),
    "in flight": ("requests", "worker_samples"),
    **dict.fromkeys(_OF_BATCHES[:-1], ("joined",)),
    "wall": ("batch_costs",),
    "batches profiled": ("batch_costs",),
    "kernel shares": ("joined", "batch_costs"),
}  # fmt: skip
NOTHING = "nothing in the run that they compare"


def unassessed_groups(
    checks: Sequence[SelfCheck],
    tables: Collection[str],
    collectors: Mapping[str, CollectorState],
    has_report: bool,
) -> dict[str, tuple[str, ...]]:
    """Names of the checks that were not assessed, by reason. `tables` and `collectors` of the run; `has_report`: of
    nsys."""
    found: dict[str, tuple[str, ...]] = {}
    for one in checks:
        if one.status == UNASSESSED:
            reason = _reason(one.name, tables, collectors, has_report)
            found[reason] = (*found.get(reason, ()), one.name)
    return found


def _reason(
    name: str, tables: Collection[str], collectors: Mapping[str, CollectorState], has_report: bool
) -> str:
    missing = [table for table in _NEEDED.get(name, ()) if table not in tables]
    if name in _OF_REPORT and not has_report:
        why = collectors["nsys"].reason if "nsys" in collectors else ""
        return f"no nsys report{f': {why}' if why else ''}"
    if missing:
        return f"no table {', '.join(missing)}"
    batches = collectors.get("batches")
    if name in _OF_BATCHES and batches is not None and batches.status != "on":
        return f"no batches: {batches.reason}"
    return NOTHING
