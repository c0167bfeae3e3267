"""Which of several servers gets which arrival: a pure function of plan, routing, weights and seed.

Nothing but whole numbers and logarithms that are the same on every CPU decides, so that the digest of a routed plan is
that of any machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.config.client import NO_MIRROR, RoutingConfig
from squall.scenarios.errors import ScenarioError
from squall.scenarios.exact import arrays
from squall.scenarios.exact.hashing import mix64
from squall.scenarios.model_shares import ONE_MODEL, models_of
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.deal import affinity_of
from squall.scenarios.plan.growing import PIECE_ROWS, Column, pieces
from squall.scenarios.plan.plan import Plan
from squall.scenarios.sizes import LARGEST_ARRIVAL_COUNT, LARGEST_SERVER_COUNT
from squall.scenarios.traces.part import session_number
from squall.scenarios.units import digits_text

_MIRRORED_ROWS = PIECE_ROWS // LARGEST_SERVER_COUNT
"""At a time: times the servers they are a piece."""
_NAMES_SALT = 3
_Targets = NDArray[np.uint8]
_Affinity = NDArray[np.uint32]


def route(
    plan: Plan,
    routing: RoutingConfig,
    weights: Sequence[float],
    seed: int,
    served: Sequence[Sequence[int]] = (),
) -> Plan:
    """The whole plan with the server of each arrival, one of as many as there are `weights`.

    The plan itself where there is one server, or where workers choose. `round-robin`: seq mod servers, over the whole
    schedule; a plan dealt by `sequence` to a multiple of so many workers so leaves each worker one server, where `hash`
    leaves it all. `random`, `weighted`: a hash of seq. `sticky`: a hash of the session. `trace`: the
    server of the session's name, else a hash of the session, whatever the seed. Of a plan dealt by `lane` its number
    stands for seq and session, so that all requests of a sequence have one server. `mirror`: each arrival once for
    every server, at the same instant and with the same request; seq becomes seq · servers + server.

    `served`: the servers of each model, sorted; where some do not serve all, an arrival goes to one of those of its
    model by the same rule, `round-robin` over the arrivals of that model.

    Raises ScenarioError for more arrivals than a plan takes, ValueError for a plan that is routed already and, where
    routing is `sticky` or `trace`, one without affinity.
    """
    n_servers = _n_servers(weights)
    if plan.target is not None:
        raise ValueError("the plan is routed already")
    if n_servers == 1 or not routing.is_planned:
        return plan
    if routing.kind == "mirror":
        return _mirrored(plan, n_servers)
    if routing.kind in ("sticky", "trace") and plan.affinity is None:
        raise ValueError(f"{routing.kind} routing needs the affinity of the arrivals")
    groups = _groups(n_servers, served)
    n_before = [0] * len(groups)
    target = Column("<u1")
    for piece in pieces(len(plan)):
        numbers = plan.seq[piece]
        affinity: NDArray[Any] = numbers  # what looks at it was refused above where there is none
        if plan.affinity is not None:
            affinity = plan.affinity[piece]
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
            found[places] = _chosen(routing, servers, weights, seed, own, affinity[places])
        target.append(found)
    return replace(plan, target=target.join())


def route_closed(
    plan: ClosedPlan,
    routing: RoutingConfig,
    weights: Sequence[float],
    seed: int,
    served: Sequence[Sequence[int]] = (),
) -> ClosedPlan:
    """The plan with the server of each user, who stays with it; the plan itself as `route` says. Where some servers do
    not serve all models, a user has one for each model.

    The rules are those of arrivals, by the user's number; `sticky` takes each user for a session. Raises ScenarioError
    for `mirror`, ValueError for `trace`, which a scenario with users cannot have.
    """
    if routing.kind == "mirror":
        raise ScenarioError(f"clients.routing: {NO_MIRROR}")
    if routing.kind == "trace":
        raise ValueError("users have no trace")
    if _n_servers(weights) == 1 or not routing.is_planned:
        return plan
    affinity = affinity_of(None, plan.users)
    found = [
        _chosen(routing, servers, weights, seed, plan.users, affinity)
        for servers in _groups(len(weights), served)
    ]
    return replace(plan, target=found[0] if len(found) == 1 else np.stack(found, axis=1))


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


def _groups(n_servers: int, served: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """The servers of each model where some do not serve all; else all of them, whatever the model."""
    return served if any(len(servers) < n_servers for servers in served) else [range(n_servers)]


def _n_servers(weights: Sequence[float]) -> int:
    if not 1 <= len(weights) <= LARGEST_SERVER_COUNT:
        raise ValueError(f"a plan is routed to 1 to {LARGEST_SERVER_COUNT} servers, not {len(weights)}")
    return len(weights)


def _chosen(
    routing: RoutingConfig,
    servers: Sequence[int],
    weights: Sequence[float],
    seed: int,
    numbers: NDArray[np.int64],
    affinity: _Affinity,
) -> _Targets:
    """The one of `servers` that each arrival goes to by its number and the hash of its session, (n,) each; of all kinds
    but `mirror` and those that choose at the send. `weights`: of all servers."""
    own = [weights[server] for server in servers]
    place: NDArray[Any]
    if routing.kind == "round-robin":
        place = numbers % len(servers)
    elif routing.kind == "sticky":
        place = _rendezvous(affinity, own, _salt(seed))
    elif routing.kind == "trace":
        place = _named(affinity, len(servers))
    else:
        bounds = _bounds(own if routing.kind == "weighted" else [1.0] * len(servers))
        place = np.searchsorted(bounds, mix64(numbers, _salt(seed)), side="right")
    return np.array(servers, np.uint8)[place]


def _named(affinity: _Affinity, n_servers: int) -> _Targets:
    """The server that a session is called after, `server-0` and so on, by their hashes; of any other session a hash."""
    target = _rendezvous(affinity, [1.0] * n_servers, _NAMES_SALT)
    names = np.array([session_number(f"server-{server}") for server in range(n_servers)], np.int64)
    for server, name in enumerate(affinity_of(names, names)):
        target[affinity == name] = server
    return target


def _salt(seed: int) -> int:
    """Of the hashes of a seed: far from those of other seeds, and from those that deal."""
    return int.from_bytes(hashlib.blake2b(f"routing {seed}".encode(), digest_size=8).digest(), "little")


def _bounds(weights: Sequence[float]) -> NDArray[np.uint64]:
    """Where the range of 64 bits passes from one server to the next, (servers - 1,), so that each has its weight of it.

    Exact fractions, rounded down: a share is off by 2⁻⁶⁴ at most.
    """
    sums = list(accumulate(map(Fraction, weights)))
    return np.array([int(part * 2**64 / sums[-1]) for part in sums[:-1]], np.uint64)


def _rendezvous(affinity: _Affinity, weights: Sequence[float], salt: int) -> _Targets:
    """The server with the highest score for each session, (n,): another server more takes sessions from all in their
    weights' shares, and moves no other.

    Highest random weight hashing (Thaler, Ravishankar, IEEE/ACM Trans. Networking 6(1), 1998). With weights w the score
    is w / -ln u, u uniform in (0, 1) from the hash: -ln u / w is exponential with rate w, and of several exponentials
    server i's is the least with probability w_i / Σw. With equal weights the hash orders as the score does.
    """
    is_even, scale = len(set(weights)) == 1, math.frexp(max(weights))[1]
    best: NDArray[Any] = np.zeros(affinity.size, np.uint64 if is_even else np.float64)
    target = np.zeros(affinity.size, np.uint8)
    for server, weight in enumerate(weights):
        hashes = mix64(affinity.astype(np.int64) + (server << 32), salt)
        score: NDArray[Any] = (
            hashes if is_even else math.ldexp(weight, -scale) / -arrays.log(_uniform(hashes))
        )
        target[score > best] = server
        np.maximum(best, score, out=best)
    return target


def _uniform(hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    """(k + ½) / 2⁵² of the upper 52 bits k: exact, and neither 0 nor 1."""
    return ((hashes >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mirrored(plan: Plan, n_servers: int) -> Plan:
    """Every arrival `n_servers` times in a row, once for each server. Raises ScenarioError for too many of a phase."""
    for span, count in zip(plan.spans, _counts(plan.phase, len(plan.spans)), strict=True):
        if count * n_servers > LARGEST_ARRIVAL_COUNT:
            raise ScenarioError(
                f"clients.routing: mirrored to {n_servers} servers, phase {span.name!r} has"
                f" {digits_text(count * n_servers)} requests, above the {LARGEST_ARRIVAL_COUNT:,} that a plan takes"
            )
    names = [*plan.columns, *([] if plan.affinity is None else ["affinity"])]
    columns = {name: Column(getattr(plan, name).dtype) for name in names}
    target = Column("<u1")
    for piece in pieces(len(plan), _MIRRORED_ROWS):
        servers = np.tile(np.arange(n_servers), len(plan.seq[piece]))
        for name, column in columns.items():
            rows = np.repeat(getattr(plan, name)[piece], n_servers)
            column.append(rows * n_servers + servers if name == "seq" else rows)
        target.append(servers)
    whole: dict[str, Any] = {name: column.join() for name, column in columns.items()}
    return replace(plan, target=target.join(), **whole)
