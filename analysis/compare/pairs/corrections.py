"""Levels of tests that are several: at many metrics (Holm), and at several looks (Pocock)."""

from __future__ import annotations

from collections.abc import Sequence

from squall.scenarios.errors import ScenarioError

LEVEL = 0.05
"""How often two sides that are alike are called different."""
NOMINAL = (0.05, 0.0294, 0.0221, 0.0182, 0.0158)
"""By the number of looks, from one: the level of each look, so that all together have `LEVEL` (Pocock 1977, Biometrika
64(2), table 1: two-sided, looks after equal numbers of pairs)."""
MOST_LOOKS = len(NOMINAL)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number, in their order: each is below a level exactly if Holm's procedure
    rejects at that level (Holm 1979, Scand. J. Statist. 6(2))."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = largest
    return found


def nominal_level(n_looks: int) -> float:
    """The level of each of so many looks. Raises ScenarioError where there is none."""
    if not 1 <= n_looks <= MOST_LOOKS:
        raise ScenarioError(f"--looks: 1 to {MOST_LOOKS} looks, not {n_looks}")
    return NOMINAL[n_looks - 1]


def looks_after(n_pairs: int, n_looks: int) -> list[int]:
    """After how many pairs is looked, the last after all: as equal steps as whole pairs allow, from two pairs on.

    Raises ScenarioError where there are more looks than pairs to look after.
    """
    nominal_level(n_looks)
    found = [-(-n_pairs * look // n_looks) for look in range(1, n_looks + 1)]
    found = [max(2, after) for after in found]
    if len(set(found)) < n_looks:
        raise ScenarioError(f"--looks: {n_looks} looks take more than {n_pairs} pairs")
    return found
