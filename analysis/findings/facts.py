"""What the rules look at: the measures of an instance, and what follows from them and from its shares. Pure.

    wall of an instance over a phase = GPU busy + head + body idle + tail      (batches that were profiled)
                                     + unprofiled                              (batches that were not)
                                     + between, a request waiting + between, none waiting + edges

Beside docs/metrics.md the rules use these; None where one of their terms is:

    wall_exec_ratio        executing: 1 - between - edges
    wall_body_ratio        GPU busy + body idle
    wall_unoffered_ratio   nobody to serve: between, none waiting + edges, where none waits either
    work_served_ratio      executing, of the time with something to serve: exec / (exec + between, a request waiting)
    queue_to_exec_ratio    median queue time over the mean length of a batch
    queue_delay_share_ratio  of the median time in the server, the part of the queue that the batcher's delay explains
    queue_delay_ns         longest wait of the model's dynamic batcher, by the server's configuration
    ceiling_hz             requests/s that all instances of its model carry at most (module `ceilings`)
    load_of_ceiling_ratio  requests/s of the phase over that; may exceed 1; 0 where no batch was full
    cpu_of_exec_ratio      CPU that the servers of its node had, over the length of their batches
    cpu_or_wait_of_exec_ratio  the same with the time in which their threads waited for one
    is_cpu_time_unknown    1 where that was not sampled
    busy_dram_ratio        GPM's DRAM share over the GPU's temporal activity: while it is busy; at most 1
    busy_tensor_ratio      GPM's tensor share likewise
    wall_foreign_ratio     foreign_busy_ratio · wall_exec_ratio: the most that another process can have cost
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from squall.analysis.findings.rule import Measures

WALL_PARTS = (
    "gpu_busy", "head", "body_idle", "tail", "unprofiled", "between_waiting", "between_empty", "edges",
)  # fmt: skip
"""Parts of the wall of an instance; the measure of each is wall_<part>_ratio."""
_INSIDE = WALL_PARTS[:5]


def known(measures: Mapping[str, float | None]) -> dict[str, float | None]:
    """`measures` with what is no number (nan, infinity) as not assessed."""
    return {
        name: None if value is None or not math.isfinite(value) else float(value)
        for name, value in measures.items()
    }


def facts(measures: Measures, more: Measures | None = None) -> dict[str, float | None]:
    """`measures`, `more` and all that follows from them: what the rules are tried on."""
    found = known({**measures, **(more or {})})
    # what is not assessed is no number, and what follows from it is none; of min and max it has to come first
    values = defaultdict(lambda: math.nan, {name: one for name, one in found.items() if one is not None})
    waiting, empty, edges = (
        values[f"wall_{part}_ratio"] for part in ("between_waiting", "between_empty", "edges")
    )
    between = values.get("wall_between_ratio", waiting + empty)
    executing, foreign = max(1.0 - between - edges, 0.0), values["foreign_busy_ratio"]
    delayed, dram, tensor = (
        min(_over(values[part], values[whole]), 1.0)
        for part, whole in (
            ("queue_delay_ns", "queue_p50_ns"),
            ("gpu_dram_util_ratio", "gpu_activity_ratio"),
            ("gpu_tensor_util_ratio", "gpu_activity_ratio"),
        )
    )
    followed = {
        "wall_between_ratio": between,
        "wall_exec_ratio": executing,
        "wall_body_ratio": values["wall_gpu_busy_ratio"] + values["wall_body_idle_ratio"],
        "wall_unoffered_ratio": empty + edges,
        "work_served_ratio": _over(executing, executing + waiting),
        "queue_to_exec_ratio": _over(values["queue_p50_ns"], values["exec_mean_ns"]),
        "queue_delay_share_ratio": values["queue_share_ratio"] * delayed,
        "busy_dram_ratio": dram,
        "busy_tensor_ratio": tensor,
        "wall_foreign_ratio": foreign * executing,
        "response_foreign_ratio": foreign * values["response_compute_ratio"],
    }
    return {**found, **known(followed)}


def _over(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def wall_partition(measures: Measures) -> dict[str, float | None]:
    """Where the wall of an instance went, by part; `unexplained` is what is missing to 1 (0 if they add up).

    None for a part that is not assessed: inside of batches that is the profile's, so that all of it is `unprofiled`;
    between them the requests', so that it is `between` as a whole. On the CPU all inside of batches is `computing`.
    """
    found = facts(measures)
    parts = {part: found.get(f"wall_{part}_ratio") for part in WALL_PARTS}
    inside = [parts[part] for part in _INSIDE]
    if found.get("instance_is_cpu"):
        parts |= {**dict.fromkeys(_INSIDE), "computing": found["wall_exec_ratio"]}
    elif all(value is None for value in inside):
        parts["unprofiled"] = found["wall_exec_ratio"]
    if parts["between_waiting"] is None or parts["between_empty"] is None:
        parts |= {"between_waiting": None, "between_empty": None, "between": found["wall_between_ratio"]}
    total = math.fsum(value for value in parts.values() if value is not None)
    return {**parts, "unexplained": 1.0 - total}


def total(measures: Measures, names: tuple[str, ...]) -> float | None:
    """Sum of the measures `names`, at most 1; None where one is not assessed, or where there are none."""
    values = [value for name in names if (value := measures.get(name)) is not None]
    return min(math.fsum(values), 1.0) if names and len(values) == len(names) else None
