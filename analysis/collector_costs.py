"""What a run's own collectors cost, as its manifest states it: no repeat is needed for these, nor do they say what
they did to the latency.

Manifest keys read, each of which may be absent:

    observers: {node: {cpu_ns, wall_ns, samplers: {table: {cpu_ns, wall_ns, n_ticks, n_late, …}}}}
    nsys:      {steps: [{phase, step, seconds, cpu_s}], reports: {phase: {report_bytes, …}}, …}

Steps of a phase are start, record (from start to stop), stop, import and export; `cpu_s` is that of nsys's own
processes meanwhile, not what its library does inside the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.wording import duration_text, share_text
from scenarios.units import NS_PER_S

NOT_MEASURED = "latency cost not measured: run with --measure-overhead"
_STEPS = ("start", "stop", "import", "export")


def collector_costs(manifest: Mapping[str, Any], overhead: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """CPU as a share of one core (`core_ratio`), and seconds of nsys's steps. None where the manifest does not say.

    `observers`: by node, in all and by table. `nsys`: by phase, `core_ratio` of its own processes while it recorded.
    `overhead`: from `analysis.overhead.find_overhead`. `latency_cost`: one line.
    """
    observers = {node: _observer(one) for node, one in _mappings(manifest.get("observers")).items()}
    return {
        "observers": observers or None,
        "nsys": _recordings(manifest.get("nsys")) or None,
        "latency_cost": overhead["verdict"] if overhead and overhead.get("verdict") else NOT_MEASURED,
    }


def cost_lines(costs: Mapping[str, Any]) -> list[str]:
    """`collector_costs` for a screen or a page, a line a node and a phase, and one on the latency."""
    lines = []
    for node, one in (costs["observers"] or {}).items():
        sources = {table: ratio for table, ratio in one["sources"].items() if ratio is not None}
        parts = ", ".join(f"{table} {share_text(ratio)}" for table, ratio in sources.items())
        late = f"; {one['n_late']} of {one['n_ticks']} samples late" if one["n_late"] else ""
        lines.append(f"observer of {node}: {share_text(one['core_ratio'])} of a core"
                     f"{f' ({parts})' if parts else ''}{late}")  # fmt: skip
    for name, one in (costs["nsys"] or {}).items():
        steps = [
            f"{step} {duration_text(one[f'{step}_s'] * NS_PER_S)}"
            for step in _STEPS
            if one[f"{step}_s"] is not None
        ]
        cpu = f"{share_text(one['core_ratio'])} of a core" if one["core_ratio"] is not None else ""
        size = f"report {one['report_bytes'] / 1e6:.1f} MB" if one["report_bytes"] is not None else ""
        lines.append(f"nsys in {name}: {', '.join(filter(None, [cpu, *steps, size])) or 'not stated'}")
    return [*lines, costs["latency_cost"]]


def cost_text(costs: Mapping[str, Any]) -> str:
    """`collector_costs` in one line: the dearest observer, nsys in the dearest phase, and the latency."""
    observers = [
        one["core_ratio"] for one in (costs["observers"] or {}).values() if one["core_ratio"] is not None
    ]
    recordings = [
        one["core_ratio"] for one in (costs["nsys"] or {}).values() if one["core_ratio"] is not None
    ]
    parts = [f"observer {share_text(max(observers))} of a core"] if observers else []
    parts += [f"nsys {share_text(max(recordings))} of a core"] if recordings else []
    return "; ".join([*parts, costs["latency_cost"]])


def _observer(one: Mapping[str, Any]) -> dict[str, Any]:
    wall_ns = one.get("wall_ns")
    sources = _mappings(one.get("samplers"))
    return {
        "core_ratio": _ratio(one.get("cpu_ns"), wall_ns),
        "sources": {
            table: _ratio(each.get("cpu_ns"), each.get("wall_ns") or wall_ns)
            for table, each in sources.items()
        },
        "n_ticks": sum(int(each.get("n_ticks") or 0) for each in sources.values()),
        "n_late": sum(int(each.get("n_late") or 0) for each in sources.values()),
    }


def _recordings(nsys: Any) -> dict[str, dict[str, Any]]:
    """What each phase's recording took, from the steps of all of them."""
    facts = nsys if isinstance(nsys, Mapping) else {}
    reports = _mappings(facts.get("reports"))
    steps: dict[str, dict[str, Mapping[str, Any]]] = {}
    for one in facts.get("steps") or ():
        steps.setdefault(one["phase"], {})[one["step"]] = one
    return {
        phase: {
            "core_ratio": _ratio(own.get("record", {}).get("cpu_s"), own.get("record", {}).get("seconds")),
            **{f"{step}_s": own.get(step, {}).get("seconds") for step in _STEPS},
            "report_bytes": reports.get(phase, {}).get("report_bytes"),
        }
        for phase, own in steps.items()
    }


def _mappings(value: Any) -> dict[str, Mapping[str, Any]]:
    """The entries of a mapping that are mappings themselves; none of anything else."""
    if not isinstance(value, Mapping):
        return {}
    return {str(key): one for key, one in value.items() if isinstance(one, Mapping)}


def _ratio(part: Any, whole: Any) -> float | None:
    return (
        part / whole
        if isinstance(part, int | float) and isinstance(whole, int | float) and whole > 0
        else None
    )
