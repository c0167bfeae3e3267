"""Rules of the window level about who else used the server's GPU. Tried where that is known.

`gpu_foreign_ratio`       of the GPU's time what other processes had (`squall.analysis.verdict.gpu_shares`)
`gpu_consequence_ratio`   of the response times, what that explains
`gpu_is_bound`            1 where that is the most that it can explain, with nothing to compare with; else 0
`gpu_server_ratio`        of the GPU's time, what the server's own processes had
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squall.analysis.findings.rules.rule import BATCH_KEY, GiveBack, RowLink, Rule, at_least
from squall.analysis.limits import LIMITS
from squall.analysis.verdict.gpu_shares import BOUND, GpuShares

SHARED_GPU = Rule(
    "shared GPU",
    "window",
    (
        (
            at_least(
                "gpu_foreign_ratio",
                LIMITS.taken_ratio,
                "as of the CPU: a fifth of the time in which the server's kernels may have waited for others",
            ),
        ),
        (
            at_least(
                "gpu_consequence_ratio",
                LIMITS.consequence_ratio,
                "beyond both the verdict calls the run INVALID: the response times are not the server's alone",
            ),
        ),
    ),
    "Others had {gpu_foreign_ratio} of the time of its GPU, which explains up to {gpu_consequence_ratio} of the "
    "response times.",
    "Stop what else runs on the GPU, or give the server a GPU of its own; then run again.",
    "It says nothing of the model: kernels wait for those of others, and clocks fall by their heat and power, too.",
    GiveBack(),
    RowLink("batch_costs", "end_ns - start_ns", (*BATCH_KEY, "start_ns", "end_ns", "rows")),
    evidence=("gpu_server_ratio", "throttled_ratio", "wall_exec_ratio"),
)

GPU_RULES = (SHARED_GPU,)


def gpu_measures(found: Sequence[GpuShares], phase: str, server: str, uuid: str) -> dict[str, float | None]:
    """The measures of the GPU of an instance in a phase, of the server's GPU that others used most where it is not
    known which is the instance's; none of them where nothing is known of it."""
    own = [one for one in found if one.phase == phase and server in one.servers]
    own = [one for one in own if one.gpu_uuid == uuid] or own
    known = [one for one in own if one.foreign_ratio is not None]
    if not known:
        return {}
    most = max(known, key=lambda one: (one.consequence_ratio or 0.0, one.foreign_ratio or 0.0))
    return {
        "gpu_foreign_ratio": most.foreign_ratio,
        "gpu_consequence_ratio": most.consequence_ratio or 0.0,
        "gpu_is_bound": float(most.compared == BOUND),
        "gpu_server_ratio": most.server_ratio,
    }


def with_gpu(rules: Sequence[Rule], measures: Mapping[str, float | None]) -> tuple[Rule, ...]:
    """`rules` behind the one about the GPU, where it is known who used that."""
    return (SHARED_GPU, *rules) if measures.get("gpu_foreign_ratio") is not None else tuple(rules)
