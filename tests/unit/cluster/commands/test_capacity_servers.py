"""Fewer servers of a scenario."""

from __future__ import annotations

import pytest

from squall.cluster.commands.decisions.fewer_servers import fewer, refuse_without_gpus
from squall.scenarios.errors import ScenarioError
from tests.unit.scenarios.test_promises import scenario

PROMISE = {"response": "p(95)<50ms"}
GPUS = [{"gpus": [place]} for place in range(3)]


def test_a_list_is_cut_and_one_per_gpu_is_named_by_its_gpus() -> None:
    listed = scenario(PROMISE, servers=GPUS)
    counted = scenario(PROMISE, servers={"per": "gpu"})
    for one in (listed, counted):
        refuse_without_gpus(one)
        found = fewer(one, 3, 1)
        assert [(name, n) for name, n, _ in found] == [("one", 1), ("one down", 2)]
        for _, n, fewer_of in found:
            assert [entry.gpus for entry in fewer_of.servers or ()] == [(place,) for place in range(n)]
    assert [name for name, _, _ in fewer(scenario(PROMISE, servers=GPUS[:2]), 2, 1)] == ["one"]
    assert fewer(counted, 1, 1) == []


def test_what_cannot_be_fewer_is_one_line() -> None:
    for servers in (None, {"count": 2}, {"per": "node"}, GPUS[:1], [{"weight": 1.0}, {"weight": 1.0}]):
        with pytest.raises(ScenarioError, match="--gpus: needs servers"):
            refuse_without_gpus(scenario(PROMISE, servers=servers))
    with pytest.raises(ScenarioError, match="are on 2 nodes"):
        fewer(scenario(PROMISE, servers={"per": "gpu"}), 4, 2)
    about_third = scenario({"response{server:server-2}": "p(95)<50ms"}, servers=GPUS)
    with pytest.raises(ScenarioError, match="server-2"):
        fewer(about_third, 3, 1)
    for servers in (GPUS, {"per": "gpu"}):
        with pytest.raises(ScenarioError, match=r"--gpus: one server alone is measured too: .*server-1"):
            refuse_without_gpus(scenario({"response{server:server-1}": "p(95)<50ms"}, servers=servers))
