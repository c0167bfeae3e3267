"""Whose process is it: the server's, a load worker's, another part of this run, or somebody else's.

    driver                                              all below driver, agents and observer is ours,
    agent ─ supervisor ─ tritonserver ─ stubs           but the server
    observer (this)
    load workers                                        and these

Agents, observer and load workers are children of nobody. A Ray that the run joined is somebody's, whatever it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from squall.actors.process.proc_files import read_once
from squall.scenarios.records import Frozen

GROUPS = ("server", "clients", "squall")
_MOST_NAMED = 256
_LEAST_RATIO = 0.1
"""Share of the CPU of all others below which a program is not named."""


class Roots(Frozen):
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


class OtherProcesses:
    """CPU that processes of others had since each was first seen. One that ended before the next look is not in it."""

    def __init__(self, proc: str, cpu_clock: Callable[[int], int | None]) -> None:
        self._proc, self._cpu_clock = proc, cpu_clock
        self._first_ns: dict[int, int] = {}
        self._gained_ns: dict[int, int] = {}

    def look(self, tree: Mapping[int, int], groups: Mapping[str, Sequence[int]]) -> None:
        """Reads the clocks of all in `tree` that are in none of `groups`: 1 to 2 us each."""
        own = {pid for pids in groups.values() for pid in pids}
        for pid in tree.keys() - own:
            now_ns = self._cpu_clock(pid)
            if now_ns is not None:
                self._gained_ns[pid] = max(0, now_ns - self._first_ns.setdefault(pid, now_ns))

    def busiest(self) -> dict[str, dict[str, float]]:
        """Of the names of those that run still the first ones: how many processes, and of the CPU that all others had
        their `ratio`, the largest first; none below a tenth."""
        total_ns = sum(self._gained_ns.values())
        found: dict[str, dict[str, float]] = {}
        most = (
            sorted(self._gained_ns, key=lambda pid: -self._gained_ns[pid])[:_MOST_NAMED] if total_ns else []
        )
        for pid in most:
            name = (read_once(f"{self._proc}/{pid}/comm") or b"").decode(errors="replace").strip()
            if name and self._gained_ns[pid]:
                own = found.setdefault(name, {"n": 0, "ratio": 0.0})
                own["n"] += 1
                own["ratio"] += self._gained_ns[pid] / total_ns
        named = sorted(found.items(), key=lambda item: -item[1]["ratio"])
        return {name: own for name, own in named if own["ratio"] >= _LEAST_RATIO}


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
