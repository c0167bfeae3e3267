"""What a run changes of a server's models, and that all of it is undone and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.storage.deployed import ControlFacts
from squall.cluster.control.changes import Undo, apply, restore
from squall.cluster.control.repository import Repository
from squall.cluster.control.watch import put_back, told
from squall.scenarios.config.servers import ControlConfig
from squall.scenarios.errors import TargetError
from tests.unit.cluster.control.explicit_server import ExplicitServer

GROUP = {"name": "g", "kind": "KIND_CPU", "count": 1}
CONFIGS = {name: {"name": name, "max_batch_size": 8, "instance_group": [GROUP]} for name in "abcde"}


def server_with(*ready: str, is_explicit: bool = True) -> ExplicitServer:
    return ExplicitServer(dict(CONFIGS), ready, is_explicit)


def repository_of(server: ExplicitServer) -> Repository:
    return Repository(server, "http://h:1", 0.0, pause=lambda _: None)  # type: ignore[arg-type]


def applied(
    server: ExplicitServer, control: dict[str, Any], *models: str
) -> tuple[ControlFacts, Undo, list[str]]:
    heard, lines = list[Undo](), list[str]()
    config = ControlConfig.model_validate(control)
    facts = apply(repository_of(server), config, models, heard.append, lines.append)
    return facts, Undo(**json.loads(json.dumps(heard[-1].to_mapping()))), lines


def test_the_model_under_load_and_others_are_loaded_and_what_was_there_is_put_back() -> None:
    server = server_with("a", "b")
    facts, undo, lines = applied(server, {"load": ["c", "a"], "unload": ["b", "d"]}, "e")
    assert server.calls == ["unload b", "load e", "load c"]
    assert (list(facts.loading_ns), facts.unloaded, facts.configured, facts.beside) == (
        ["e", "c"],
        ("b",),
        (),
        (),
    )
    assert [line.split(" in ")[0] for line in lines] == ["unloaded b", "loaded e", "loaded c"]
    server.calls.clear()
    assert restore(repository_of(server), undo) == []
    assert server.calls == ["unload e", "unload c", "load b"]
    assert server.loaded == {name: CONFIGS[name] for name in "ab"}


def test_a_configuration_of_ones_own_stands_on_the_server_s_and_goes_again() -> None:
    server = server_with("a")
    server.loaded["a"]["max_batch_size"] = 3  # somebody loaded it so
    before = dict(server.loaded)
    control = {"load": {"a": {"instances": 4}, "b": {"config": {"max_batch_size": 2}}}}
    facts, undo, _ = applied(server, control, "a")
    assert server.loaded == {
        "a": {"name": "a", "max_batch_size": 3, "instance_group": [{**GROUP, "count": 4}]},
        "b": {"name": "b", "max_batch_size": 2, "instance_group": [GROUP]},
    }
    assert facts.configured == ("a", "b")
    assert server.calls == ["load a", "load b", "load b"]
    assert facts.loading_ns["b"] > 0
    assert restore(repository_of(server), undo) == []
    assert server.loaded == before


def test_what_is_as_it_is_wanted_is_not_loaded_again() -> None:
    server = server_with("a")
    facts, undo, lines = applied(server, {"load": {"a": {"instances": 1}}}, "a")
    assert (server.calls, lines, facts) == ([], [], ControlFacts())
    assert restore(repository_of(server), undo) == []
    assert server.calls == []


def test_steps_that_an_ensemble_brings_go_with_it() -> None:
    server = server_with("a")
    for name, steps in {"e": ("c", "a"), "c": ("d",)}.items():
        ensemble = {"ensemble_scheduling": {"step": [{"model_name": one} for one in steps]}}
        server.configs[name] = {**CONFIGS[name], **ensemble}
    facts, undo, _ = applied(server, {}, "e")
    assert facts.beside == ("c", "d")
    assert restore(repository_of(server), undo) == []
    assert list(server.loaded) == ["a"]


def test_what_others_load_and_unload_meanwhile_stays_as_it_is() -> None:
    server = server_with("a", "b")
    _, undo, _ = applied(server, {}, "c")
    server.loaded["d"] = CONFIGS["d"]
    del server.loaded["b"]
    assert restore(repository_of(server), undo) == []
    assert sorted(server.loaded) == ["a", "d"]


def test_what_was_changed_before_a_model_that_does_not_load_is_put_back() -> None:
    server = server_with("a")
    server.broken = {"c"}
    heard = list[Undo]()
    config = ControlConfig.model_validate({"load": ["b", "c"], "unload": ["a"]})
    with pytest.raises(TargetError, match="http://h:1 does not load 'c': failed to load 'c', no such luck"):
        apply(repository_of(server), config, ["b"], heard.append, lambda _: None)
    assert list(server.loaded) == ["b"]
    assert restore(repository_of(server), heard[-1]) == []
    assert list(server.loaded) == ["a"]


def test_what_cannot_be_put_back_is_said_and_the_rest_is() -> None:
    server = server_with("a", "b")
    _, undo, _ = applied(server, {"unload": ["a", "b"]}, "c")
    server.broken = {"a"}
    left = restore(repository_of(server), undo)
    assert left == [
        "server.control: http://h:1 does not load 'a': failed to load 'a', no such luck",
        "model a had version 1 ready before and has no version ready now",
    ]
    assert list(server.loaded) == ["b"]


def test_a_wait_for_a_model_on_its_way_ends() -> None:
    server = server_with("a")
    server.stuck = {"a"}
    with pytest.raises(TargetError, match="a is still UNLOADING after 0 s"):
        applied(server, {"unload": ["a"]}, "b")


@pytest.mark.parametrize(
    ("control", "models", "is_explicit", "said"),
    [
        ({}, ["a"], False, "does not let models be loaded and unloaded: start it with --model-control-mode=explicit"),
        ({"load": ["abc"]}, ["a"], True, "has no model 'abc' in its repository, it has a, b, c, d, e"),
        ({"unload": ["x"]}, ["a"], True, "has no model 'x' in its repository"),
        ({}, ["zz"], True, "has no model 'zz' in its repository"),
    ],
)  # fmt: skip
def test_what_the_server_does_not_take_is_one_line_before_anything_is_changed(
    control: dict[str, Any], models: list[str], is_explicit: bool, said: str
) -> None:
    server, heard = server_with("b", is_explicit=is_explicit), list[Undo]()
    with pytest.raises(TargetError) as refused:
        apply(
            repository_of(server), ControlConfig.model_validate(control), models, heard.append, lambda _: None
        )
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (server.calls, heard) == ([], [])


names = st.sets(st.sampled_from("abcde"))


@given(names, names, names, names, st.integers(1, 3), st.sampled_from("abcde"))
def test_every_server_is_afterwards_as_it_was(
    ready: set[str], load: set[str], changed: set[str], unload: set[str], instances: int, model: str
) -> None:
    server = server_with(*sorted(ready))
    before = dict(server.loaded)
    settings = {name: {"instances": instances} if name in changed else {} for name in sorted(load)}
    control = {"load": settings, "unload": sorted(unload - load - {model})}
    _, undo, _ = applied(server, control, model)
    assert {model, *load} <= set(server.loaded)
    assert not set(control["unload"]) & set(server.loaded)
    assert restore(repository_of(server), undo) == []
    assert server.loaded == before


@pytest.mark.parametrize("lines", [[], [{"url": "u"}], [{"url": "u"}, {"ready": {}}, "well"]])
def test_a_watch_that_heard_of_no_change_or_that_all_went_well_does_nothing(lines: list[Any]) -> None:
    assert put_back(lines) is None


def test_a_watch_tells_what_came_of_it() -> None:
    say: Callable[[list[str]], str] = told
    assert say([]).endswith("the server's models were put back as they were before the run")
    assert say(["x", "y"]).endswith("could not all be put back: x; y")
