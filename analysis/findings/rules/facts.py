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
from collections.abc import Mapping

from squall.analysis.findings.rules.rule import Measures
from squall.analysis.metrics.measures import ratio

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
    between = found.get("wall_between_ratio")
    if between is None:
        between = _sum(found, "wall_between_waiting_ratio", "wall_between_empty_ratio")
    edges, waiting = found.get("wall_edges_ratio"), found.get("wall_between_waiting_ratio")
    exec_ratio = None if between is None or edges is None else max(0.0, 1.0 - between - edges)
    with_work = None if exec_ratio is None or waiting is None else exec_ratio + waiting
    followed = {
        "wall_between_ratio": between,
        "wall_exec_ratio": exec_ratio,
        "wall_body_ratio": _sum(found, "wall_gpu_busy_ratio", "wall_body_idle_ratio"),
        "wall_unoffered_ratio": _sum(found, "wall_between_empty_ratio", "wall_edges_ratio"),
        "work_served_ratio": ratio(exec_ratio, with_work),
        "queue_to_exec_ratio": ratio(found.get("queue_p50_ns"), found.get("exec_mean_ns")),
        "queue_delay_share_ratio": _product(
            found.get("queue_share_ratio"),
            _at_most_one(ratio(found.get("queue_delay_ns"), found.get("queue_p50_ns"))),
        ),
        "busy_dram_ratio": _while_busy(found, "gpu_dram_util_ratio"),
        "busy_tensor_ratio": _while_busy(found, "gpu_tensor_util_ratio"),
        "wall_foreign_ratio": _product(found.get("foreign_busy_ratio"), exec_ratio),
        "response_foreign_ratio": _product(
            found.get("foreign_busy_ratio"), found.get("response_compute_ratio")
        ),
    }
    return {**found, **known(followed)}


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
    found = _sum(measures, *names) if names else None
    return None if found is None else min(found, 1.0)


def _sum(measures: Measures, *names: str) -> float | None:
    values = [measures.get(name) for name in names]
    return None if any(value is None for value in values) else math.fsum(v for v in values if v is not None)


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other


def _while_busy(found: Measures, name: str) -> float | None:
    return _at_most_one(ratio(found.get(name), found.get("gpu_activity_ratio")))


def _at_most_one(value: float | None) -> float | None:
    return None if value is None else min(value, 1.0)
