"""Combinations of a matrix with `include` and `exclude`, by the rules of GitHub Actions. Pure.

A combination maps key paths of a scenario to values. From the product of the matrix, its first key slowest,

    exclude     takes away every combination that has all pairs of the entry include     adds the pairs of an entry to
    every combination of the matrix of which they change no value of the matrix
                (what an earlier entry added they may change); where there is none it is a combination of its own

docs.github.com, "Workflow syntax", `jobs.<job_id>.strategy.matrix.include` and `.exclude`.
"""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

Combination = dict[str, Any]
MOST_COMBINATIONS = 10_000


def combinations(
    matrix: Mapping[str, Sequence[Any]],
    include: Sequence[Mapping[str, Any]] = (),
    exclude: Sequence[Mapping[str, Any]] = (),
) -> list[Combination]:
    """The combinations in order. Raises ValueError, one line, for none, too many, and an `exclude` that takes
    nothing."""
    n = reduce(operator.mul, map(len, matrix.values()), 1) if matrix else 0
    if n > MOST_COMBINATIONS:
        raise ValueError(f"matrix: {n:,} cells are above the {MOST_COMBINATIONS:,} of a sweep")
    product = (
        [dict(zip(matrix, one, strict=True)) for one in itertools.product(*matrix.values())] if matrix else []
    )
    left = product
    for place, entry in enumerate(exclude):
        if not any(_holds(one, entry) for one in product):
            raise ValueError(f"exclude[{place}]: no cell of the matrix has {pairs_text(entry)}")
        left = [one for one in left if not _holds(one, entry)]
    found = [dict(one) for one in left]
    own: list[Combination] = []
    for entry in include:
        fitting = [new for new, old in zip(found, left, strict=True) if _agrees(old, entry)]
        for one in fitting:
            one.update(entry)
        if not fitting:
            own.append(dict(entry))
    if not found and not own:
        raise ValueError(
            "matrix: is empty, exclude takes every cell"
            if product
            else "matrix: is empty, a sweep needs cells"
        )
    return [*found, *own]


def is_same(one: object, other: object) -> bool:
    """Whether two values are written alike: 1 is not true, and not 1.0."""
    return json.dumps(one, sort_keys=True, default=str) == json.dumps(other, sort_keys=True, default=str)


def value_text(value: object) -> str:
    """A value of a key, for people and tables."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def pairs_text(pairs: Mapping[str, Any]) -> str:
    """`key.path=value, …`."""
    return ", ".join(f"{key}={value_text(value)}" for key, value in pairs.items())


def _holds(one: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    return all(key in one and is_same(one[key], value) for key, value in entry.items())


def _agrees(of_matrix: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    return all(is_same(of_matrix[key], value) for key, value in entry.items() if key in of_matrix)
