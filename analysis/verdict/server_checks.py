"""The checks that the server was there, and had its CPU and GPU to itself; and what starved it, if anything did.

A server from which others took CPU was not measured as deployed: the run is INVALID where they had the means, CPU on
its cores in moments in which it waited for them, and where that had a consequence, a share of the response times. Both
are measured in `squall.analysis.verdict.cpu_shares`, and for the GPU in `gpu_shares`. Without consequence the run is
VALID, and the check says why it decides nothing. A quota is how a server is deployed: the run is VALID, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.limits import LIMITS
from squall.analysis.storage.sealed import Starvation
from squall.analysis.verdict.check import Check, Figure
from squall.analysis.verdict.cpu_shares import OWN, STEAL, CpuShares
from squall.analysis.verdict.gpu_shares import ACTIVITY, GpuShares
from squall.analysis.verdict.gpu_shares import taken_text as gpu_taken_text
from squall.analysis.verdict.run_view import RunView, has_measured, is_locust
from squall.analysis.wording import count_text, share_text

OTHERS, CLIENTS, QUOTA, NONE, UNKNOWN = "others", "clients", "quota", "none", "not assessed"
UNREACHED_RATIO = 0.01
_OTHERS_ADVICE = "stop what else runs there, or give the server cores or a host of its own"
_CLIENTS_ADVICE = "put the load workers on another node: server and client share these cores"
_QUOTA_ADVICE = "raise the quota of its control group, or take the latencies for those of this deployment"
_GPU_ADVICE = "stop what else runs there, or give the server a GPU of its own"


def makes_invalid(starvation: Starvation | None) -> bool:
    """Whether the run did not measure the server as it is deployed."""
    return starvation is not None and starvation.starved_by in (OTHERS, CLIENTS)


def judge_starvation(shares: CpuShares) -> Starvation:
    """What starved the server on a node in a phase, if anything did; what others took comes before a quota."""
    starved_by, ratio, sentence, advice = NONE, shares.taken_ratio, "", ""
    if shares.taken is None or ratio is None:
        starved_by, ratio, sentence = UNKNOWN, None, f"{shares.node}: not assessed: {shares.reason}."
    elif _has_means_and_consequence(ratio, shares.consequence_ratio):
        own = sum(shares.taken.get(name, 0.0) for name in OWN)
        starved_by, advice = (CLIENTS, _CLIENTS_ADVICE) if own > ratio - own else (OTHERS, _OTHERS_ADVICE)
        sentence = _starved(shares, starved_by, ratio, advice)
    elif (shares.throttled_ratio or 0.0) > LIMITS.throttled_ratio:
        starved_by, ratio, advice = QUOTA, shares.throttled_ratio, _QUOTA_ADVICE
        sentence = (
            f"The server is throttled by its CPU quota of {count_text(shares.quota_cores)} cores: it was used up in "
            f"{share_text(ratio)} of the periods, with {share_text(shares.cores['server'])} of a core "
            f"used on average: {advice}."
        )
    return Starvation(
        starved_by=starved_by,
        ratio=ratio,
        sentence=sentence,
        advice=advice,
        node=shares.node,
        phase=shares.phase,
    )


def _has_means_and_consequence(taken: float | None, consequence: float | None) -> bool:
    return (taken or 0.0) > LIMITS.taken_ratio and (consequence or 0.0) > LIMITS.consequence_ratio


def _starved(shares: CpuShares, starved_by: str, ratio: float, advice: str) -> str:
    who = "The load generator itself took the server's CPU"
    if starved_by == OTHERS:
        is_stolen = (shares.taken or {}).get(STEAL, 0.0) > ratio / 2
        who = "The hypervisor gave the CPU to other guests" if is_stolen else "Others took the CPU"
    own = ", ".join(f"{name} {share_text(shares.cores.get(name, 0.0))}" for name in OWN)
    return (
        f"{who}: of the {shares.n_cores * 100} % of {shares.node} others {_others_text(shares)}, {own} and the server "
        f"{share_text(shares.cores['server'])}, whose threads waited {share_text(shares.server_wait_ratio)} of the "
        f"time in which they could run, with no core free in up to {share_text(shares.full_ratio)} of it; it had "
        f"{share_text(1.0 - ratio)} of the {share_text(shares.cores['server'] + (shares.lacked_cores or 0.0))} of a "
        f"core that it could use, which made {share_text(shares.consequence_ratio)} of the response times: {advice}."
    )


def _others_text(shares: CpuShares) -> str:
    """`141 % (27 x python 86 % of the other processes')`."""
    programs = ", ".join(f"{name} {share_text(share)}" for name, share in list(shares.programs.items())[:2])
    named = f" ({programs} of the other processes')" if programs else ""
    return f"{share_text(shares.cores.get('others', 0.0))}{named}"


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
    if shares is None or ratio <= LIMITS.taken_ratio:
        return ""
    return (
        f"Others took the CPU from the load generator: of the {shares.n_cores * 100} % of {shares.node} others had "
        f"{_others_text(shares)} and the load workers {share_text(shares.cores['clients'])}, whose threads waited "
        f"{share_text(shares.clients_wait_ratio)} of the time in which they could run: stop what else runs there, or "
        "use other client nodes."
    )


def gpu_figure(found: Sequence[GpuShares]) -> Figure | None:
    """Of the GPU that makes the run INVALID, else of the one that others used most; None where none is assessed: the
    screen says so."""
    assessed = [one for one in found if one.foreign_ratio is not None]
    if not assessed:
        return None
    is_taken, _, ratio, shares = max(
        (
            (
                _has_means_and_consequence(one.foreign_ratio, one.consequence_ratio),
                one.consequence_ratio or 0.0,
                one.foreign_ratio or 0.0,
                one,
            )
            for one in assessed
        ),
        key=lambda row: row[:3],
    )
    who = "Another process" if shares.n_foreign == 1 else "Other processes"
    if shares.measured_by == ACTIVITY:
        who = "Something else"
    sentence = (
        f"{who} used the GPU: on {shares.gpu_uuid} of {shares.node} {gpu_taken_text(shares)}: {_GPU_ADVICE}."
    )
    return Figure(
        ratio,
        sentence=sentence if is_taken else "",
        excuse=_without_consequence(shares.consequence_ratio),
    )


def _unreached(view: RunView) -> Figure:
    return Figure(view.failures.n_unreached / view.failures.n)


CPU_CHECK = Check(
    name="CPU of the server",
    figure=lambda view: cpu_figure(view.cpus),
    limit=LIMITS.taken_ratio,
    unit="ratio",
    reason="beyond it the server computes a quarter slower than on a host of its own; INVALID only where that made more"
    " than a tenth of the response times, too",
    meaning="share of the CPU that the server could have used and others had",
)
GPU_CHECK = Check(
    name="GPU of the server",
    figure=lambda view: gpu_figure(view.gpus),
    limit=LIMITS.taken_ratio,
    unit="ratio",
    reason="as of the CPU, in moments in which its servers had requests",
    meaning="share of the GPU's time that others had",
)
REACHED_CHECK = Check(
    name="server reached",
    figure=_unreached,
    limit=UNREACHED_RATIO,
    unit="ratio",
    reason="as `delivered load`: more, and the load was not delivered, for want of somebody to take it",
    meaning="share of measured requests for which there was no connection to the server",
    advice="the load was not delivered: see that the server runs, and where it listens",
    where=lambda view: has_measured(view) and not is_locust(view),  # whose rows do not tell of connections
)
