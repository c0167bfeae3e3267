"""mypy holds calls over a handle to the methods of the process's class: what is wrong with one fails before any run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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


def refused(folder: Path) -> set[tuple[int, str]]:
    """(line, code) of what mypy says of `CALLS`.

    Of squall it reads the modules of which these are calls, and no others: a quarter of the time where it keeps no
    cache. What those import is of any type then, and no signature of a handle has it.
    """
    (folder / "squall").symlink_to(ROOT)
    (folder / "calls.py").write_text(CALLS)
    modules = "calls", "squall.cluster.remote.spawn", "squall.cluster.placement"
    done = subprocess.run(  # not in this process: mypy raises its recursion limit
        ["timeout", "300", sys.executable, "-m", "mypy", "--follow-imports=skip", f"--cache-dir={os.devnull}",
         *(f"--module={name}" for name in modules)],
        env={**os.environ, "MYPYPATH": str(folder)}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    found = re.findall(r"^\S*calls\.py:(\d+): error: .*\[(\S+)\]$", done.stdout, re.MULTILINE)
    return {(int(number), code) for number, code in found}


def test_wrong_calls_are_refused_each_and_right_ones_are_not(tmp_path: Path) -> None:
    """One test, so that mypy runs once, however many processes share the tests."""
    found = refused(tmp_path)
    assert {fault for fault, place in WRONG.items() if place not in found} == set()
    assert {number for number, _ in found} == {number for number, _ in WRONG.values()}
