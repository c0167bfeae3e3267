"""Which cores the senders of a node get for themselves, and which are left to the server that squall starts there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from squall.scenarios.errors import ClusterError

Cores = Literal["auto", "off"] | int | tuple[int, ...]
_ENOUGH_CORES = 8
_MOST_SHARE = 0.25
"""Of a node's cores that `auto` keeps from the server: what is measured must stay near what is deployed."""
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True)
class Split:
    """`of_workers`: the core of each worker's sender, in their order, empty for none. `others`: what is left, without
    the hardware threads beside those; empty: all."""

    of_workers: tuple[int, ...] = ()
    others: tuple[int, ...] = ()


def split_cores(
    wanted: Cores, n_workers: int, usable: Sequence[int], siblings: Mapping[int, Sequence[int]]
) -> Split:
    """`siblings`: the hardware threads of a core, by core; one that lacks stands alone.

    The highest cores are taken: interrupts and whatever is pinned by habit are on the first ones. Raises ClusterError
    where a core that is asked for is not there, or none would be left.
    """
    if wanted == "off" or not n_workers:
        return Split()
    groups = _physical(usable, siblings)
    if wanted == "auto":
        if len(usable) < _ENOUGH_CORES:
            return Split()
        most = len(usable) * _MOST_SHARE
        first_threads = [group[0] for group in groups[:n_workers]]
        all_threads = [thread for group in groups for thread in group]
        for cores in (first_threads, all_threads[:n_workers]):  # a core for each, else a hardware thread
            taken = _with_siblings(cores, siblings)
            if len(cores) == n_workers and len(taken & set(usable)) <= most:
                return _split(cores, n_workers, usable, taken)
        return Split()
    if isinstance(wanted, int):
        cores = [group[0] for group in groups][:wanted]
        if len(cores) < wanted or len(_with_siblings(cores, siblings) & set(usable)) >= len(usable):
            raise ClusterError(
                f"clients.cores: {wanted} of the {len(groups)} cores here would leave none for others"
            )
        return _split(cores, n_workers, usable, _with_siblings(cores, siblings))
    missing = sorted(set(wanted) - set(usable))
    if missing or set(usable) <= set(wanted):
        what = f"core {missing[0]} may not be used here" if missing else "no core would be left for others"
        raise ClusterError(f"clients.cores: {what}; there are {_text(usable)}")
    return _split(list(wanted), n_workers, usable, set(wanted))


def _split(cores: Sequence[int], n_workers: int, usable: Sequence[int], taken: set[int]) -> Split:
    of_workers = tuple(cores[index % len(cores)] for index in range(n_workers))
    return Split(of_workers, tuple(core for core in sorted(usable) if core not in taken))


def _physical(usable: Sequence[int], siblings: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """The usable threads of each core, the highest core first."""
    groups = {tuple(sorted(set(siblings.get(core, ())) & set(usable) | {core})) for core in usable}
    return sorted(groups, reverse=True)


def _with_siblings(cores: Sequence[int], siblings: Mapping[int, Sequence[int]]) -> set[int]:
    return {thread for core in cores for thread in (core, *siblings.get(core, ()))}


def _text(cores: Sequence[int]) -> str:
    return f"{min(cores)} to {max(cores)}" if len(cores) == max(cores) - min(cores) + 1 else str(list(cores))


def core_list(text: str) -> list[int]:
    """`0,2-4` as the kernel writes it."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def node_split(wanted: Cores, n_workers: int) -> Split:
    """`split_cores` of this node, by what this process may use. Raises as that does."""
    usable = sorted(os.sched_getaffinity(0))
    siblings = {}
    for core in usable:
        try:
            siblings[core] = core_list(Path(_TOPOLOGY.format(core)).read_text(encoding="ascii"))
        except OSError:
            continue
    return split_cores(wanted, n_workers, usable, siblings)
