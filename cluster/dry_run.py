"""What a run would do, without doing it: who is where, what each sends and records, the room that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from squall.analysis.record import to_json
from squall.analysis.storage.manifest import DataFacts, PlanFacts
from squall.analysis.storage.schema import arrow_schema
from squall.analysis.wording import count_text, share_text
from squall.cluster.driver.client_workers import seats_of
from squall.cluster.driver.intent import describe_plan, refuse_empty, trace_notes, users_text
from squall.cluster.driver.payload_packing import (
    Codes,
    GivenRequests,
    check_without_spec,
    one_spec,
    sendable,
)
from squall.cluster.driver.payload_wires import asked_of
from squall.cluster.driver.preflight import (
    may_be_asked,
    refuse_asked,
    refuse_no_answers,
    refuse_payloads,
    server_addresses,
)
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.endpoint import Endpoint, access_of, attach
from squall.cluster.placement import Node, Placement, place
from squall.cluster.remote.session import Session
from squall.models.spec import ModelSpec, TensorSpec, head_of, head_spec
from squall.scenarios.arrays import pieces
from squall.scenarios.config.models import ModelConfig, ModelScenario
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.locust_plan import LocustPlan
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.deal import workers_of
from squall.scenarios.plan.plan import Plan
from squall.scenarios.plan.route import planned_by_server
from squall.scenarios.records import Frozen
from squall.scenarios.run_plan import RunPlan, plan_run, routed

_PLAN_BYTES = 23
"""An arrival in a worker's memory: the columns of `Plan`, with its server."""


class DryRun(Frozen):
    """See `dry_run`. `n_planned`: arrivals, or users of a closed loop; None where workers choose the server, and of
    Locust, which says itself whom users ask. `models`: of several, the share of each and its arrivals, None of a closed
    loop, by phase; `data`: of those models that have some, by name."""

    plan: dict[str, Any]
    servers: tuple[dict[str, Any], ...]
    clients: tuple[dict[str, Any], ...]
    note: str
    data: Mapping[str, DataFacts] = field(default_factory=dict)
    models: tuple[dict[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        data = {name: to_json(facts) for name, facts in self.data.items()}
        return {
            "plan": self.plan,
            "servers": list(self.servers),
            "clients": list(self.clients),
            "note": self.note,
            **({"models": list(self.models)} if self.models else {}),
            **({"data_by_model": data} if self.models and data else {}),
            **({"data": next(iter(data.values()))} if data and not self.models else {}),
        }

    def lines(self) -> list[str]:
        """For the screen."""
        load = self.plan["load"]
        what = "arrivals" if load == "open" else "users"
        n = self.plan["n_users"] if what == "users" else self.plan["n_arrivals"]
        whose = f"{count_text(n)} {what}"
        if load == "locust":
            whose = f"Locust: {users_text(n, self.plan['file'], self.plan['spawn_rate_hz'])},"
        found = [f"plan      {whose} in {self.plan['seconds']:g} s; sha256 {self.plan['sha256'][:12]}"]
        for one in self.models:
            told = [f"{_share_text(own)} of {name}" for name, own in one["phases"].items()]
            served = "" if one["servers"] is None else f"; on {', '.join(one['servers'])}"
            found.append(f"model     {one['name']}: {'; '.join(told)}{served}")
        found += [f"data      of {model}: {_data_text(facts)}" for model, facts in self.data.items()]
        for one in self.servers:
            gpus = "" if one["gpus"] is None else f", GPU {', '.join(map(str, one['gpus']))}"
            origin = one["url"] or f"started by squall, answers on {one['listens']}"
            others = "the locustfile says who asks it" if load == "locust" else "workers choose"
            n_text = f"{count_text(one['n_planned'])} {what}" if one["n_planned"] is not None else others
            found.append(f"{one['name']:<9} on {one['node']}{gpus}: {origin}; {n_text}")
        for one in self.clients:
            if one["n_planned"] is None:
                beside = " and the master" if one["has_master"] else ""
                found.append(f"clients   {one['node']}: {one['n_workers']} Locust workers{beside}")
                continue
            sent = f"{count_text(one['n_planned'])} {what}"
            room = f"memory {_room(one['plan_bytes'])} for the plan"
            if one["record_bytes"] is not None:
                room += f", disk up to {_room(one['record_bytes'])} for requests"
            if one["input_bytes"] is not None:
                room += f"; sends {_room(one['input_bytes'])} of inputs"
            found.append(f"clients   {one['node']}: {one['n_workers']} workers, {sent}; {room}")
        return [*found, *([f"note      {self.note}"] if self.note else [])]


def dry_run(scenario: Scenario, ray_address: str | None, interrupts: Interrupts) -> DryRun:
    """Plans the run and places it on the nodes of Ray; starts no server, no worker, and sends nothing.

    Raises what a run raises by then: ScenarioError, TargetError for a server that is not ready, ClusterError.
    """
    entries = scenario.servers
    plan = plan_run(scenario, entries)
    facts = describe_plan(plan)
    refuse_empty(facts)
    addresses = server_addresses(scenario)
    with interrupts.allowed():
        endpoints = [
            attach(scenario.models_at(f"server-{number}"), one, access_of(scenario, one))
            for number, one in enumerate(entries or ())
            if one.url is not None and may_be_asked(scenario, number, one)
        ]
    refuse_no_answers(scenario, is_rehearsed=True)
    by_model: Sequence[Codes] = ()
    if isinstance(plan, LocustPlan):
        for endpoint in endpoints:
            refuse_asked(scenario, endpoint)
    elif endpoints or scenario.has_data:
        by_model = sendable(scenario, plan)
        for endpoint in endpoints:
            refuse_payloads(scenario, by_model, endpoint)
    specs = [_spec(one, endpoints, is_elsewhere=bool(addresses)) for one in scenario.models]
    with interrupts.allowed(), Session(ray_address) as session:
        nodes = session.nodes()
    placement = place(nodes, scenario, addresses)
    if entries is None:
        plan = routed(plan, scenario, [seat.entry for seat in placement.servers])
        facts = describe_plan(plan)
    data = _checked_data(scenario, by_model, endpoints, specs)
    return DryRun(
        plan=_plan_facts(plan, facts),
        servers=_servers(plan, placement),
        clients=_clients(scenario, plan, placement, specs),
        note="; ".join(filter(None, [placement.note, *trace_notes(scenario), *_code_notes(scenario)])),
        data=data,
        models=_models(scenario, plan, [seat.name for seat in placement.servers]),
    )


def _code_notes(scenario: Scenario) -> list[str]:
    """Of all code of others that a run would run, and of models that it would unload."""
    servers, models = scenario.servers or (scenario.server,), scenario.models
    named = [] if scenario.load is None else [scenario.load.locust.file]
    checks = [one.clients.check for one in models]
    named += [check.function for check in checks if check is not None and check.function is not None]
    notes = [f"{one}: its code is not run" for one in named]
    notes += [
        f"image {one.image}: is not run; in a run it has the network and the shared memory of its node"
        for one in servers
        if one.image is not None
    ]
    notes += [
        f"repository {one.model.repository}: the code of its models is not run"
        for one in models
        if one.model.repository is not None and scenario.is_started
    ]
    notes += [
        f"{one.url}: {', '.join(one.control.unload)} would be unloaded"
        for one in servers
        if one.control is not None and one.control.unload
    ]
    return list(dict.fromkeys(notes))


def _spec(one: ModelScenario, endpoints: Sequence[Endpoint], is_elsewhere: bool) -> ModelSpec | None:
    """Of a model, as a server that runs has it, else as a head of the zoo where squall starts the
    servers; None: not known yet."""
    for endpoint in endpoints:
        spec = endpoint.spec_of(one.model.name)
        if spec is not None:
            return asked_of(one, spec)
    return None if is_elsewhere else _head(one.model)


def _models(scenario: Scenario, plan: RunPlan, servers: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Of several models; see `DryRun`."""
    if len(scenario.models) == 1 or isinstance(plan, LocustPlan):  # the locustfile says what is asked
        return ()
    names, served = scenario.model_names, scenario.served_at(len(servers))
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "servers": None if len(own) == len(servers) else [servers[i] for i in own],
            "phases": {},
        }
        for name, own in zip(names, served, strict=True)
    ]
    n_of = None if isinstance(plan, ClosedPlan) else _by_phase_and_model(plan)
    for index, phase in enumerate(scenario.phases):
        if phase.arrivals is None:
            continue
        shares = scenario.shares_of(phase)
        for number, one in enumerate(found):
            n = None if n_of is None else int(n_of[index, number])
            one["phases"][phase.name] = {"share": shares[number] / sum(shares), "n_planned": n}
    return tuple(found)


def _by_phase_and_model(plan: Plan) -> NDArray[np.int64]:
    """Arrivals, (phases, models)."""
    shape = len(plan.spans), len(plan.models)
    found = np.zeros(shape[0] * shape[1], np.int64)
    for piece in pieces(len(plan)):
        places = plan.phase[piece].astype(np.int64) * shape[1] + models_of(plan.variant[piece], plan.models)
        found += np.bincount(places, minlength=found.size)
    return found.reshape(shape)


def _share_text(own: dict[str, Any]) -> str:
    n = own["n_planned"]
    return share_text(own["share"]) + ("" if n is None else f" ({count_text(n)} arrivals)")


def _checked_data(
    scenario: Scenario,
    by_model: Sequence[Codes],
    endpoints: Sequence[Endpoint],
    heads: Sequence[ModelSpec | None],
) -> dict[str, DataFacts]:
    """All of the user's data that can be sent, by model, held to it where it is known: from a server that runs, or from
    `heads`, one for each model; `by_model`: see `sendable`."""
    if not scenario.has_data:
        return {}
    found = {}
    for one, codes, head in zip(scenario.models, by_model, heads, strict=True):
        if one.clients.data is None:
            continue
        served = [endpoint.spec_of(one.model.name) for endpoint in endpoints]
        known = [spec for spec in served if spec is not None] or ([head] if head is not None else [])
        if known:
            found[one.model.name] = GivenRequests(one, codes, one_spec(one, known)).check()
        else:
            found[one.model.name] = check_without_spec(one, codes)
    return found


def _data_text(data: DataFacts) -> str:
    return f"{data.path}: {data.format}, {count_text(data.n_entries)} entries; sha256 {data.sha256[:12]}"


def _head(model: ModelConfig) -> ModelSpec | None:
    """Of a head of the zoo; another model is known when its server is there."""
    if model.repository is not None:
        return None
    return head_spec(
        model.name, model.version or "1", head_of(model.name).sizes(model.settings), model.max_batch_size
    )


def _plan_facts(plan: RunPlan, facts: PlanFacts) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if isinstance(plan, LocustPlan):
        own = {"file": plan.config.file, "spawn_rate_hz": plan.config.spawn_rate}
    return {
        "load": facts.load, "n_arrivals": facts.n_arrivals, "n_users": facts.n_users, "sha256": facts.sha256,
        "seconds": plan.spans[-1].end_ns / 1e9, **own,
    }  # fmt: skip


def _servers(plan: RunPlan, placement: Placement) -> tuple[dict[str, Any], ...]:
    n_servers = len(placement.servers)
    known = None if isinstance(plan, LocustPlan) else planned_by_server(plan, n_servers)
    planned: Sequence[int | None] = known or (None,) * n_servers
    return tuple(
        {
            "name": seat.name, "node": seat.node.label if seat.is_here else "no node of the cluster",
            "gpus": seat.entry.gpus, "url": seat.entry.url, "n_planned": n,
            "listens": seat.node.address if seat.entry.listen == "cluster" else "loopback",
        }
        for seat, n in zip(placement.servers, planned, strict=True)
    )  # fmt: skip


def _clients(
    scenario: Scenario, plan: RunPlan, placement: Placement, specs: Sequence[ModelSpec | None]
) -> tuple[dict[str, Any], ...]:
    seats = seats_of(scenario.clients, placement)
    if isinstance(plan, LocustPlan):
        return _locust_clients(seats)
    n_of, rows_of = _shares(plan, len(seats))
    per_row = [_row_bytes(one, spec) for one, spec in zip(scenario.models, specs, strict=True)]
    is_open = isinstance(plan, Plan)
    found = []
    for node in dict.fromkeys(seats):
        mine = [index for index, seat in enumerate(seats) if seat == node]
        n, rows = sum(n_of[index] for index in mine), rows_of[mine].sum(axis=0).tolist()
        n_bytes = [None if size is None else count * size for count, size in zip(rows, per_row, strict=True)]
        is_known = is_open and None not in n_bytes
        found.append({
            "node": node.label, "n_workers": len(mine), "n_planned": n,
            "plan_bytes": n * _PLAN_BYTES,
            "record_bytes": n * _record_bytes() if is_open else None,
            "input_bytes": round(sum(one or 0 for one in n_bytes)) if is_known else None,
        })  # fmt: skip
    return tuple(found)


def _locust_clients(seats: Sequence[Node]) -> tuple[dict[str, Any], ...]:
    """With the master on the first node; what users send and record is known in the run."""
    return tuple(
        {
            "node": node.label, "n_workers": seats.count(node), "n_planned": None, "plan_bytes": None,
            "record_bytes": None, "input_bytes": None, "has_master": node == seats[0],
        }
        for node in dict.fromkeys(seats)
    )  # fmt: skip


def _row_bytes(one: ModelScenario, spec: ModelSpec | None) -> float | None:
    """Of all inputs of a row to a model; None where that is not fixed, or not known."""
    request = one.clients.request
    if spec is None or (request is not None and not request.binary):
        return None
    sizes = [_mean_bytes(one, tensor) for tensor in spec.inputs]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _mean_bytes(one: ModelScenario, tensor: TensorSpec) -> float | None:
    """Of an input for each row, over the requests that carry it and those that do not."""
    how, n_bytes = (one.clients.inputs or {}).get(tensor.name), tensor.n_bytes(1)
    share = 1.0 if how is None or how.present is None else how.present
    return None if n_bytes is None else share * n_bytes


def _shares(plan: Plan | ClosedPlan, n_workers: int) -> tuple[Sequence[int], NDArray[np.int64]]:
    """Arrivals (or users) of each worker, and the rows of their requests by model, (workers, models)."""
    n_models = len(plan.models)
    n_of, rows_of = np.zeros(n_workers, np.int64), np.zeros((n_workers, n_models), np.int64)
    if isinstance(plan, ClosedPlan):
        n_of += np.bincount(plan.users % n_workers, minlength=n_workers)
        return n_of.tolist(), rows_of
    for piece in pieces(len(plan)):
        affinity = None if plan.affinity is None else plan.affinity[piece]
        workers = workers_of(plan.deal, plan.seq[piece], affinity, n_workers)
        n_of += np.bincount(workers, minlength=n_workers)
        places = workers * n_models + models_of(plan.variant[piece], plan.models)
        rows_of += np.bincount(places, plan.rows[piece], rows_of.size).astype(np.int64).reshape(rows_of.shape)
    return n_of.tolist(), rows_of


def _record_bytes() -> int:
    """Of a row of `requests` in a spill file: its columns as Arrow lays them out, without what compresses them."""
    return sum(
        (field.type.index_type if pa.types.is_dictionary(field.type) else field.type).bit_width // 8
        for field in arrow_schema("requests")
    )


def _room(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:.1f} KiB"
