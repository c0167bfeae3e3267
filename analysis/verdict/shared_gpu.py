"""Whether others used a GPU of the servers so much that the run did not measure these as they are deployed.

The run is INVALID where they had the means, more than `taken_ratio` of the GPU's time in moments in which its servers
had requests, and where that had a consequence, more than `consequence_ratio` of the response times. Both are measured
in `squall.analysis.verdict.gpu_shares`. Less is told on the screen, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.limits import LIMITS, Limits
from squall.analysis.verdict.check import Check
from squall.analysis.verdict.gpu_shares import ACTIVITY, GpuShares, taken_text
from squall.analysis.wording import share_text

CHECK = "GPU of the server"
"""Name of the check of a verdict."""
_ADVICE = "stop what else runs there, or give the server a GPU of its own"


def makes_invalid(shares: GpuShares, limits: Limits = LIMITS) -> bool:
    """Whether others had means and consequence."""
    return (shares.foreign_ratio or 0.0) > limits.taken_ratio and (
        shares.consequence_ratio or 0.0
    ) > limits.consequence_ratio


def worst(found: Sequence[GpuShares], limits: Limits = LIMITS) -> GpuShares | None:
    """The GPU to name, of those that are assessed: one that makes the run INVALID, else the one that others used most;
    None without any."""
    return max(
        (one for one in found if one.foreign_ratio is not None),
        key=lambda one: (makes_invalid(one, limits), one.consequence_ratio or 0.0, one.foreign_ratio or 0.0),
        default=None,
    )


def sentence(shares: GpuShares) -> str:
    """That others used the GPU, what they took and what it did."""
    who = "Another process" if shares.n_foreign == 1 else "Other processes"
    if shares.measured_by == ACTIVITY:
        who = "Something else"
    return f"{who} used the GPU: on {shares.gpu_uuid} of {shares.node} {taken_text(shares)}: {_ADVICE}."


def gpu_checks(found: Sequence[GpuShares], limits: Limits = LIMITS) -> list[Check]:
    """The check of the verdict; none where no GPU of a server is assessed: the screen says so."""
    most = worst(found, limits)
    if most is None or most.foreign_ratio is None:
        return []
    meaning = "share of the GPU's time that others had"
    is_met = most.foreign_ratio <= limits.taken_ratio
    reason = sentence(most) if makes_invalid(most, limits) else ""
    excuse = ""
    if not is_met and not reason:
        excuse = "no request was in flight that it could have slowed down"
        if most.consequence_ratio is not None:
            at_most = share_text(limits.consequence_ratio)
            excuse = f"it made {share_text(most.consequence_ratio)} of the response times, where {at_most} is the limit"
    return [
        Check(CHECK, most.foreign_ratio, limits.taken_ratio, "ratio", is_met, meaning, reason).unless(excuse)
    ]
