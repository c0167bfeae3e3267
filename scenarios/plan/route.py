"""Which of several servers gets which arrival: a pure function of plan, routing, weights and seed.

Nothing but whole numbers and logarithms that are the same on every CPU decides, so that the digest of a routed plan is
that of any machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrays import PIECE_ROWS, Array, Columns, Int64s, pieces
from squall.scenarios.config.client import WEIGHED, RoutingConfig
from squall.scenarios.errors import ScenarioError
from squall.scenarios.exact import arrays
from squall.scenarios.exact.hashing import mix64
from squall.scenarios.model_shares import ONE_MODEL, models_of
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.deal import affinity_of
from squall.scenarios.plan.growing import grown
from squall.scenarios.plan.plan import Plan
from squall.scenarios.sizes import LARGEST_ARRIVAL_COUNT
from squall.scenarios.traces.part import session_number
from squall.scenarios.units import digits_text

_NAMES_SALT = 3
_Targets = NDArray[np.uint8]
_Affinity = NDArray[np.uint32]


def route(
    plan: Plan | ClosedPlan,
    routing: RoutingConfig,
    weights: Sequence[float],
    seed: int,
    served: Sequence[Sequence[int]] = (),
) -> Plan | ClosedPlan:
    """The whole plan with the server of each arrival, one of as many as there are `weights`; of a closed loop with that
    of each user, who stays with it.

    The plan itself where there is one server, or where workers choose. `round-robin`: seq mod servers, over the whole
    schedule; a plan dealt by `sequence` to a multiple of so many workers so leaves each worker one server, where `hash`
    leaves it all. `random`, `weighted`: a hash of seq. `sticky`: a hash of the session. `trace`: the
    server of the session's name, else a hash of the session, whatever the seed. Of a plan dealt by `lane` its number
    stands for seq and session, so that all requests of a sequence have one server. `mirror`: each arrival once for
    every server, at the same instant and with the same request; seq becomes seq · servers + server.

    `served`: the servers of each model, sorted; where some do not serve all, an arrival goes to one of those of its
    model by the same rule, `round-robin` over the arrivals of that model, and a user has one for each model. The rules
    of users are those of arrivals, by the user's number; `sticky` takes each user for a session.

    Raises ScenarioError for more arrivals than a plan takes, ValueError for a plan that is routed already.
    """
    n_servers = len(weights)
    if plan.target is not None:
        raise ValueError("the plan is routed already")
    if n_servers == 1 or not routing.is_planned:
        return plan
    # the servers of each model where some do not serve all; else all of them, whatever the model
    is_partial = any(len(servers) < n_servers for servers in served)
    groups: Sequence[Sequence[int]] = served if is_partial else [range(n_servers)]
    choose = partial(_chosen, routing, weights, seed)
    if isinstance(plan, ClosedPlan):
        affinity = affinity_of(None, plan.users)
        return replace(
            plan, target=np.stack([choose(servers, plan.users, affinity) for servers in groups], axis=1)
        )
    if routing.kind == "mirror":
        return _mirrored(plan, n_servers)
    n_before = [0] * len(groups)

    def parts() -> Iterator[Columns]:
        for piece in pieces(len(plan)):
            numbers = plan.seq[piece]
            affinity: Array = numbers if plan.affinity is None else plan.affinity[piece]
            if plan.deal == "lane":
                numbers = affinity.astype(np.int64)
            models = models_of(plan.variant[piece], plan.models if len(groups) > 1 else ONE_MODEL)
            found = np.empty(numbers.size, np.uint8)
            for model, servers in enumerate(groups):
                places = np.flatnonzero(models == model)
                own = numbers[places]
                if len(groups) > 1 and routing.kind == "round-robin":
                    own = n_before[model] + np.arange(places.size)
                    n_before[model] += places.size
                found[places] = choose(servers, own, affinity[places])
            yield {"target": found}

    return replace(plan, **grown({"target": "<u1"}, parts()))


def planned_by_server(plan: Plan | ClosedPlan, n_servers: int) -> list[int] | None:
    """Arrivals of each server, or users of a closed loop, each at all of its servers; None where there are several and
    the workers choose."""
    if plan.target is None:
        return [len(plan)] if n_servers == 1 else None
    if isinstance(plan, ClosedPlan):
        return [int((plan.targets == server).any(axis=1).sum()) for server in range(n_servers)]
    return _counts(plan.target, n_servers)


def _counts(column: NDArray[np.uint8], n: int) -> list[int]:
    """How often each number below `n` stands in a column."""
    found = np.zeros(n, np.int64)
    for piece in pieces(column.size):
        found += np.bincount(column[piece], minlength=n)
    return found.tolist()


def _chosen(
    routing: RoutingConfig,
    weights: Sequence[float],
    seed: int,
    servers: Sequence[int],
    numbers: Int64s,
    affinity: _Affinity,
) -> _Targets:
    """The one of `servers` that each arrival goes to by its number and the hash of its session, (n,) each; of all kinds
    but `mirror` and those that choose at the send. `weights`: of all servers."""
    own = [weights[server] if routing.kind in WEIGHED else 1.0 for server in servers]
    # far from those of other seeds, and from those that deal
    salt = int.from_bytes(hashlib.blake2b(f"routing {seed}".encode(), digest_size=8).digest(), "little")
    place: Array
    match routing.kind:
        case "round-robin":
            place = numbers % len(servers)
        case "sticky":
            place = _rendezvous(affinity, own, salt)
        case (
            "trace"
        ):  # the server that a session is called after, by the hashes of both; of any other one a hash
            place = _rendezvous(affinity, own, _NAMES_SALT)
            names = np.array([session_number(f"server-{server}") for server in range(len(servers))], np.int64)
            for server, name in enumerate(affinity_of(names, names)):
                place[affinity == name] = server
        case _:
            # where the range of 64 bits passes from one server to the next, so that each has its weight of it: exact
            # fractions, rounded down, so that a share is off by 2⁻⁶⁴ at most
            sums = list(accumulate(map(Fraction, own)))
            bounds = np.array([int(part * 2**64 / sums[-1]) for part in sums[:-1]], np.uint64)
            place = np.searchsorted(bounds, mix64(numbers, salt), side="right")
    return np.array(servers, np.uint8)[place]


def _rendezvous(affinity: _Affinity, weights: Sequence[float], salt: int) -> _Targets:
    """The server with the highest score for each session, (n,): another server more takes sessions from all in their
    weights' shares, and moves no other.

    Highest random weight hashing (Thaler, Ravishankar, IEEE/ACM Trans. Networking 6(1), 1998). With weights w the score
    is w / -ln u, u uniform in (0, 1) from the hash: -ln u / w is exponential with rate w, and of several exponentials
    server i's is the least with probability w_i / Σw. With equal weights the hash orders as the score does.
    """
    is_even, scale = len(set(weights)) == 1, math.frexp(max(weights))[1]
    best: Array = np.zeros(affinity.size, np.uint64 if is_even else np.float64)
    target = np.zeros(affinity.size, np.uint8)
    for server, weight in enumerate(weights):
        hashes = mix64(affinity.astype(np.int64) + (server << 32), salt)
        score: Array = hashes
        if not is_even:  # u = (k + ½) / 2⁵² of the upper 52 bits k: exact, and neither 0 nor 1
            uniform = ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
            score = math.ldexp(weight, -scale) / -arrays.log(uniform)
        target[score > best] = server
        np.maximum(best, score, out=best)
    return target


def _mirrored(plan: Plan, n_servers: int) -> Plan:
    """Every arrival `n_servers` times in a row, once for each server. Raises ScenarioError for too many of a phase."""
    for span, count in zip(plan.spans, _counts(plan.phase, len(plan.spans)), strict=True):
        if count * n_servers > LARGEST_ARRIVAL_COUNT:
            raise ScenarioError(
                f"clients.routing: mirrored to {n_servers} servers, phase {span.name!r} has"
                f" {digits_text(count * n_servers)} requests, above the {LARGEST_ARRIVAL_COUNT:,} that a plan takes"
            )
    types = {**plan.columns, "target": "<u1"}
    if plan.affinity is not None:
        types["affinity"] = "<u4"

    def parts() -> Iterator[Columns]:
        for piece in pieces(len(plan), PIECE_ROWS // n_servers):
            servers = np.tile(np.arange(n_servers), len(plan.seq[piece]))
            part = {
                name: np.repeat(getattr(plan, name)[piece], n_servers) for name in types if name != "target"
            }
            yield {**part, "seq": part["seq"] * n_servers + servers, "target": servers}

    return replace(plan, **grown(types, parts()))
