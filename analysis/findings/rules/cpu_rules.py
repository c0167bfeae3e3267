"""Rules of the window level about the CPU of the server's node: who starved the server. Tried where it is known.

`cpu_taken_ratio`             of the CPU that the server could have used, what others had
                              (`squall.analysis.verdict.cpu_shares`)
`cpu_consequence_ratio`       of the response times, what that explains
`cpu_taken_by_others_ratio`   of that, what was not this run's: others and other guests of the hypervisor
`cpu_throttled_ratio`         periods of the server's CPU quota in which it was used up; 0 without a quota
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squall.analysis.findings.rules.rule import BATCH_KEY, GiveBack, RowLink, Rule, at_least, below
from squall.analysis.limits import LIMITS
from squall.analysis.verdict.cpu_shares import OWN, CpuShares

_LINK = RowLink("batch_costs", "end_ns - start_ns", (*BATCH_KEY, "start_ns", "end_ns", "rows"))
_TAKEN = at_least(
    "cpu_taken_ratio",
    LIMITS.taken_ratio,
    "beyond it the server computes a quarter slower than on a host of its own",
)
_CONSEQUENCE = at_least(
    "cpu_consequence_ratio",
    LIMITS.consequence_ratio,
    "beyond both the verdict calls the run INVALID: the response times are not the server's alone",
)

BY_OTHERS = Rule(
    "starved by others",
    "window",
    (
        (_TAKEN,),
        (_CONSEQUENCE,),
        (at_least("cpu_taken_by_others_ratio", 0.5, "most of it was taken by what is not of this run"),),
    ),
    "Others had {cpu_taken_ratio} of the CPU that the server could have used: its threads waited to run for "
    "{cpu_wait_ratio} of the time in which they could, which made {cpu_consequence_ratio} of the response times.",
    "Stop what else runs on the server's node, or give the server cores or a host of its own; then run again.",
    "It says nothing of the model: an execution lasts while its threads wait, too.",
    GiveBack(),
    _LINK,
    evidence=("cpu_wait_ratio", "wall_exec_ratio"),
)

BY_CLIENT = Rule(
    "starved by the client",
    "window",
    (
        (_TAKEN,),
        (_CONSEQUENCE,),
        (below("cpu_taken_by_others_ratio", 0.5, "most of it was taken by load workers and other parts of this run"),),
    ),
    "The load generator had {cpu_taken_ratio} of the CPU that the server could have used, on the node that they share: "
    "the server's threads waited to run for {cpu_wait_ratio} of the time in which they could, which made "
    "{cpu_consequence_ratio} of the response times.",
    "Put the load workers on another node; then run again.",
    "It says nothing of the model: an execution lasts while its threads wait, too.",
    GiveBack(),
    _LINK,
    evidence=("cpu_wait_ratio", "wall_exec_ratio"),
)  # fmt: skip

BY_QUOTA = Rule(
    "throttled by a CPU quota",
    "window",
    (
        (
            at_least(
                "cpu_throttled_ratio",
                LIMITS.throttled_ratio,
                "a tenth of the periods ends with the server held back until the next one",
            ),
        ),
    ),
    "The CPU quota of the server's control group was used up in {cpu_throttled_ratio} of its periods: the server stood "
    "still until the next one.",
    "Raise the quota, or spread the work: fewer threads, smaller batches; these latencies are the deployment's.",
    "It does not tell which threads used the quota up: see thread_samples.",
    GiveBack(),
    _LINK,
    evidence=("cpu_wait_ratio", "wall_exec_ratio"),
)

STARVED = (BY_OTHERS, BY_CLIENT)
"""Before all others: an instance that does not get the CPU says nothing of itself."""
CPU_RULES = (*STARVED, BY_QUOTA)


def cpu_measures(found: Sequence[CpuShares], phase: str, node: str) -> dict[str, float | None]:
    """The measures of the server's node in a phase; none of them where it is not known who had the CPU."""
    own = next((one for one in found if (one.phase, one.node) == (phase, node)), None)
    if own is None or own.taken is None or own.taken_ratio is None:
        return {}
    others = sum(share for name, share in own.taken.items() if name not in OWN)
    return {
        "cpu_taken_ratio": own.taken_ratio,
        "cpu_taken_by_others_ratio": others / own.taken_ratio if own.taken_ratio else 0.0,
        "cpu_consequence_ratio": own.consequence_ratio,
        "cpu_throttled_ratio": own.throttled_ratio or 0.0,
        "cpu_wait_ratio": own.server_wait_ratio,
    }


def with_cpu(rules: Sequence[Rule], measures: Mapping[str, float | None], first: str) -> tuple[Rule, ...]:
    """`rules` with those about the CPU where it is known who had it: the quota's before the rule named `first`."""
    if measures.get("cpu_taken_ratio") is None:
        return tuple(rules)
    at = next(index for index, rule in enumerate(rules) if rule.name == first)
    return (*STARVED, *rules[:at], BY_QUOTA, *rules[at:])
