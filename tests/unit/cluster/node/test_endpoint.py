"""What is asked of a running server, by a server that answers from a script."""

from __future__ import annotations

import socket
from typing import Any

import pytest

import squall.cluster.node.endpoint
from squall.actors.net.stream import Address
from squall.actors.net.triton_control import ControlError
from squall.actors.net.triton_models import latest
from squall.cluster.node.endpoint import attach
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import TargetError
from tests.scripted_control import ScriptedControl

READY, LIVE, INDEX, CONFIG = "/v2/health/ready", "/v2/health/live", "/v2/repository/index", "/config"
IO = [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [4]}]
MODEL: dict[str, Any] = {"name": "vers", "max_batch_size": 8, "input": IO, "output": IO}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[ScriptedControl]:
    """A server with versions 2, 9 and 10 of the model `vers` ready, and another model."""
    ScriptedControl.asked = []
    ScriptedControl.answers = {
        READY: {}, "/v2": {"version": "2.51.0"}, "/v2/models/vers/ready": {},
        "/v2/models/vers": {"name": "vers", "versions": ["2", "10", "9"]},
        INDEX: [
            *({"name": "vers", "version": version, "state": "READY"} for version in ("2", "9", "10")),
            {"name": "opt", "version": "1", "state": "READY"},
        ],
    }  # fmt: skip
    for version in ("2", "9", "10"):
        path = f"/v2/models/vers/versions/{version}"
        ScriptedControl.answers |= {f"{path}/ready": {}, f"{path}/config": MODEL}
    monkeypatch.setattr(squall.cluster.node.endpoint, "Control", ScriptedControl)
    return ScriptedControl


def attached(version: str | None = None, name: str = "vers", **ports: int) -> Any:
    model = ModelConfig(name=name, version=version)
    return attach([model], ServerConfig(url="http://h:8000", **ports))


@pytest.mark.parametrize(("given", "served"), [(None, "10"), ("2", "2")])
def test_the_latest_version_is_taken_unless_another_is_named(
    server: type[ScriptedControl], given: str | None, served: str
) -> None:
    assert attached(given).models[0].spec.version == served
    configs = [path for path in server.asked if "/versions/" in path and path.endswith("/config")]
    assert configs == [f"http://h:8000/v2/models/vers/versions/{served}/config"]


def test_models_that_answer_after_their_execution_are_told_whoever_asks_them(
    server: type[ScriptedControl],
) -> None:
    """The model under load, a step, a model that it may ask; of another that is gone, or says it oddly, nothing."""
    policy: dict[str, Any] = {"model_transaction_policy": {"decoupled": True}}
    odd: dict[str, Any] = {"model_transaction_policy": True}
    for name, config in {"opt": policy, "step": policy, "odd": odd}.items():
        server.answers[f"/v2/models/{name}/config"] = {"name": name, **config}
    server.answers["/v2/models/whole/config"] = {
        "name": "whole",
        "model_transaction_policy": {"decoupled": False},
    }
    server.answers[INDEX] += [{"name": name, "state": "READY"} for name in ("odd", "gone", "whole")]
    server.answers[INDEX] += [{"name": "step"}]
    assert attached().decoupled == ("opt",)
    ensemble = {**MODEL, **policy, "ensemble_scheduling": {"step": [{"model_name": "step"}]}}
    server.answers["/v2/models/vers/versions/10/config"] = ensemble
    assert attached().decoupled == ("opt", "step", "vers")
    server.answers[INDEX] = {"not": "a list"}
    assert attached().decoupled == ("step", "vers")
    del server.answers[INDEX]
    assert attached().decoupled == ("step", "vers")


def test_steps_are_told_in_their_order_and_as_often_as_a_request_passes_them(
    server: type[ScriptedControl],
) -> None:
    """Also those of an ensemble that is a step."""

    def of(*steps: str) -> dict[str, Any]:
        return {**MODEL, "ensemble_scheduling": {"step": [{"model_name": name} for name in steps]}}

    for name, config in {"inner": of("a", "b"), "a": MODEL, "b": MODEL}.items():
        server.answers[f"/v2/models/{name}/config"] = config
    server.answers["/v2/models/vers/versions/10/config"] = of("inner", "b", "a")
    assert attached().models[0].steps == ("a", "b", "b", "a")


def steps_of(*steps: str) -> dict[str, Any]:
    return {**MODEL, "ensemble_scheduling": {"step": [{"model_name": name} for name in steps]}}


def test_a_step_is_asked_once_however_often_it_is_passed(server: type[ScriptedControl]) -> None:
    for number in range(5):  # a request passes the last 32 times
        server.answers[f"/v2/models/s{number}/config"] = steps_of(f"s{number + 1}", f"s{number + 1}")
    server.answers["/v2/models/s5/config"] = MODEL
    server.answers["/v2/models/vers/versions/10/config"] = steps_of("s0")
    assert attached().models[0].steps == ("s5",) * 32
    assert len([path for path in server.asked if path.endswith("/s5/config")]) == 1


def test_steps_without_end_are_refused(server: type[ScriptedControl]) -> None:
    server.answers["/v2/models/round/config"] = steps_of(*["round"] * 10)
    server.answers["/v2/models/vers/versions/10/config"] = steps_of("round")
    assert refusal().endswith("an ensemble ends in more than 1,000 steps")
    assert len(server.asked) < 20


def test_a_server_that_no_longer_answers_is_not_asked_on(
    server: type[ScriptedControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the time for all that is asked is over."""
    server.answers[INDEX] = [{"name": f"m{number}", "state": "READY"} for number in range(1_000)]
    ask = server.ask_json

    def asked(self: ScriptedControl, path: str, *others: str) -> Any:
        if path.startswith("/v2/models/m"):
            server.asked.append(path)
            raise ControlError("timed out")
        return ask(self, path, *others)

    monkeypatch.setattr(server, "ask_json", asked)
    assert refusal() == "http://h:8000 does not answer like a Triton server: timed out"
    assert len([path for path in server.asked if path.startswith("/v2/models/m")]) == 1


def test_a_model_that_names_no_version_is_no_triton(server: type[ScriptedControl]) -> None:
    server.answers["/v2/models/vers"] = {"name": "vers", "versions": []}
    with pytest.raises(TargetError, match="names no version of itself"):
        attached()
    assert latest({"versions": ["9", "10"]}) == "10"


def refusal(**which: Any) -> str:
    with pytest.raises(TargetError) as caught:
        attached(**which)
    return str(caught.value)


def test_a_server_that_calls_itself_not_ready_is_there_while_it_is_live(
    server: type[ScriptedControl],
) -> None:
    """As a Triton does of which another model did not load; the model under load is asked itself."""
    del server.answers[READY]
    assert refusal() == "no Triton is ready at http://h:8000: status 404"
    server.answers[LIVE] = {}
    assert attached().models[0].spec.version == "10"
    del server.answers["/v2/models/vers/ready"]
    assert refusal().startswith("model 'vers' is not ready at http://h:8000: status 404; ")


def test_only_a_refusal_is_told_as_one(server: type[ScriptedControl]) -> None:
    server.answers[READY] = 401  # by a gateway that asks for a header there, and lets the rest through
    server.answers["/v2/models/vers"] = {"name": "vers", "versions": []}
    assert refusal().startswith("http://h:8000 does not answer like a Triton server: ")
    server.answers["/v2/models/vers"] = 500
    assert refusal() == "http://h:8000 does not answer like a Triton server: status 500"
    server.answers |= dict.fromkeys(("/v2/models/vers", INDEX), 401)
    assert refusal().startswith("http://h:8000 refuses who asks: metadata of model vers, ")
    server.answers["/v2/models/vers/versions/2/config"] = 403
    assert refusal(version="2").startswith(
        "http://h:8000 refuses who asks: configuration and metadata of model vers: status 403; "
    )


@pytest.mark.usefixtures("server")
def test_a_missing_version_is_not_listed_as_a_model_that_is_there() -> None:
    assert refusal(version="3") == (
        "model 'vers' version 3 is not ready at http://h:8000: status 404; of it, it has version 2 READY; version 9"
        " READY; version 10 READY"
    )


def test_a_missing_model_is_told_which_others_are_ready_and_never_itself(
    server: type[ScriptedControl],
) -> None:
    assert refusal(name="ver").endswith("'ver' is not ready at http://h:8000: status 404; it has opt, vers")
    failed = {"name": "vers", "version": "1", "state": "UNAVAILABLE", "reason": "no such file"}
    server.answers[INDEX] = [failed, {"name": "opt", "state": "READY"}, {"name": "cold"}]
    del server.answers["/v2/models/vers/ready"]
    assert refusal().endswith(
        "status 404; the model is known there, but version 1 UNAVAILABLE (no such file); it has opt"
    )
    server.answers[INDEX] = [{"name": "vers"}]
    assert refusal().endswith("but not loaded; it has no models that are ready")
    del server.answers[INDEX]
    assert refusal() == "model 'vers' is not ready at http://h:8000: status 404"


def test_a_name_that_a_url_escapes_is_told_where_the_server_does_not_find_it(
    server: type[ScriptedControl],
) -> None:
    """As Triton 2.51 does, which takes a URL as it is written."""
    server.answers[INDEX] = [{"name": "my model", "version": "1", "state": "READY"}]
    assert "it has version 1 READY, and a Triton that takes a URL as it is written finds" in refusal(
        name="my model"
    )


def test_the_metrics_port_beside_a_url_is_used(server: type[ScriptedControl]) -> None:
    server.answers["/metrics"] = {}
    assert attached(metrics_port=9002).metrics_url == "http://h:9002"
    assert server.asked[0] == "http://h:9002/metrics"
    assert attached().metrics_url is None


def test_a_metrics_port_where_no_metrics_are_is_refused(server: type[ScriptedControl]) -> None:
    assert (
        refusal(metrics_port=9002) == "server.metrics_port: no metrics at http://h:9002/metrics: status 404"
    )
    assert server.asked == ["http://h:9002/metrics"]


def test_each_model_under_load_is_known_by_its_name(server: type[ScriptedControl]) -> None:
    server.answers |= {
        "/v2/models/pipe": {"versions": ["1"]}, "/v2/models/pipe/ready": {},
        "/v2/models/pipe/versions/1/config": {
            "name": "pipe", "ensemble_scheduling": {"step": [{"model_name": "step"}]},
        },
        "/v2/models/step/config": {"name": "step"},
    }  # fmt: skip
    models = [ModelConfig(name="vers"), ModelConfig(name="pipe")]
    endpoint = attach(models, ServerConfig(url="http://h:8000"))
    assert [(one.spec.name, one.spec.version, one.steps) for one in endpoint.models] == [
        ("vers", "10", ()), ("pipe", "1", ("step",))
    ]  # fmt: skip
    assert endpoint.spec_of("pipe") == endpoint.models[1].spec
    assert endpoint.spec_of("other") is None
    with pytest.raises(TargetError, match="model 'gone' is not ready at"):
        attach([ModelConfig(name="vers"), ModelConfig(name="gone")], ServerConfig(url="http://h:8000"))


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("hosts", "dead", "told"),
    [
        (["10.0.0.1"], [], ""),
        (["::1", "127.0.0.1"], [], ""),  # localhost, or one pod of a dual-stack service
        (["10.0.0.1", "10.0.0.2"], ["10.0.0.2"], ""),
        (["10.0.0.1", "10.0.0.2"], [], "2 servers answer to the name in http://h:8000: 10.0.0.1:8000"),
        (["fd00::1", "fd00::2", "fd00::3"], ["fd00::3"], "2 servers answer to the name"),
        (["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"], [], "at least 2 servers answer to the name"),
    ],
)
def test_addresses_of_one_family_are_servers_and_those_of_two_may_be_one(
    monkeypatch: pytest.MonkeyPatch,
    hosts: list[str],
    dead: list[str],
    told: str,
) -> None:
    def connected(address: tuple[str, int], _timeout_s: float) -> socket.socket:
        if address[0] in dead:
            raise ConnectionRefusedError
        return socket.socket()

    addresses = [Address(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, 8_000)) for host in hosts]
    monkeypatch.setattr(Address, "resolve_all", lambda *_: tuple(addresses))
    monkeypatch.setattr(socket, "create_connection", connected)
    found = attached()
    assert (found.told_servers if found.servers else "").startswith(told)
    assert bool(found.servers) == bool(told)
    assert found.has_statistics == (not told)
