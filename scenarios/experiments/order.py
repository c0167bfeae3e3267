"""In which order the runs of a sweep go: blocks of random order, and the reference cell between them. Pure.

    blocked-random   block 0    B A C     drawn from the seed
                     block 1    C A B     block 0 in reverse
                     block 2    A C B     drawn
                     block 3    B C A     block 2 in reverse …

A block is one seed, and holds every cell once, so that cells are compared within a block. What the machine drifts by is
the same for none of them: a drift that is linear in the run's number adds d (position of B - position of A) to what
B differs from A by, and a block and its reverse add it with both signs. `fixed` runs all seeds of a cell, then those
of the next: a drift then passes for a difference of cells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from squall.scenarios.experiments.file import Order

CELL, REFERENCE, CONFIRM = "cell", "reference", "confirm"
"""What a run is for: to choose a cell, to see the machine drift, to see the chosen cell again."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of cell number `cell`. `block`: number of its seed; `number`: among the runs of the reference cell."""

    role: str
    cell: int
    block: int
    seed: int
    number: int = 0


def cell_runs(digests: Sequence[str], seed: int, repeats: int, order: Order) -> list[PlannedRun]:
    """Each cell once with each seed from `seed` on; `digests` tell the cells apart, whatever their order in the
    file."""
    if order == "fixed":
        return [_of(cell, block, seed) for cell in range(len(digests)) for block in range(repeats)]
    found: list[PlannedRun] = []
    drawn: list[int] = []
    for block in range(repeats):
        drawn = drawn[::-1] if block % 2 else _permutation(digests, seed, block)
        found += [_of(cell, block, seed) for cell in drawn]
    return found


def with_reference(runs: Sequence[PlannedRun], cell: int, seed: int, every: int) -> list[PlannedRun]:
    """`runs` with one of the reference cell before them, after each `every` of them, and at the end; none for none."""
    if not runs:
        return []
    found: list[PlannedRun] = []
    number = 0
    for first in range(0, len(runs), every):
        found += [PlannedRun(REFERENCE, cell, -1, seed, number), *runs[first : first + every]]
        number += 1
    return [*found, PlannedRun(REFERENCE, cell, -1, seed, number)]


def confirming_runs(cell: int, seed: int, repeats: int, n: int) -> list[PlannedRun]:
    """`n` runs of the chosen cell with seeds that no run before had."""
    return [PlannedRun(CONFIRM, cell, repeats + k, seed + repeats + k) for k in range(n)]


def _of(cell: int, block: int, seed: int) -> PlannedRun:
    return PlannedRun(CELL, cell, block, seed + block)


def _permutation(digests: Sequence[str], seed: int, block: int) -> list[int]:
    """A uniform draw that is the same on every machine: cells in order of a hash of seed, block and cell."""
    keys = [hashlib.sha256(f"{seed} {block} {digest}".encode()).digest() for digest in digests]
    return sorted(range(len(digests)), key=keys.__getitem__)
