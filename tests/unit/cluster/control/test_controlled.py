"""A run's hold on the models of a server that runs already: what is told beforehand, what is kept, and the logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from squall.actors.net.access import PLAIN
from squall.cluster.control.changes import changed_config
from squall.cluster.control.controlled import Controlled, log_of, refuse_control, told_by_watches, where_of
from squall.cluster.control.repository import Repository
from squall.cluster.control.watch import put_back
from squall.scenarios.config.servers import LoadSettings, ServerConfig
from squall.scenarios.errors import TargetError
from tests.unit.cluster.control.explicit_server import ExplicitServer

CONFIGS = {name: {"name": name, "max_batch_size": 8} for name in "abc"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ExplicitServer:
    """With `a` ready, whoever connects to whatever address."""
    found = ExplicitServer(dict(CONFIGS), ("a",))
    monkeypatch.setattr("squall.cluster.control.watch.Control", lambda *_: found)
    return found


def config_of(**control: Any) -> ServerConfig:
    return ServerConfig.model_validate({"url": "http://h:1/", "control": control})


@pytest.mark.parametrize(
    ("models", "control", "is_as_it_will_be"),
    [
        (("a",), {}, True),
        (("a",), {"load": ["a", "b"]}, True),
        (("a",), {"load": {"a": {"instances": 2}}}, False),
        (("b",), {}, False),
        (("a", "b"), {}, False),
    ],
)
def test_a_model_is_asked_about_before_the_run_where_it_is_as_the_run_has_it(
    server: ExplicitServer, models: tuple[str, ...], control: dict[str, Any], is_as_it_will_be: bool
) -> None:
    config = config_of(**control)
    assert config.control is not None
    assert refuse_control(config.control, models, config, PLAIN) == is_as_it_will_be
    assert server.calls == []


@pytest.mark.usefixtures("server")
def test_what_cannot_be_loaded_is_told_before_the_run() -> None:
    config = config_of(load=["d"])
    assert config.control is not None
    with pytest.raises(TargetError, match="has no model 'd' in its repository"):
        refuse_control(config.control, ["a"], config, PLAIN)


def test_what_is_to_be_kept_is_neither_put_back_nor_watched(server: ExplicitServer, tmp_path: Path) -> None:
    config = config_of(unload=["a"], after="keep")
    assert config.control is not None
    held = Controlled(config.control, where_of(config, PLAIN), log_of(tmp_path, "server-0"))
    held.begin(["b"], lambda _: None)
    assert held.restore() == []
    assert (list(server.loaded), held.facts.unloaded, held.facts.is_restored) == (["b"], ("a",), None)
    assert list(tmp_path.iterdir()) == []


def test_a_watch_puts_back_what_it_was_told_last(server: ExplicitServer) -> None:
    where = {
        "url": "https://h:1",
        "access": {"tls": {"ca": "ca.pem"}, "headers": {"a": "b"}},
        "timeout_s": 1.0,
    }
    ready = {"a": ["1"]}
    server.loaded = {"b": dict(CONFIGS["b"])}
    assert put_back([where, {"ready": ready}, {"ready": ready, "configs": {}, "touched": ["a", "b"]}]) == []
    assert list(server.loaded) == ["a"]
    server.broken = {"c"}
    (first, second) = put_back([where, {"ready": {"c": ["1"]}, "touched": ["c"]}]) or []
    assert first == "server.control: https://h:1 does not load 'c': failed to load 'c', no such luck"
    assert second == "model c had version 1 ready before and has no version ready now"


def test_logs_of_watches_are_told_by_server(tmp_path: Path) -> None:
    assert told_by_watches(tmp_path) == []
    for name in ("server-1", "server-0"):
        log = log_of(tmp_path, name)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"of {name}\n")
    (tmp_path / "logs" / "server-0.log").write_text("Triton's own")
    assert told_by_watches(tmp_path) == ["server-0: of server-0", "server-1: of server-1"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ([{"model_name": f"n{{}}-{number}"} for number in range(2)], "more than 1,000 steps"),
        ([{"model_name": 5}], "one of a model that has no name"),
        ("abc", "no list of models"),
    ],
)
def test_steps_of_an_ensemble_have_an_end(steps: Any, why: str) -> None:
    asked = []

    class Growing:
        def ask_json(self, path: str) -> Any:
            asked.append(path)
            named = json.loads(json.dumps(steps).replace("{}", str(len(asked))))
            return {"ensemble_scheduling": {"step": named}}

    with pytest.raises(TargetError, match=why):
        Repository(Growing(), "s", 1.0).steps("m")  # type: ignore[arg-type]
    assert len(asked) < 1_000


@pytest.mark.parametrize("entry", [5, {"name": 5}, {"name": "../x"}, {"name": ["x"]}, {}])
def test_an_odd_index_is_one_line(entry: Any) -> None:
    class Odd:
        def ask_json(self, *_: str) -> Any:
            return [entry]

    with pytest.raises(TargetError, match=r"^s does not list its models: ") as caught:
        Repository(Odd(), "s", 1.0).ready()  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("groups", [5, "abc", [5]])
def test_instances_that_are_none_are_one_line(groups: Any) -> None:
    with pytest.raises(TargetError, match="of m has no list of instance groups"):
        changed_config({"name": "m", "instance_group": groups}, LoadSettings(instances=2))


def test_what_stands_in_the_place_of_a_log_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "control-a.log").write_bytes(b"first\n\x1b[2Jlast \xff\n")
    (tmp_path / "logs" / "control-b.log").symlink_to("/etc/hostname")
    (tmp_path / "logs" / "control-c.log").write_bytes(b"x" * (1024**2 + 1))
    assert told_by_watches(tmp_path) == [
        "a: first \\x1b[2Jlast \ufffd",
        "b: control-b.log cannot be read: it is a link",
        "c: control-c.log cannot be read: it has more than 1 MiB",
    ]
