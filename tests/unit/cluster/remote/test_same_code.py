"""Nodes that have another squall than the driver, or none, are named before anything is started on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import squall.cluster.remote.spawn
from squall.actors.process.own_source import OwnCode, own_code
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import refuse_other_code
from squall.scenarios.errors import ClusterError

NODES = [Node(f"node-{i}", f"id-{i}", f"10.0.0.{i + 1}", 0, i == 0) for i in range(4)]
OWN = own_code()


class _Launchers:
    def __init__(self, codes: dict[str, OwnCode | str]) -> None:
        self.asked: list[str] = []
        self._codes = codes

    def codes(self, nodes: Sequence[Node]) -> dict[str, OwnCode | str]:
        self.asked += [node.label for node in nodes]
        return {node.label: self._codes.get(node.label, OWN) for node in nodes}


def launchers(monkeypatch: pytest.MonkeyPatch, **codes: OwnCode | str) -> _Launchers:
    known = _Launchers({name.replace("_", "-"): code for name, code in codes.items()})
    monkeypatch.setattr(squall.cluster.remote.spawn, "_LAUNCHERS", known)
    return known


def test_nodes_of_one_code_pass_and_the_driver_need_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    known = launchers(monkeypatch)
    refuse_other_code(NODES)
    assert known.asked == ["node-1", "node-2", "node-3"]


def test_all_nodes_that_differ_are_in_one_line_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    launchers(
        monkeypatch,
        node_1="ModuleNotFoundError: No module named 'squall'",
        node_3=replace(OWN, source="0123456789ab"),
    )
    with pytest.raises(ClusterError) as caught:
        refuse_other_code(NODES)
    assert str(caught.value) == (
        "node-1 cannot run squall (ModuleNotFoundError: No module named 'squall'); node-3 has "
        f"squall {OWN.squall} (source 0123456789ab) in Python {OWN.python}; the driver has {OWN}: install the same "
        "wheel on every node, in the Python that runs Ray there"
    )
