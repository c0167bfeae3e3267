"""An nsys that cannot make a report, or has nothing to record, is missing before the load and not after it."""

from __future__ import annotations

from pathlib import Path

import pytest

import squall.cluster.node.server_nsys
from squall.actors.nsys.tools import NsysTools, Problem
from squall.cluster.node.agent import NodeAgent

ALL = ("cuda", "nvtx", "osrt")


def _agent(monkeypatch: pytest.MonkeyPatch, *problems: Problem, gpu: bool = False) -> NodeAgent:
    tools = NsysTools(Path("nsys"), (2025, 3), "PATH", None, problems=problems)
    monkeypatch.setattr(squall.cluster.node.server_nsys, "find_nsys", lambda _: tools)
    monkeypatch.setattr(
        squall.cluster.node.server_nsys, "missing_reason", lambda: None if gpu else "no driver"
    )
    return NodeAgent("r", "node-0")


def test_an_nsys_without_its_importer_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = _agent(monkeypatch, Problem("nsys has no importer", "install the whole"))
    assert agent.missing_nsys(ALL) == "nsys has no importer: install the whole"
    agent.close()


def test_an_nsys_that_is_only_slow_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = _agent(monkeypatch, Problem("every stop takes seconds longer", "a cache", is_fatal=False))
    assert agent.missing_nsys(ALL) is None
    agent.close()


@pytest.mark.parametrize(("trace", "gpu", "is_there"), [
    (("cuda",), False, False), (("cuda",), True, True), (("cuda", "osrt"), False, True),
])  # fmt: skip
def test_cuda_alone_needs_a_gpu(
    monkeypatch: pytest.MonkeyPatch, trace: tuple[str, ...], gpu: bool, is_there: bool
) -> None:
    agent = _agent(monkeypatch, gpu=gpu)
    assert (agent.missing_nsys(trace) is None) == is_there
    agent.close()
