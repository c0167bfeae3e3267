"""Which server has which user, which model is meant, and what a server that is asked says."""

from __future__ import annotations

from typing import Any

import pytest

import squall.actors.triton_user.alone
from squall.actors.messages.template import Template
from squall.actors.triton_user.alone import OneServer
from squall.actors.triton_user.handed import Handed, UserModel, UserTarget
from squall.actors.triton_user.payloads import Encode
from squall.actors.triton_user.servers import Servers
from squall.actors.triton_user.shared import Asking, Process, grpc_authority
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.inputs import InputConfig
from squall.scenarios.errors import TargetError
from tests.scripted_control import ScriptedControl

A = ModelSpec("a", "1", (TensorSpec("X", "FP32", (-1, 4)),), (TensorSpec("Y", "FP32", (2,)),), 8)
B = ModelSpec("b", "1", (TensorSpec("Z", "FP32", (4,)),), (TensorSpec("Y", "FP32", (2,)),), 8)
MODELS = (UserModel("a", {}), UserModel("b", {}))


def unused(_: object) -> Encode[Template]:
    """How requests are encoded where none is."""
    nothing: Any = None
    return nothing  # type: ignore[no-any-return]


def target(number: int, *specs: ModelSpec | None) -> UserTarget:
    return UserTarget(f"s{number}", f"http://h{number}:8000", f"h{number}:8001", specs)


THREE = (target(0, A, None), target(1, A, B), target(2, None, B))


def handed(first: int = 0, models: tuple[UserModel, ...] = MODELS) -> Handed:
    return Handed(THREE, models, 0, iter(range(100)).__next__, first_target=first)


def asking(**more: Any) -> Asking:
    return Asking(more.pop("host", None), 8001, 5.0, more.pop("shapes", {}), more.pop("headers", {}))


def test_users_have_the_servers_in_turn_from_the_first_of_their_process_on() -> None:
    process = Process(handed(first=4))
    assert [process.seat() for _ in range(6)] == [1, 2, 0, 1, 2, 0]
    assert Process(None).seat() == 0


def test_a_model_that_the_own_server_lacks_is_asked_of_the_others_in_turn() -> None:
    servers = Servers(THREE, MODELS)
    assert [servers.target_for(0, own) for own in (0, 1)] == [0, 1]
    assert [servers.target_for(1, 0) for _ in range(4)] == [1, 2, 1, 2]
    assert servers.target_for(1, 2) == 2
    nowhere = Servers((target(0, A, None),), MODELS)
    with pytest.raises(ValueError, match="no server has model b"):
        nowhere.target_for(1, 0)


def test_a_reply_is_as_long_as_the_models_of_its_server_can_answer_or_as_the_scenario_says() -> None:
    mib = 1 << 20
    wide = ModelSpec("w", "1", (TensorSpec("X", "FP32", (4,)),), (TensorSpec("Y", "FP32", (mib,)),), 8)
    servers = Servers((target(0, A, wide), target(1, A, None)), MODELS)
    assert [servers.largest_reply_of(0, is_binary) for is_binary in (True, False)] == [80 * mib, 272 * mib]
    assert servers.largest_reply_of(1, True) == 17 * mib
    asked = Servers((target(0),), ask=lambda _: (UserModel("w", {}), wide))
    asked.number_of("w")
    assert asked.largest_reply_of(0, True) == 80 * mib, "without squall too"
    limited = Handed(THREE, MODELS, 0, iter(range(9)).__next__, largest_reply_bytes=7)
    assert Servers.handed(limited, {}).largest_reply_of(0, True) == 7


def test_which_model_is_meant() -> None:
    servers = Servers(THREE, MODELS)
    assert (servers.number_of("a"), servers.number_of("b")) == (0, 1)
    assert Servers((target(0, A),), MODELS[:1]).number_of(None) == 0
    with pytest.raises(ValueError, match="which model"):
        servers.number_of(None)
    with pytest.raises(ValueError, match="no model 'c' is under load, there are a, b"):
        servers.number_of("c")


def test_the_class_states_sizes_that_the_scenario_leaves_open_and_no_others() -> None:
    shapes = {"X": (3, 4), "Z": (9,)}
    assert [one.shapes for one in Servers.handed(handed(), shapes).models] == [{"X": (3, 4)}, {}]
    stated = (UserModel("a", {"X": (7, 4)}), MODELS[1])
    assert Servers.handed(handed(models=stated), shapes).models[0].shapes == {"X": (7, 4)}
    law = InputConfig.model_validate({"sizes": {"kind": "uniform", "low": 1, "high": 4}})
    drawn = (UserModel("a", {}, {"X": law}), MODELS[1])
    assert Servers.handed(handed(models=drawn), shapes).models[0].shapes == {}


def test_users_of_one_protocol_and_class_share_what_is_made_and_others_do_not() -> None:
    process = Process(handed())
    one = process.shared("http", asking(host="http://x:1"), unused)
    assert process.shared("http", asking(host="http://y:1"), unused) is one, "servers are the run's"
    assert process.shared("grpc", asking(), unused) is not one
    keyed = process.shared("http", asking(headers={"k": "v"}), unused)
    assert (keyed is not one, keyed.headers) == (True, {"k": "v"})
    assert one.next_id() + 1 == keyed.next_id() == 1, "ids are of the process"


IO = [
    {"name": "X", "data_type": "TYPE_FP32", "dims": [-1]},
    {"name": "K", "data_type": "TYPE_FP32", "dims": [1]},
]
CONFIG: dict[str, Any] = {"name": "m", "max_batch_size": 8, "input": IO, "output": IO}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of a server with model `m` in versions 1 and 2."""
    answers: dict[str, Any] = {
        "/v2/models/m": {"name": "m", "versions": ["1", "2"]},
        "/v2/models/m/versions/2/config": CONFIG,
        "/v2/repository/index": [{"name": "m", "state": "READY"}, {"name": "old", "state": "UNAVAILABLE"}],
    }
    monkeypatch.setattr(ScriptedControl, "answers", answers, raising=False)
    monkeypatch.setattr(ScriptedControl, "asked", [], raising=False)
    monkeypatch.setattr(squall.actors.triton_user.alone, "Control", ScriptedControl)
    return answers


@pytest.mark.usefixtures("script")
def test_alone_a_server_is_asked_once_for_each_model() -> None:
    process = Process(None)
    told = asking(host="http://h:1/", shapes={"X": (3,), "K": (9,)})
    shared = process.shared("http", told, unused)
    servers = shared.servers
    assert ScriptedControl.asked == [], "before it is needed"
    assert [servers.number_of("m"), servers.number_of("m"), servers.number_of(None)] == [0, 0, 0]
    assert len([path for path in ScriptedControl.asked if path.endswith("config")]) == 2
    n_asked = len(ScriptedControl.asked)
    assert servers.number_of(None) == 0
    assert len(ScriptedControl.asked) == n_asked
    assert servers.spec_of(0, 0) == ModelSpec.from_config(CONFIG, "2")
    assert servers.models == [UserModel("m", {"X": (3,)})], "a stated size is not the class's to state"
    assert (servers.targets[0].url, servers.targets[0].grpc) == ("http://h:1", "h:8001")
    assert [shared.next_id(), shared.next_id()] == [0, 1]


def test_alone_what_a_server_does_not_say_is_told(script: dict[str, Any]) -> None:
    server = OneServer("http://h:1", {}, {})
    with pytest.raises(
        TargetError, match="http://h:1 says nothing of model 'n' that squall reads: status 404"
    ):
        server.ask("n")
    script["/v2/repository/index"].append({"name": "n", "state": "READY"})
    with pytest.raises(TargetError, match="which model\\? http://h:1 has m, n"):
        server.ask(None)
    script["/v2/repository/index"] = []
    with pytest.raises(TargetError, match="http://h:1 lists no model that is ready"):
        server.ask(None)
    script["/v2/models/m/versions/2/config"] = CONFIG | {"model_transaction_policy": {"decoupled": True}}
    with pytest.raises(TargetError, match="model m answers response by response"):
        server.ask("m")


@pytest.mark.parametrize("url", ["", "h:8000", "ftp://h", "http://"])
def test_alone_a_host_that_is_no_url_is_told_at_the_start(url: str) -> None:
    with pytest.raises(TargetError, match="is not the URL of a server's HTTP port"):
        Process(None).shared("http", asking(host=url), unused)


def test_the_grpc_port_is_that_of_the_same_host() -> None:
    assert grpc_authority("http://h:8000", 8001) == "h:8001"
    assert grpc_authority("http://[::1]:8000", 8001) == "[::1]:8001"
    assert grpc_authority("nothing", 8001) == ""
