"""One worker that asks several models of several servers: these see what the plan says, and its rows say it too."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.targets import TargetSettings, Wire, pack
from squall.actors.load.worker import LoadWorker, ModelRequests, WorkerSettings
from squall.actors.messages.packed import PackWriter
from squall.actors.messages.packed_templates import PackedTemplates
from squall.actors.messages.value_check import ValueRule
from squall.models.made import make_inputs
from squall.models.payload import RequestOptions
from squall.models.spec import TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ClusterError
from squall.scenarios.locust_plan import LocustPlan
from squall.scenarios.model_shares import models_of
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan, codes_by_model, kinds_of
from squall.scenarios.run_plan import plan_run
from tests.golden.driving import SPEC, column, run_worker, settings_of
from tests.golden.test_several_servers import Stub, run_users, stubs

pytestmark = [pytest.mark.usefixtures("way"), pytest.mark.serial]
both_protocols = pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
NAMES = ("dense", "text", "wide")
SPECS = [replace(SPEC, name=name) for name in NAMES[:2]]
SPECS.append(replace(SPEC, name="wide", inputs=(TensorSpec("IN", "INT64", (9,)), *SPEC.inputs)))


CONSTANT = {"kind": "constant", "rate": "600/s"}


def plan_of(
    routing: str = "round-robin", served: Sequence[Any] = (None,) * 3, arrivals: Any = CONSTANT
) -> Plan | ClosedPlan:
    """Half a second of requests of one row to three models of two servers."""
    models = [
        {"name": name, "payload_variants": 2 + n, **({} if servers is None else {"servers": servers})}
        for n, (name, servers) in enumerate(zip(NAMES, served, strict=True))
    ]
    phases = [
        {"name": "m", "kind": "measure", "duration": "500ms", "arrivals": arrivals},
        {"name": "d", "kind": "drain", "duration": "20s"},
    ]
    mapping = {"name": "x", "seed": 3, "models": models, "phases": phases, "servers": {"count": 2}}
    scenario = scenario_from_mapping({**mapping, "clients": {"routing": {"kind": routing}}}, "test")
    plan = plan_run(scenario, scenario.servers)
    assert not isinstance(plan, LocustPlan)
    return plan


def settings_for(
    folder: Path, servers: Sequence[Stub], protocol: str, served: Sequence[Any] = (None,) * 3
) -> WorkerSettings:
    targets = tuple(
        TargetSettings(
            f"server-{n}", "127.0.0.1", one.port,
            tuple(spec if own is None or n in own else None for spec, own in zip(SPECS, served, strict=True)),
        )
        for n, one in enumerate(servers)
    )  # fmt: skip
    made = settings_of(folder, 1, None, 8, protocol=protocol)
    return replace(made, targets=targets, models=(ModelRequests(),) * 3)


def seen_by(servers: Sequence[Stub]) -> dict[int, tuple[str, str]]:
    """By request id: the server that got it, and the model that it asked there."""
    return {
        number: (f"server-{n}", model)
        for n, one in enumerate(servers)
        for number, model in one.seen.models.items()
    }


def told_in(rows: Any) -> dict[Any, tuple[Any, Any]]:
    pairs = zip(column(rows, "target"), column(rows, "request_kind"), strict=True)
    return dict(zip(column(rows, "request_id"), pairs, strict=True))


@both_protocols
@pytest.mark.parametrize("kind", ["round-robin", "least-in-flight"])
def test_each_request_asks_the_model_of_the_plan(protocol: str, kind: str, way: str, tmp_path: Path) -> None:
    plan = plan_of(kind)
    assert isinstance(plan, Plan)

    def look(worker: LoadWorker) -> None:
        assert (worker._lane is not None) == (way == "lane")
        if worker._lane is not None:
            assert all(worker._lane.core.n_done_by(number) > 0 for number in range(2))

    choice: Any = "planned" if kind == "round-robin" else kind
    with ExitStack() as stack:
        servers = stubs(stack, protocol, 2)
        settings = replace(settings_for(tmp_path, servers, protocol), choice=choice)
        rows = run_worker(settings, plan, after=look)
    assert set(column(rows, "outcome")) == {"ok"}
    assert told_in(rows) == seen_by(servers)
    planned = [NAMES[number] for number in models_of(plan.variant, plan.models)]
    assert [model for _, model in told_in(rows).values()] == planned
    assert set(planned) == set(NAMES)


def test_a_server_gets_requests_for_its_own_models_alone(tmp_path: Path) -> None:
    served = ([0], [0, 1], [1])
    plan = plan_of(served=served)
    assert isinstance(plan, Plan)
    with ExitStack() as stack:
        servers = stubs(stack, "http", 2)
        rows = run_worker(settings_for(tmp_path, servers, "http", served), plan)
    assert set(seen_by(servers).values()) == {
        ("server-0", "dense"), ("server-0", "text"), ("server-1", "text"), ("server-1", "wide")
    }  # fmt: skip
    assert told_in(rows) == seen_by(servers)


def test_a_plan_that_asks_a_server_for_a_model_that_it_does_not_serve_is_refused(tmp_path: Path) -> None:
    plan = plan_of()
    with ExitStack() as stack:
        servers = stubs(stack, "http", 2)
        worker = LoadWorker(settings_for(tmp_path, servers, "http", (None, None, [0])), SystemClock())
        with pytest.raises(
            ClusterError, match="the plan sends requests to server-1 for a model that it does not"
        ):
            worker.prepare(plan)


@both_protocols
def test_users_ask_the_models_of_their_steps(protocol: str, tmp_path: Path) -> None:
    plan = plan_of(arrivals={"kind": "closed", "users": 4, "think": {"kind": "constant", "value": "2ms"}})
    assert isinstance(plan, ClosedPlan)
    with ExitStack() as stack:
        servers = stubs(stack, protocol, 2)
        rows = run_users(settings_for(tmp_path, servers, protocol), plan)
    told = told_in(rows)
    assert told == seen_by(servers)
    for user in range(4):
        n = sum(number % 4 == user for number in told)
        assert n
        steps = plan.steps(user, 0)
        planned = [NAMES[int(models_of([next(steps).variant], plan.models)[0])] for _ in range(n)]
        assert [told[4 * index + user][1] for index in range(n)] == planned


@both_protocols
def test_a_user_asks_each_model_at_a_server_that_serves_it(protocol: str, tmp_path: Path) -> None:
    served = ([0], [0, 1], [1])
    plan = plan_of(served=served, arrivals={"kind": "closed", "users": 4})
    assert isinstance(plan, ClosedPlan)
    with ExitStack() as stack:
        servers = stubs(stack, protocol, 2)
        rows = run_users(settings_for(tmp_path, servers, protocol, served), plan)
    told = told_in(rows)
    assert told == seen_by(servers)
    # users 1 and 3 ask `text` at the second of its servers; how often anybody asked, the host decides
    assert {server for server, _ in told.values()} == {"server-0", "server-1"}
    for number, (server, model) in told.items():
        place = {"dense": 0, "text": number % 2, "wide": 1}[model]
        assert server == f"server-{place}"


def test_the_values_of_one_model_may_be_compared_and_those_of_another_not(tmp_path: Path) -> None:
    plan = plan_of()
    assert isinstance(plan, Plan)
    rule = ValueRule(1, 1e-3, 1e-5)
    wrong = {
        (1, variant): {"OUTPUT": np.ones((1, 2), np.float32)}
        for variant in range(plan.models[1].first, plan.models[2].first)
    }
    with ExitStack() as stack:
        servers = stubs(stack, "http", 2)
        settings = settings_for(tmp_path, servers, "http")
        settings = replace(settings, models=(ModelRequests(), ModelRequests(check=rule), ModelRequests()))
        rows = run_worker(settings, plan, answers=wrong)
    kinds, outcomes = column(rows, "request_kind"), column(rows, "outcome")
    assert [outcome == "bad_reply" for outcome in outcomes] == [kind == "text" for kind in kinds]


def files_of(folder: Path, plan: Plan | ClosedPlan, wires: Sequence[Wire]) -> tuple[str, ...]:
    """The requests to each model as a file of the driver's."""
    paths = [folder / f"{name}.packed" for name in NAMES]
    by_model = codes_by_model(plan.kind_codes(), plan.models)
    for path, spec, wire, codes in zip(paths, SPECS, wires, by_model, strict=True):
        writer = PackWriter(path)
        for rows, entry in zip(*(part.tolist() for part in kinds_of(codes)), strict=True):
            pack(writer, spec, wire, (rows, entry), make_inputs(spec, rows, entry, 1))
        writer.close()
    return tuple(map(str, paths))


def test_a_file_is_read_as_the_requests_to_its_model_were_written(tmp_path: Path) -> None:
    plan, as_json = plan_of(), RequestOptions(is_binary=False)
    packed = files_of(tmp_path, plan, [Wire("http"), Wire("http", options=as_json), Wire("http")])
    with ExitStack() as stack:
        settings = settings_for(tmp_path, stubs(stack, "http", 2), "http")
        models = (ModelRequests(), ModelRequests(options=as_json), ModelRequests())
        found = LoadWorker(replace(settings, packed=packed, models=models), SystemClock())._requests(plan)
    assert isinstance(found, PackedTemplates)
    assert [(one.target, one.spec.name, one.is_json) for one in found.samples()] == [
        (target, name, name == "text") for target in range(2) for name in NAMES
    ]
    assert all((b"Inference-Header-Content-Length" in one.head) != one.is_json for one in found)


@pytest.mark.parametrize("arrivals", [CONSTANT, {"kind": "closed", "users": 4}], ids=["open", "closed"])
def test_requests_to_each_model_come_from_its_own_file(tmp_path: Path, way: str, arrivals: Any) -> None:
    """Two servers that serve different models, whose requests were encoded before."""
    served = ([0], [0, 1], [1])
    plan = plan_of(served=served, arrivals=arrivals)
    packed = files_of(tmp_path, plan, [Wire("grpc")] * 3)

    def look(worker: LoadWorker) -> None:
        assert (worker._lane is not None) == (way == "lane")

    with ExitStack() as stack:
        servers = stubs(stack, "grpc", 2)
        settings = replace(settings_for(tmp_path, servers, "grpc", served), packed=packed)
        rows = run_worker(settings, plan, after=look) if isinstance(plan, Plan) else run_users(settings, plan)
    assert set(column(rows, "outcome")) == {"ok"}
    assert told_in(rows) == seen_by(servers)
    planned = [model for _, model in told_in(rows).values()]
    if isinstance(plan, Plan):
        assert planned == [NAMES[number] for number in models_of(plan.variant, plan.models)]
    assert set(planned) == set(NAMES)
    assert {server for server, model in told_in(rows).values() if model == "wide"} == {"server-1"}
    sizes = {model: set[int]() for model in NAMES}
    for model, n_bytes in zip(planned, column(rows, "request_bytes"), strict=True):
        sizes[model].add(cast(int, n_bytes))
    assert min(sizes["wide"]) > max(sizes["dense"]) + 72, "it has nine integers of eight bytes besides"
