"""Levels of tests at several looks (Pocock)."""

from __future__ import annotations

from squall.scenarios.errors import ScenarioError

NOMINAL = (0.05, 0.0294, 0.0221, 0.0182, 0.0158)
"""By the number of looks, from one: the level of each look, so that two sides that are alike are called different in
0.05 of all series (Pocock 1977, Biometrika 64(2), table 1: two-sided, looks after equal numbers of pairs)."""
MOST_LOOKS = len(NOMINAL)


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
