"""What Locust's master and workers are told, from the scenario, its plan and where everything is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from squall.actors.locust.settings import MASTER, LocustSettings
from squall.actors.triton_user.handed import UserModel, UserTarget
from squall.cluster.driver.payload_wires import asked_at, request_options
from squall.cluster.node.endpoint import Endpoint, bracketed
from squall.cluster.placement import Node
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.locust_plan import LocustPlan

_LOOPBACK = "127.0.0.1"


def locust_settings(
    run: str,
    scenario: Scenario,
    plan: LocustPlan,
    endpoints: Mapping[str, Endpoint],
    seats: Sequence[Node],
    spill_dirs: Mapping[str, str],
    headers: Mapping[str, str],
) -> tuple[LocustSettings, list[LocustSettings]]:
    """Those of the master, which has its place on the node of the first worker, and those of each worker.

    `endpoints`: by name of the server, in their order; `seats`: the node of each worker; `spill_dirs`: by label of the
    node; `headers`: with the values of their variables. Raises ScenarioError as `asked_of`.
    """
    servers = list(endpoints.values())
    is_one_node = len(set(seats)) == 1  # nobody else has to reach the master, whose port knows no token
    master = LocustSettings(
        run=run, node=seats[0].label, worker=MASTER, n_workers=len(seats),
        address=_LOOPBACK if is_one_node else seats[0].address, spill_dir=spill_dirs[seats[0].label],
        config=plan.config, files=plan.files, spans=plan.spans, load_end_ns=plan.load_end_ns,
        stop_timeout_ns=plan.stop_timeout_ns, host=servers[0].url,
        targets=user_targets(scenario, endpoints), models=user_models(scenario), seed=scenario.seed,
        headers=dict(headers), timeout_ns=scenario.clients.timeout_ns,
        largest_reply_bytes=scenario.clients.largest_reply_bytes,
    )  # fmt: skip
    workers = [
        replace(
            master, node=node.label, worker=number, address=_LOOPBACK if is_one_node else node.address,
            spill_dir=spill_dirs[node.label], host=servers[number % len(servers)].url,
        )
        for number, node in enumerate(seats)
    ]  # fmt: skip
    return master, workers


def user_targets(scenario: Scenario, endpoints: Mapping[str, Endpoint]) -> tuple[UserTarget, ...]:
    """The servers as a TritonUser sees them. Raises ScenarioError as `asked_of`."""
    models = scenario.models
    return tuple(
        UserTarget(
            name, one.url, f"{bracketed(one.host)}:{one.grpc_port}", tuple(asked_at(model, one) for model in models)
        )
        for name, one in endpoints.items()
    )  # fmt: skip


def user_models(scenario: Scenario) -> tuple[UserModel, ...]:
    """How a TritonUser makes its requests to each model."""
    return tuple(
        UserModel(
            one.model.name, dict(one.model.shapes), one.clients.inputs, request_options(one.clients),
            one.clients.payload_variants,
        )
        for one in scenario.models
    )  # fmt: skip
