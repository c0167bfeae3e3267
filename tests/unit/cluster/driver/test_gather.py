"""Files of nodes after the load, also of one whose agent died unheard."""

from __future__ import annotations

from typing import Any, cast

import pytest

from squall.cluster.driver.gather import files_of
from squall.cluster.driver.nodes import Nodes
from squall.cluster.node.spills import NodeFile
from squall.scenarios.errors import LostActor

FILE = NodeFile("spill/batches-all.arrows", 3, "batches")
LOST = LostActor("agent on node-0 is lost")


class _Files:
    def __init__(self, is_lost: bool) -> None:
        self.is_lost = is_lost

    def list(self) -> list[NodeFile]:
        if self.is_lost:
            raise LOST
        return [FILE]


class _Nodes:
    """One node; `adopt` puts an agent in the place of a dead one, once, where it can."""

    def __init__(self, is_lost: bool, has_heir: bool = True) -> None:
        self.files: dict[str, Any] = {"node-0": _Files(is_lost)}
        self.has_heir = has_heir
        self.n_adopted = 0

    def adopt(self, label: str, error: LostActor) -> list[str]:
        self.n_adopted += 1
        self.files[label].is_lost = not self.has_heir
        return [f"{error}: server, profiler and samples of {label} ended with it"]


def test_the_files_of_an_agent_that_died_unheard_are_adopted_and_its_loss_is_told() -> None:
    nodes, losses = _Nodes(is_lost=True), ["earlier"]
    assert files_of(cast(Nodes, nodes), "node-0", losses) == [FILE]
    assert losses[1:] == ["agent on node-0 is lost: server, profiler and samples of node-0 ended with it"]
    assert files_of(cast(Nodes, nodes), "node-0", losses) == [FILE]
    assert (nodes.n_adopted, len(losses)) == (1, 2)


def test_a_node_that_is_gone_gives_no_files() -> None:
    losses: list[str] = []
    with pytest.raises(LostActor):
        files_of(cast(Nodes, _Nodes(is_lost=True, has_heir=False)), "node-0", losses)
    assert len(losses) == 1


def test_an_agent_that_lives_is_asked_and_nothing_is_lost() -> None:
    nodes, losses = _Nodes(is_lost=False), list[str]()
    assert files_of(cast(Nodes, nodes), "node-0", losses) == [FILE]
    assert (nodes.n_adopted, losses) == (0, [])
