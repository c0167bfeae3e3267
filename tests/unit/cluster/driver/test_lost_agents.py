"""What is said of a node whose agent died."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.cluster.driver.nodes import Nodes
from squall.cluster.node.agent import NodeAgent
from squall.cluster.placement import Node
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import LostActor

LOST = LostActor("agent on node-0 is lost: it died")


class _Agent:
    n_spawned = 0

    def __init__(self) -> None:
        type(self).n_spawned += 1

    def begin(self, method: Callable[..., Any], *_: Any) -> Any:
        assert method in (NodeAgent.folder, NodeAgent.owner)
        return "/scratch" if method == NodeAgent.folder else None

    def wait(self, reference: Any, _: float = 0.0) -> Any:
        return reference

    def take_over(self, heir: _Agent) -> None:
        del heir


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nodes:
    _Agent.n_spawned = 0
    monkeypatch.setattr("squall.cluster.driver.nodes.spawn", lambda *_, **__: _Agent())
    phase = {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "1/s"}}
    drain = {"name": "d", "kind": "drain", "duration": "1s"}
    mapping = {"name": "n", "seed": 1, "model": {"name": "linear_head"}, "phases": [phase, drain]}
    nodes = Nodes("r", tmp_path, scenario_from_mapping(mapping, "test").profile, 0)
    nodes.add([Node("node-0", "ray-id", "127.0.0.1", 0, True)])
    return nodes


def test_a_server_that_serves_on_is_not_said_to_have_ended(nodes: Nodes) -> None:
    assert nodes.adopt("node-0", LOST) == [f"{LOST}: what it took of a server there ends with it"]


def test_a_server_that_the_agent_had_started_ends_with_it(nodes: Nodes) -> None:
    nodes.with_server.add("node-0")
    (told,) = nodes.adopt("node-0", LOST)
    assert told == f"{LOST}: the server and profiler that it had started end there"
    assert nodes.adopt("node-0", LOST) == [], "told once"


def test_an_agent_that_took_a_place_and_is_lost_too_is_followed_by_another_and_told_once(
    nodes: Nodes,
) -> None:
    assert nodes.put_again("node-0", LOST) == [f"{LOST}: what it took of a server there ends with it"]
    assert nodes.put_again("node-0", LOST) == []
    assert _Agent.n_spawned == 3
    assert nodes.adopt("node-0", LOST) == []
    assert _Agent.n_spawned == 3, "who only tells of it puts no other there"
