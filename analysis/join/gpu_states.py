"""The state of a GPU at an instant: the NVML sample that holds it."""

from __future__ import annotations

COLUMNS = ("util", "sm_util", "sm_clock_hz", "throttle_reasons")
"""Columns of `gpu_samples` that are the state; `joined` has them with gpu_ in front."""

# Of a GPU and its MIG instances the whole one counts, else the first.
GPU_STATES = """
SELECT node, gpu_uuid, t_ns, interval_ns, util, sm_util, sm_clock_hz, throttle_reasons,
    count(DISTINCT gpu_uuid) OVER (PARTITION BY node) = 1 AS is_only
FROM gpu_samples
QUALIFY mig_instance = min(mig_instance) OVER (PARTITION BY node, gpu_uuid)
"""
"""Query for table `gpu_states`; is_only: no other GPU of the node was sampled."""
GPU_STATE = ", ".join(
    f"CASE WHEN g.t_ns - {{at}} < g.interval_ns THEN g.{name} END AS gpu_{name}" for name in COLUMNS
)
"""Of sample `g`, the first of its GPU that ends at instant `at` or after it, if it holds that."""
