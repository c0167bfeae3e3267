"""Figures of the checks that the server had its CPU and GPU to itself; and what starved it, if anything did.

A server from which others took CPU was not measured as deployed: the run is INVALID where they had the means, CPU on
its cores in moments in which it waited for them, and where that had a consequence, a share of the response times. Both
are measured in `squall.analysis.verdict.cpu_shares`, and for the GPU in `gpu_shares`. Without consequence the run is
VALID, and the check says why it decides nothing. A quota is how a server is deployed: the run is VALID, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from squall.analysis.limits import LIMITS
from squall.analysis.storage.sealed import Starvation
from squall.analysis.verdict.check import Figure
from squall.analysis.verdict.cpu_shares import OWN, CpuShares
from squall.analysis.verdict.gpu_shares import GpuShares
from squall.analysis.wording import macros, share_text

OTHERS, CLIENTS, QUOTA, NONE, UNKNOWN = "others", "clients", "quota", "none", "not assessed"
_ADVICE = {
    OTHERS: "stop what else runs there, or give the server cores or a host of its own",
    CLIENTS: "put the load workers on another node: server and client share these cores",
    QUOTA: "raise the quota of its control group, or take the latencies for those of this deployment",
}


def makes_invalid(starvation: Starvation | None) -> bool:
    """Whether the run did not measure the server as it is deployed."""
    return starvation is not None and starvation.starved_by in (OTHERS, CLIENTS)


def judge_starvation(shares: CpuShares) -> Starvation:
    """What starved the server on a node in a phase, if anything did; what others took comes before a quota."""
    starved_by, ratio, sentence = NONE, shares.taken_ratio, ""
    if shares.taken is None or ratio is None:
        starved_by, ratio, sentence = UNKNOWN, None, f"{shares.node}: not assessed: {shares.reason}."
    elif _has_means_and_consequence(ratio, shares.consequence_ratio):
        own = sum(shares.taken.get(name, 0.0) for name in OWN)
        starved_by = CLIENTS if own > ratio - own else OTHERS
        sentence = _say().starved(shares, starved_by, _ADVICE[starved_by])
    elif (shares.throttled_ratio or 0.0) > LIMITS.throttled_ratio:
        starved_by, ratio, sentence = QUOTA, shares.throttled_ratio, _say().throttled(shares, _ADVICE[QUOTA])
    return Starvation(
        starved_by=starved_by,
        ratio=ratio,
        sentence=sentence,
        advice=_ADVICE.get(starved_by, ""),
        node=shares.node,
        phase=shares.phase,
    )


def _say() -> Any:
    return macros(__package__, "starvation.j2")


def _has_means_and_consequence(taken: float | None, consequence: float | None) -> bool:
    return (taken or 0.0) > LIMITS.taken_ratio and (consequence or 0.0) > LIMITS.consequence_ratio


def worst(found: Sequence[Starvation]) -> Starvation | None:
    """The one of several nodes and phases to name: one that makes the run INVALID, else a quota; None without any."""
    named = [one for one in found if one.starved_by not in (NONE, UNKNOWN)]
    return max(named, key=lambda one: (makes_invalid(one), one.ratio or 0.0), default=None)


def cpu_figure(found: Sequence[CpuShares]) -> Figure | None:
    """The most that was taken; None where no node tells: a server on another host is no fault of the run."""
    assessed = [(judge_starvation(one), one) for one in found if one.taken_ratio is not None]
    if not assessed:
        return None
    starved, shares = max(assessed, key=lambda pair: (makes_invalid(pair[0]), pair[1].taken_ratio or 0.0))
    return Figure(
        shares.taken_ratio or 0.0,
        sentence=starved.sentence if makes_invalid(starved) else "",
        excuse=_without_consequence(shares.consequence_ratio),
    )


def _without_consequence(ratio: float | None) -> str:
    """Why what was taken decides nothing, where that made no more than is allowed of the response times."""
    if ratio is None:
        return "no request was in flight that it could have slowed down"
    most = share_text(LIMITS.consequence_ratio)
    return f"it made {share_text(ratio)} of the response times, where {most} is the limit"


def starved_clients(found: Sequence[CpuShares]) -> str:
    """That others took the CPU of the load workers, as a sentence; empty where they did not, or it is not known."""
    taken = [(one.taken_from_clients["others"], one) for one in found if one.taken_from_clients is not None]
    ratio, shares = max(taken, key=lambda item: item[0], default=(0.0, None))
    is_taken = ratio > LIMITS.taken_ratio
    return str(_say().starved_clients(shares)) if is_taken else ""


def gpu_figure(found: Sequence[GpuShares]) -> Figure | None:
    """Of the GPU that makes the run INVALID, else of the one that others used most; None where none is assessed: the
    screen says so."""
    assessed = [one for one in found if one.foreign_ratio is not None]
    shares = max(assessed, key=_gpu_taken, default=None)
    if shares is None:
        return None
    is_taken, _, ratio = _gpu_taken(shares)
    return Figure(
        ratio,
        sentence=macros(__package__, "gpu_shares.j2").gpu_used(shares) if is_taken else "",
        excuse=_without_consequence(shares.consequence_ratio),
    )


def _gpu_taken(shares: GpuShares) -> tuple[bool, float, float]:
    foreign, consequence = shares.foreign_ratio or 0.0, shares.consequence_ratio or 0.0
    return _has_means_and_consequence(foreign, consequence), consequence, foreign
