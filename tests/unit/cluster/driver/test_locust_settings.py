"""What each process of Locust is told, of one server and several, on one node and several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.actors.locust.settings import MASTER, LocustSettings
from squall.actors.net.access import PLAIN
from squall.cluster.driver.locust_settings import locust_settings, user_models
from squall.cluster.node.endpoint import Endpoint, ServedModel
from squall.cluster.placement import Node
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.locust_plan import LocustPlan
from squall.scenarios.run_plan import plan_run

TENSORS = (TensorSpec("INPUT", "FP32", (-1,)),)
NODES = [Node(f"node-{i}", f"id-{i}", f"10.0.0.{i + 1}", 0, i == 0) for i in range(3)]
SPILLS = {node.label: f"/scratch/{node.label}/spill" for node in NODES}


def scenario_of(tmp_path: Path, **changes: Any) -> Scenario:
    (tmp_path / "shop.py").write_text("import locust\n")
    mapping = {
        "name": "n", "seed": 5, "model": {"name": "mine", "shapes": {"INPUT": [3]}},
        "clients": {
            "timeout": "2s", "largest_reply": "1 MiB", "payload_variants": 7, "request": {"parameters": {"tier": "a"}},
        },
        "load": {"locust": {"file": str(tmp_path / "shop.py"), "users": 9, "spawn_rate": 3, "run_time": "4s"}},
        **changes,
    }  # fmt: skip
    return scenario_from_mapping(mapping, "test")


def endpoint(port: int, host: str = "10.0.0.9", model: str = "mine") -> Endpoint:
    spec = ModelSpec(model, "1", TENSORS, TENSORS, 8)
    return Endpoint(
        f"http://{host}:{port}",
        PLAIN,
        port + 1,
        None,
        "url",
        "2.51.0",
        (ServedModel(spec),),
        has_records=False,
    )


def settings(
    scenario: Scenario, endpoints: dict[str, Endpoint], seats: list[Node]
) -> tuple[LocustSettings, list[LocustSettings]]:
    plan = plan_run(scenario, None)
    assert isinstance(plan, LocustPlan)
    return locust_settings("r", scenario, plan, endpoints, seats, SPILLS, {"authorization": "Bearer t"})


def test_master_and_workers_know_their_places_the_plan_and_what_a_triton_user_sends(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path)
    seats = [NODES[1], NODES[2], NODES[1], NODES[2]]
    master, workers = settings(scenario, {"server-0": endpoint(8000)}, seats)
    assert (master.worker, master.name, master.n_workers) == (MASTER, "locust-master", 4)
    assert (master.node, master.address, master.spill_dir) == ("node-1", "10.0.0.2", "/scratch/node-1/spill")
    assert [(one.worker, one.node, one.address, one.spill_dir) for one in workers] == [
        (n, node.label, node.address, SPILLS[node.label]) for n, node in enumerate(seats)
    ]
    for one in (master, *workers):
        assert (one.run, one.seed, one.n_workers, one.timeout_ns) == ("r", 5, 4, 2 * 10**9)
        assert one.largest_reply_bytes == 1_048_576
        assert one.headers == {"authorization": "Bearer t"}
        assert (one.load_end_ns, one.stop_timeout_ns) == (8 * 10**9, 30 * 10**9)
        assert one.files.contents == {"shop.py": b"import locust\n"}
        (target,) = one.targets
        assert (target.name, target.url, target.grpc) == ("server-0", "http://10.0.0.9:8000", "10.0.0.9:8001")
        assert [spec and spec.name for spec in target.specs] == ["mine"]
        (model,) = one.models
        assert (model.name, model.shapes, model.n_variants) == ("mine", {"INPUT": (3,)}, 7)
        assert model.options.parameters == {"tier": "a"}


def test_where_all_of_locust_is_on_one_node_nobody_else_reaches_its_master(tmp_path: Path) -> None:
    master, workers = settings(scenario_of(tmp_path), {"server-0": endpoint(8000)}, [NODES[1], NODES[1]])
    assert {one.address for one in (master, *workers)} == {"127.0.0.1"}


def test_the_users_of_each_worker_have_a_server_in_turn(tmp_path: Path) -> None:
    servers = [{"url": "http://10.0.0.9:8000"}, {"url": "http://other:9000"}]
    endpoints = {"server-0": endpoint(8000), "server-1": endpoint(9000, "[fd00::1]")}
    master, workers = settings(scenario_of(tmp_path, servers=servers), endpoints, [NODES[0]] * 3)
    assert master.host == endpoints["server-0"].url
    assert [one.host for one in workers] == [endpoints[f"server-{n}"].url for n in (0, 1, 0)]
    assert [one.grpc for one in master.targets] == ["10.0.0.9:8001", "[fd00::1]:9001"]


def test_a_model_that_a_server_does_not_serve_has_no_spec_there(tmp_path: Path) -> None:
    models = [
        {"name": "mine", "servers": [0], "shapes": {"INPUT": [3]}},
        {"name": "yours", "servers": [1], "payload_variants": 2},
    ]
    mapping = scenario_of(tmp_path).to_mapping()
    del mapping["model"]
    servers = [{"url": "http://10.0.0.9:8000"}, {"url": "http://10.0.0.9:9000"}]
    scenario = scenario_from_mapping({**mapping, "models": models, "servers": servers, "server": {}}, "test")
    endpoints = {"server-0": endpoint(8000), "server-1": endpoint(9000, model="yours")}
    master, _ = settings(scenario, endpoints, [NODES[0]])
    assert [[spec and spec.name for spec in one.specs] for one in master.targets] == [
        ["mine", None], [None, "yours"]
    ]  # fmt: skip
    assert [(one.name, one.n_variants) for one in user_models(scenario)] == [("mine", 7), ("yours", 2)]


def test_an_output_that_the_model_has_not_is_refused(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, clients={"request": {"outputs": ["logits"]}})
    with pytest.raises(ScenarioError, match="logits"):
        settings(scenario, {"server-0": endpoint(8000)}, [NODES[0]])
