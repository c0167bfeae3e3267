"""The whole plan from the parts that workers have, and where its columns lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.plan.plan import Plan


def merge(parts: Iterable[Plan]) -> Plan:
    """The plan that was dealt, from all parts in any order. An arrival that is missing or there twice fails."""
    held = list(parts)
    assert len({(part.spans, tuple(part.columns.items()), part.models) for part in held}) == 1
    order = np.argsort(np.concatenate([part.seq for part in held]), kind="stable")
    whole: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in held])[order] for name in held[0].columns
    }
    assert whole["seq"].tolist() == list(range(order.size))
    return replace(held[0], **whole)


def is_in_file(column: NDArray[Any]) -> bool:
    """Whether the column, or the one that it is a view of, is mapped from a file."""
    base: Any = column
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    return isinstance(base, np.memmap)
