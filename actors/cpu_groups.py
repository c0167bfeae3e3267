"""Whose process is it: the server's, a load worker's, another part of this run, or somebody else's.

    driver ─ raylet ─ agent ─ observer (this)          all below driver and agent is ours,
                    │       └ supervisor ─ tritonserver ─ stubs    but the server
                    └ ray::LoadWorker                              and the load workers

On a node that was joined the raylet is somebody's, and other jobs may run below it: then it is ours without what its
workers do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.proc_files import read_once

GROUPS = ("server", "clients", "squall")
_RAYLET = "raylet"
_WORKER = "ray::"


@dataclass(frozen=True)
class Roots:
    """Processes that are known: of the server, of the load workers, and of this run's other parts."""

    server: frozenset[int]
    clients: frozenset[int]
    squall: frozenset[int]


class ProcessTree:
    """Parent and name of every process of the node. A process is read once, when it is first seen."""

    def __init__(self, proc: str = "/proc") -> None:
        """`proc`: another folder than /proc, for a test."""
        self._proc = proc
        self._known: dict[int, tuple[int, str]] = {}

    def look(self) -> Mapping[int, tuple[int, str]]:
        """Parent and name by pid, of those that run now. 10 to 15 us for each that is new, 0.2 us for the others."""
        pids = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        for pid in self._known.keys() - pids:
            del self._known[pid]
        for pid in pids - self._known.keys():
            name, _, rest = (
                (read_once(f"{self._proc}/{pid}/stat") or b"").partition(b"(")[2].rpartition(b") ")
            )
            if rest:
                self._known[pid] = int(rest.split(None, 2)[1]), name.decode(errors="replace")
        return self._known


def own_roots(tree: Mapping[int, tuple[int, str]], agent: int, driver: int | None) -> frozenset[int]:
    """The processes below which all is this run's, and the raylet above `agent`. `driver`: if it is on this node."""
    roots = {agent} if driver is None else {agent, driver}
    above = tree.get(agent, (0, ""))[0]
    if tree.get(above, (0, ""))[1] == _RAYLET:
        roots.add(above)
    return frozenset(roots)


def grouped(tree: Mapping[int, tuple[int, str]], roots: Roots) -> dict[str, list[int]]:
    """The pids of each of GROUPS; what is in none of them is somebody else's.

    The nearest root above a process decides. Workers below a raylet that this run joined are somebody else's.
    """
    whose: dict[int, str] = {}
    for name in reversed(GROUPS):  # the server's last: it wins
        whose.update(dict.fromkeys(getattr(roots, name), name))
    raylets = {pid for pid in roots.squall if tree.get(pid, (0, ""))[1] == _RAYLET}
    found: dict[str, list[int]] = {name: [] for name in GROUPS}
    for pid in tree:
        group = _group(pid, tree, whose, raylets)
        if group is not None:
            found[group].append(pid)
    return {name: sorted(pids) for name, pids in found.items()}


def _group(
    pid: int, tree: Mapping[int, tuple[int, str]], whose: Mapping[int, str], raylets: Iterable[int]
) -> str | None:
    above, seen, last_name = pid, 0, ""
    while above in tree and seen < len(tree):
        is_foreign_worker = above in raylets and above != pid and last_name.startswith(_WORKER)
        if above in whose and not is_foreign_worker:
            return whose[above]
        last_name = tree[above][1]
        above, seen = tree[above][0], seen + 1
    return None
