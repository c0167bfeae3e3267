"""Requests that are tried before the load: one of each kind that a model is asked with, the smallest, at every server.

What no server takes is told so before anything is measured, and not after a load that failed from end to end. A try is
in no table, and its time is in the manifest: where a model is cold, it was the first to wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

from squall.actors.load.trial import Trial, TrialRequest, try_request
from squall.analysis.storage.manifest import TriedFacts
from squall.analysis.wording import duration_text
from squall.cluster.driver.client_workers import targets_of
from squall.cluster.driver.payload_packing import GivenRequests, MadeRequests, sendable
from squall.cluster.driver.payload_wires import asked_of, refuse_no_sequences, stream_rule, wire_of
from squall.cluster.node.endpoint import HEADERS_MEND, Endpoint, headers_of, specs_of
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import TargetError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan
from squall.scenarios.units import NS_PER_S

_MOST_KINDS = 4
"""Of one model: requests that differ in which inputs they have."""
_REFUSED = re.compile(r"(?:the reply has HTTP status )?40[13]\b|7 |16 ")
"""The detail where it begins with a status of HTTP or gRPC: PERMISSION_DENIED is 7, UNAUTHENTICATED 16."""
_MALFORMED = re.compile(r"4\d\d |3 ")  # INVALID_ARGUMENT is 3
_LOOKED_AT = 64
"""Payloads among which these are looked for: the data may have millions."""
_MOST_TRIES = 20
"""Of a request that fails: a server that answers one in three takes one of so many, but for 3 in 10,000 times."""
_TRIES_NS = 5 * NS_PER_S
"""As long is tried anew."""
_SLOW_NS = NS_PER_S
"""A first request that takes longer is told."""
Try = Callable[[TrialRequest, int], Trial]


def try_requests(
    scenario: Scenario,
    plan: Plan | ClosedPlan,
    endpoints: Mapping[str, Endpoint],
    say: Callable[[str], None],
    attempt: Try = try_request,
) -> tuple[TriedFacts, ...]:
    """Tries a request of each kind at each server, by its name; `attempt` sends it. `say`: what the user is to know
    though the load goes on. Raises TargetError where a server does not take one."""
    found = []
    for name, model, request in _requests(scenario, plan, endpoints):
        trial = _tried(request, attempt, scenario.clients.timeout_ns)
        where = f"{name}, {model}, {request.rows} row{'s' * (request.rows != 1)}"
        if trial.outcome == "rejected":
            say(
                f"the request that is tried before the load ({where}) was rejected: {trial.detail}; the load goes on"
            )
        elif trial.outcome != "ok":
            raise TargetError(
                f"the request that is tried before the load ({where}) failed: {trial.outcome}: {trial.detail};"
                f" {_mend(trial, scenario)}; clients.try_first: false loads it all the same"
            )
        elif trial.took_ns >= _SLOW_NS:
            say(f"the first request ({where}) took {duration_text(trial.took_ns)}: the model may be cold")
        found.append(
            TriedFacts(
                server=name, model=model, rows=request.rows, outcome=trial.outcome, took_ns=trial.took_ns
            )
        )
    return tuple(found)


def _tried(request: TrialRequest, attempt: Try, next_timeout_ns: int) -> Trial:
    """The first try that ended ok or rejected, else the last one."""
    trial, spent_ns = attempt(request, 0), 0
    for number in range(1, _MOST_TRIES):
        spent_ns += trial.took_ns if trial.outcome != "timeout" else 0
        is_over = trial.outcome in ("ok", "rejected") or trial.detail.startswith("connect: ")
        if is_over or spent_ns >= _TRIES_NS or (trial.outcome == "timeout" and number > 1):
            return trial
        trial = attempt(replace(request, timeout_ns=next_timeout_ns), number)
    return trial


def _requests(
    scenario: Scenario, plan: Plan | ClosedPlan, endpoints: Mapping[str, Endpoint]
) -> list[tuple[str, str, TrialRequest]]:
    """Server, model and request of each."""
    specs = specs_of(endpoints.values())
    refuse_no_sequences(scenario, specs)
    streams = stream_rule(scenario, specs)
    targets = {target.name: target for target in targets_of(scenario, endpoints)}
    headers = headers_of(scenario)
    found = []
    for one, codes in zip(scenario.models, sendable(scenario, plan), strict=True):
        for name, endpoint in endpoints.items():
            spec = endpoint.spec_of(one.model.name)
            if spec is None or not codes.size:
                continue
            kind = MadeRequests if one.clients.data is None else GivenRequests
            kinds: dict[frozenset[str], TrialRequest] = {}
            for rows, _, inputs in islice(kind(one, codes[:_LOOKED_AT], spec, streams).read(), _LOOKED_AT):
                kinds.setdefault(
                    frozenset(inputs),
                    TrialRequest(
                        replace(targets[name], shared_memory=None),
                        replace(wire_of(one, streams), headers=headers),
                        asked_of(one, spec),
                        inputs,
                        rows,
                        scenario.clients.sequences is not None,
                        max(scenario.server.start_timeout_ns, scenario.clients.timeout_ns),
                    ),
                )
            found += [(name, one.model.name, request) for request in islice(kinds.values(), _MOST_KINDS)]
    return found


def _mend(trial: Trial, scenario: Scenario) -> str:
    """What helps."""
    detail = trial.detail
    if detail.startswith("connect: "):
        key = "server.grpc_port" if scenario.clients.protocol == "grpc" else "server.url"
        return f"see that the server takes connections where the load goes ({key})"
    if trial.outcome == "timeout":
        return "server.start_timeout says how long is waited for it; see the server's log"
    if "Stub process" in detail:  # the model's Python process has ended
        return "see the server's log"
    if _REFUSED.match(detail):
        return HEADERS_MEND
    if trial.outcome == "server_error" and _MALFORMED.match(detail):
        return "clients.inputs, clients.data and model.shapes say what a request holds (docs/scenario.md)"
    if trial.outcome == "bad_reply":
        return "see that what answers there is the model whose configuration the server tells"
    return "see the server's log"
