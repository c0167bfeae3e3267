"""P-values of several tests, corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number, in their order: each is below a level exactly if Holm's procedure
    rejects at that level (Holm 1979, Scand. J. Statist. 6(2))."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    found, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = largest
    return found
