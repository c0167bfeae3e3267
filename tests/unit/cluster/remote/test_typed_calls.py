"""mypy holds calls over a handle to the methods of the process's class: what is wrong with one fails before any run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

CALLS = """
from concurrent.futures import Future
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import Handle, end_all, spawn

class Parent:
    def __init__(self, folder: str) -> None: ...
    def size(self) -> int: raise NotImplementedError

class Agent(Parent):
    def add(self, n: int, *, twice: bool = False) -> int: raise NotImplementedError

class Other:
    def add(self, n: int, *, twice: bool = False) -> int: raise NotImplementedError

node = Node("node-0", "", "127.0.0.1", 0, True)
agent = spawn("agent", node, 1, Agent, "/scratch")
also: Handle[Agent] = agent
n: int = agent.call(Agent.add, 1, twice=True)
agent.call(Parent.size)
begun: Future[int] = agent.begin(Agent.add, n=1)
m: int = agent.wait(begun, 2.0)
end_all([agent, spawn("other", node, 1, Other)])
agent.call(Agent.sum, 1)  # a renamed method: attr-defined
agent.call("add", 1)  # a method's name: arg-type
agent.call(Agent.add, "1")  # a wrong argument: arg-type
agent.call(Agent.add)  # an argument too few: call-arg
agent.call(Agent.add, 1, 2)  # an argument too many: call-arg
agent.call(Agent.add, 1, thrice=True)  # an unknown argument: call-arg
agent.begin(Agent.add, "1")  # a wrong argument of a call begun: arg-type
agent.call(Other.add, 1)  # a method of another class: arg-type
spawn("parent", node, 1, Parent, "/scratch").call(Agent.add, 1)  # a method that only a child has: arg-type
text: str = agent.call(Agent.add, 1)  # an answer taken for something else: assignment
agent.wait(begun).upper()  # an answer waited for, taken for something else: attr-defined
spawn("agent", node, 1, Agent)  # nothing to make the object with: call-arg
spawn("agent", node, 1, Agent, 5)  # the wrong thing to make the object with: arg-type
agent.take_over(spawn("other", node, 1, Other))  # an heir of another class: arg-type
"""
WRONG = {
    fault: (number, code)
    for number, line in enumerate(CALLS.splitlines(), 1)
    for fault, code in re.findall(r"  # (.+): (\S+)$", line)
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[int, str]]:
    """(line, code) of what mypy says of `CALLS`."""
    folder = tmp_path_factory.mktemp("calls")
    (folder / "squall").symlink_to(ROOT)
    (folder / "calls.py").write_text(CALLS)
    options = ["--strict", "--config-file=", f"--cache-dir={folder / 'cache'}", "--follow-imports=silent"]
    done = subprocess.run(  # not in this process: mypy raises its recursion limit
        [sys.executable, "-m", "mypy", *options, "--ignore-missing-imports", str(folder / "calls.py")],
        env={**os.environ, "MYPYPATH": str(folder)}, cwd=folder, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    found = re.findall(r"^\S*calls\.py:(\d+): error: .*\[(\S+)\]$", done.stdout, re.MULTILINE)
    return {(int(number), code) for number, code in found}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_call_is_refused(refused: set[tuple[int, str]], fault: str) -> None:
    assert WRONG[fault] in refused


def test_right_calls_are_not(refused: set[tuple[int, str]]) -> None:
    assert {number for number, _ in refused} == {number for number, _ in WRONG.values()}
