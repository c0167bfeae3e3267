"""The whole plan from the parts that were dealt, and whether a column of a plan lies in a file."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.plan.plan import Plan


def merge(plans: Iterable[Plan]) -> Plan:
    """The whole plan from its parts in any order: every seq is there once."""
    parts = list(plans)
    order = np.argsort(np.concatenate([part.seq for part in parts]), kind="stable")
    first = parts[0]
    whole: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])[order] for name in first.columns
    }
    assert np.array_equal(whole["seq"], np.arange(order.size))
    return Plan(spans=first.spans, deal=first.deal, models=first.models, **whole)


def is_in_file(column: NDArray[Any]) -> bool:
    """Whether the column, or the one it is a view of, is mapped from a file."""
    base: Any = column
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return isinstance(base, mmap.mmap)
