"""What starved the server, if anything did: others, the load generator, or its own CPU quota; and the load generator.

A server from which others took CPU was not measured as deployed: the run is INVALID where they had the means, CPU on
its cores in moments in which it waited for them, and where that had a consequence, a share of the response times. Both
are measured in `squall.analysis.verdict.cpu_shares`. Without consequence the run is VALID, and the check says why it
decides nothing. A quota is how a server is deployed: the run is VALID, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squall.analysis.limits import LIMITS, Limits
from squall.analysis.verdict.check import Check
from squall.analysis.verdict.cpu_shares import OWN, STEAL, CpuShares
from squall.analysis.wording import count_text, share_text

OTHERS, CLIENTS, QUOTA, NONE, UNKNOWN = "others", "clients", "quota", "none", "not assessed"

CHECK = "CPU of the server"
"""Name of the check of a verdict."""

_OTHERS_ADVICE = "stop what else runs there, or give the server cores or a host of its own"
_CLIENTS_ADVICE = "put the load workers on another node: server and client share these cores"
_QUOTA_ADVICE = "raise the quota of its control group, or take the latencies for those of this deployment"


@dataclass(frozen=True)
class StarvationFigures:
    """`Starvation` without the shares that it was judged by, of a node in a phase."""

    starved_by: str
    ratio: float | None
    sentence: str
    advice: str
    node: str
    phase: str


@dataclass(frozen=True)
class Starvation:
    """What starved the server on a node in a phase: `others`, `clients` (the run's other parts included), `quota`,
    `none` or `not assessed`.

    `ratio`: the share of its CPU that was taken; of a quota, of the periods in which it was used up. `sentence` is
    empty where there is nothing to say. `excuse`: why a share above its limit does not make the run INVALID.
    """

    starved_by: str
    ratio: float | None
    sentence: str
    advice: str
    shares: CpuShares
    excuse: str = ""

    @property
    def makes_invalid(self) -> bool:
        """Whether the run did not measure the server as it is deployed."""
        return self.starved_by in (OTHERS, CLIENTS)

    def figures(self) -> StarvationFigures:
        """As the verdict holds it."""
        node, phase = self.shares.node, self.shares.phase
        return StarvationFigures(self.starved_by, self.ratio, self.sentence, self.advice, node, phase)


def judge_starvation(shares: CpuShares, limits: Limits = LIMITS) -> Starvation:
    """What starved the server, if anything did; what others took comes before a quota."""
    ratio, consequence = shares.taken_ratio, shares.consequence_ratio
    if shares.taken is None or ratio is None:
        return Starvation(UNKNOWN, None, f"{shares.node}: not assessed: {shares.reason}.", "", shares)
    excuse = ""
    if ratio > limits.taken_ratio:
        if consequence is not None and consequence > limits.consequence_ratio:
            return _starved(shares, ratio, consequence)
        excuse = "no request was in flight that it could have slowed down"
        if consequence is not None:
            most = share_text(limits.consequence_ratio)
            excuse = f"it made {share_text(consequence)} of the response times, where {most} is the limit"
    if (shares.throttled_ratio or 0.0) > limits.throttled_ratio:
        return Starvation(QUOTA, shares.throttled_ratio, _of_quota(shares), _QUOTA_ADVICE, shares, excuse)
    return Starvation(NONE, ratio, "", "", shares, excuse)


def _starved(shares: CpuShares, ratio: float, consequence: float) -> Starvation:
    taken = shares.taken or {}
    own = sum(taken.get(name, 0.0) for name in OWN)
    if own > ratio - own:
        starved_by, who, advice = CLIENTS, "The load generator itself took the server's CPU", _CLIENTS_ADVICE
    else:
        starved_by, who, advice = OTHERS, "Others took the CPU", _OTHERS_ADVICE
        if taken.get(STEAL, 0.0) > ratio / 2:
            who = "The hypervisor gave the CPU to other guests"
    programs = ", ".join(f"{name} {share_text(share)}" for name, share in list(shares.programs.items())[:2])
    had = ", ".join(
        f"{name} {share_text(shares.cores.get(name, 0.0))}"
        + (f" ({programs} of the other processes')" if name == "others" and programs else "")
        for name in ("others", *OWN)
    )
    sentence = (
        f"{who}: of the {shares.n_cores * 100} % of {shares.node} {had} and the server "
        f"{share_text(shares.cores['server'])}, whose threads waited {share_text(shares.server_wait_ratio)} of the "
        f"time in which they could run, with no core free in up to {share_text(shares.full_ratio)} of it; it had "
        f"{share_text(1.0 - ratio)} of the {share_text(shares.cores['server'] + (shares.lacked_cores or 0.0))} of a "
        f"core that it could use, which made {share_text(consequence)} of the response times: {advice}."
    )
    return Starvation(starved_by, ratio, sentence, advice, shares)


def worst(found: Sequence[Starvation]) -> Starvation | None:
    """The one of several nodes and phases to name: one that makes the run INVALID, else a quota; None without any."""
    named = [one for one in found if one.starved_by not in (NONE, UNKNOWN)]
    return max(named, key=lambda one: (one.makes_invalid, one.ratio or 0.0), default=None)


def cpu_checks(found: Sequence[Starvation], limits: Limits = LIMITS) -> list[Check]:
    """The check of the verdict; none where no node tells: a server on another host is no fault of the run."""
    assessed = [one for one in found if one.shares.taken_ratio is not None]
    if not assessed:
        return []
    most = max(assessed, key=lambda one: (one.makes_invalid, one.shares.taken_ratio or 0.0))
    meaning = "share of the CPU that the server could have used and others had"
    ratio = most.shares.taken_ratio or 0.0
    is_met = ratio <= limits.taken_ratio
    reason = most.sentence if most.makes_invalid else ""
    check = Check(CHECK, ratio, limits.taken_ratio, "ratio", is_met, meaning, reason)
    return [check.unless(most.excuse)]


def starved_clients(found: Sequence[CpuShares], limits: Limits = LIMITS) -> str:
    """That others took the CPU of the load workers, as a sentence; empty where they did not, or it is not known."""
    taken = [(one.taken_from_clients["others"], one) for one in found if one.taken_from_clients is not None]
    ratio, shares = max(taken, key=lambda item: item[0], default=(0.0, None))
    if shares is None or ratio <= limits.taken_ratio:
        return ""
    return (
        f"Others took the CPU from the load generator: of the {shares.n_cores * 100} % of {shares.node} others had "
        f"{share_text(shares.cores['others'])} and the load workers {share_text(shares.cores['clients'])}, whose "
        f"threads waited {share_text(shares.clients_wait_ratio)} of the time in which they could run: stop what else "
        "runs there, or use other client nodes."
    )


def _of_quota(shares: CpuShares) -> str:
    return (
        f"The server is throttled by its CPU quota of {count_text(shares.quota_cores)} cores: it was used up in "
        f"{share_text(shares.throttled_ratio)} of the periods, with {share_text(shares.cores['server'])} of a core "
        f"used on average: {_QUOTA_ADVICE}."
    )
