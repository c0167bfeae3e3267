"""Whose process is it: the server's, a load worker's, another part of this run, or somebody else's.

    driver ─ a local Ray                                all below driver and agent is ours,
    agent ─┬ observer (this)                            but the server
           └ supervisor ─ tritonserver ─ stubs
    load workers                                        and these

Agent and load workers are children of nobody. A Ray that the run joined is somebody's, whatever it does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from squall.actors.process.proc_files import read_once

GROUPS = ("server", "clients", "squall")


@dataclass(frozen=True)
class Roots:
    """Processes that are known: of the server, of the load workers, and of this run's other parts."""

    server: frozenset[int]
    clients: frozenset[int]
    squall: frozenset[int]


class ProcessTree:
    """The parent of every process of the node. A process is read once, when it is first seen."""

    def __init__(self, proc: str = "/proc") -> None:
        """`proc`: another folder than /proc, for a test."""
        self._proc = proc
        self._known: dict[int, int] = {}

    def look(self) -> Mapping[int, int]:
        """Parent by pid, of those that run now. 10 to 15 us for each that is new, 0.2 us for the others."""
        pids = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        for pid in self._known.keys() - pids:
            del self._known[pid]
        for pid in pids - self._known.keys():
            rest = (read_once(f"{self._proc}/{pid}/stat") or b"").rpartition(b") ")[2]
            if rest:
                self._known[pid] = int(rest.split(None, 2)[1])
        return self._known


def grouped(tree: Mapping[int, int], roots: Roots) -> dict[str, list[int]]:
    """The pids of each of GROUPS; what is in none of them is somebody else's.

    The nearest root above a process decides.
    """
    whose: dict[int, str] = {}
    for name in reversed(GROUPS):  # the server's last: it wins
        whose.update(dict.fromkeys(getattr(roots, name), name))
    found: dict[str, list[int]] = {name: [] for name in GROUPS}
    for pid in tree:
        group = _group(pid, tree, whose)
        if group is not None:
            found[group].append(pid)
    return {name: sorted(pids) for name, pids in found.items()}


def _group(pid: int, tree: Mapping[int, int], whose: Mapping[int, str]) -> str | None:
    above, seen = pid, 0
    while above in tree and seen < len(tree):
        if above in whose:
            return whose[above]
        above, seen = tree[above], seen + 1
    return None
