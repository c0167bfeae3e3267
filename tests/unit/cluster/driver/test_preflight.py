"""What needs no Ray is checked before it: server, model and payload of a URL; repository and ports of a local one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squall.cluster.driver.preflight
import squall.cluster.driver.run
from squall.actors.net.access import PLAIN
from squall.cluster.driver.preflight import check_before_ray
from squall.cluster.driver.run import run_scenario
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.endpoint import Endpoint, ServedModel
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, TargetError
from squall.scenarios.plan.drafting import plan_closed, plan_scenario
from squall.scenarios.run_plan import plan_run


def scenario(arrivals: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    load = arrivals or {"kind": "constant", "rate": "10/s"}
    mapping = {
        "name": "small", "seed": 1, "model": {"name": "mine", "max_batch_size": 8},
        "server": {"url": "http://127.0.0.1:9"}, "clients": {"rows": {"kind": "constant", "value": 5}},
        "phases": [
            {"name": "main", "kind": "measure", "duration": "1s", "arrivals": load},
            {"name": "end", "kind": "drain", "duration": "1s"},
        ],
        **changes,
    }  # fmt: skip
    return scenario_from_mapping(mapping, "test")


def served(monkeypatch: pytest.MonkeyPatch, most_rows: int, dims: tuple[int, ...] = (4,)) -> None:
    tensors = (TensorSpec("INPUT", "FP32", dims),)
    spec = ModelSpec("mine", "1", tensors, tensors, most_rows)
    endpoint = Endpoint(
        "http://127.0.0.1:9", PLAIN, 8001, None, "url", "2.51.0", (ServedModel(spec),), has_records=False
    )
    monkeypatch.setattr(squall.cluster.driver.preflight, "attach", lambda *_: endpoint)


CLOSED = {"kind": "closed", "users": 2}


@pytest.mark.parametrize("arrivals", [None, CLOSED])
def test_rows_that_the_model_does_not_take_are_refused(
    monkeypatch: pytest.MonkeyPatch, arrivals: dict[str, Any] | None
) -> None:
    one = scenario(arrivals)
    plan = plan_closed(one) if arrivals else plan_scenario(one)
    served(monkeypatch, 8)
    check_before_ray(one, plan, is_local=False)
    served(monkeypatch, 4)
    with pytest.raises(ScenarioError, match="5 rows, but model mine takes at most 4"):
        check_before_ray(one, plan, is_local=False)


def test_the_data_of_each_of_several_models_is_held_to_its_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    np.save(tmp_path / "INPUT.npy", np.ones((20, 4), np.float32))
    data = {"path": str(tmp_path / "INPUT.npy")}
    models = [
        {"name": "mine", "data": data, "max_batch_size": 8},
        {"name": "other", "data": data, "max_batch_size": 8},
    ]
    mapping = {key: value for key, value in scenario().to_mapping().items() if key != "model"}
    one = scenario_from_mapping({**mapping, "models": models}, "test")
    tensors = (TensorSpec("INPUT", "FP32", (4,)),)
    mine = ModelSpec("mine", "1", tensors, tensors, 8)

    def serve(other: ModelSpec) -> None:
        served = Endpoint(
            "http://127.0.0.1:9",
            PLAIN,
            8001,
            None,
            "url",
            "2.51.0",
            (ServedModel(mine), ServedModel(other)),
            False,
        )
        monkeypatch.setattr(squall.cluster.driver.preflight, "attach", lambda *_: served)

    serve(replace(mine, name="other"))
    check_before_ray(one, plan_scenario(one), is_local=False)
    serve(replace(mine, name="other", inputs=(*tensors, TensorSpec("MASK", "INT32", (4,)))))
    with pytest.raises(
        ScenarioError, match=r"for input INPUT of model other.*name it in models\.other\.data\.columns"
    ):
        check_before_ray(one, plan_scenario(one), is_local=False)
    serve(replace(mine, name="other", max_batch_size=4))
    with pytest.raises(ScenarioError, match="5 rows, but model other takes at most 4"):
        check_before_ray(one, plan_scenario(one), is_local=False)


def test_a_function_that_knows_the_answers_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "right.py"
    clients = {"check": {"function": f"{path}:right"}}
    one = scenario(server={}, clients=clients, model={"name": "linear_head"})
    plan = plan_scenario(one)
    with pytest.raises(ScenarioError, match=r"right\.py:right: cannot be read: No such file or directory$"):
        check_before_ray(one, plan, is_local=False)
    path.write_text("def right(inputs): return {}")
    check_before_ray(one, plan, is_local=False)


def test_a_size_that_the_model_leaves_open_must_be_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, 8, (-1,))
    one = scenario()
    with pytest.raises(ScenarioError, match=r"model\.shapes\.INPUT"):
        check_before_ray(one, plan_scenario(one), is_local=True)
    stated = scenario(model={"name": "mine", "max_batch_size": 8, "shapes": {"INPUT": [3]}})
    check_before_ray(stated, plan_scenario(stated), is_local=True)


def test_a_header_from_a_variable_that_is_not_set_is_refused() -> None:
    one = scenario(clients={"headers": {"authorization": "${SQUALL_NO_SUCH_VARIABLE}"}})
    with pytest.raises(ScenarioError, match="SQUALL_NO_SUCH_VARIABLE is not set"):
        check_before_ray(one, plan_scenario(one), is_local=True)


def test_a_repository_without_the_model_is_refused_where_the_server_starts_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(squall.cluster.driver.preflight, "free_ports", asked.append)
    one = scenario(server={}, model={"name": "mine", "repository": str(tmp_path), "max_batch_size": 8})
    plan = plan_scenario(one)
    with pytest.raises(TargetError, match="has no model 'mine'"):
        check_before_ray(one, plan, is_local=True)
    check_before_ray(one, plan, is_local=False)  # it may be there on the server's node
    assert asked == []
    (tmp_path / "mine" / "1").mkdir(parents=True)
    check_before_ray(one, plan, is_local=True)
    assert asked == list(one.servers or ())


def test_a_run_whose_server_is_not_there_never_starts_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> object:
        raise TargetError("no Triton is ready at http://127.0.0.1:9: Connection refused")

    def session(*_: object) -> AbstractContextManager[Any]:
        raise AssertionError("a session was begun")

    monkeypatch.setattr(squall.cluster.driver.preflight, "attach", refuse)
    monkeypatch.setattr(squall.cluster.driver.run, "session_at", session)
    with pytest.raises(TargetError, match="no Triton is ready"), Interrupts() as interrupts:
        run_scenario(scenario(), tmp_path, None, interrupts)
    (made,) = tmp_path.iterdir()
    assert '"ABORTED"' in (made / "manifest.json").read_text()


def test_of_locusts_users_only_what_every_request_asks_is_held_to_a_server_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The locustfile may ask no model at all: sizes that nobody states are told where they are needed."""
    (tmp_path / "shop.py").write_text("import locust\n")
    load = {"locust": {"file": str(tmp_path / "shop.py"), "run_time": "1s"}}
    mapping = {
        "name": "n",
        "seed": 1,
        "model": {"name": "mine"},
        "server": {"url": "http://127.0.0.1:9"},
        "load": load,
    }
    served(monkeypatch, 1, (-1,))
    one = scenario_from_mapping(mapping, "test")
    check_before_ray(one, plan_run(one, one.servers), is_local=False)
    other = scenario_from_mapping({**mapping, "clients": {"request": {"outputs": ["logits"]}}}, "test")
    with pytest.raises(ScenarioError, match="logits"):
        check_before_ray(other, plan_run(other, other.servers), is_local=False)
