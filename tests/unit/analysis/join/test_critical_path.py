"""Critical paths of many requests at once, against a walk over each by itself."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join.critical_path import critical_paths

Step = tuple[int, int, int, int]
"""owner, start, end, place"""


def columns(steps: list[Step]) -> Any:
    return [np.array([step[i] for step in steps], np.int64) for i in range(4)]


def path_by_hand(steps: list[Step]) -> list[Step]:
    """From the end: before each the one that ends last before it begins."""
    left = sorted(steps, key=lambda one: (-one[2], one[1], one[3]))
    path = left[:1]
    for step in left[1:]:
        if step[2] <= path[-1][1]:
            path.append(step)
    return path


def longest_by_hand(path: list[Step]) -> Step:
    """Of equally long ones that which is further from the end."""
    longest = path[0]
    for step in path:
        longest = step if step[2] - step[1] >= longest[2] - longest[1] else longest
    return longest


DRAWN = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 12)), max_size=20).map(
    lambda drawn: [(owner, start, start + length, i) for i, (owner, start, length) in enumerate(drawn)]
)


@given(DRAWN, st.randoms())
def test_path_and_longest_step_are_those_of_a_walk(steps: list[Step], random: Any) -> None:
    steps = [(*step[:3], place) for place, step in enumerate(sorted(steps, key=lambda one: one[1]))]
    random.shuffle(steps)
    by_owner: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        by_owner[step[0]].append(step)
    paths = {owner: path_by_hand(own) for owner, own in by_owner.items()}
    owner, start, end, place = columns(steps)
    is_on_path, is_longest = critical_paths(owner, start, end, place)
    assert is_on_path.tolist() == [step in paths[step[0]] for step in steps]
    longest = {own: longest_by_hand(path) for own, path in paths.items()}
    assert is_longest.tolist() == [step == longest[step[0]] for step in steps]


@pytest.mark.parametrize("n", [0, 1])
def test_of_nothing_there_is_no_path_and_one_step_is_its_own(n: int) -> None:
    owner, start, end, place = columns([(7, 3, 9, 1)] * n)
    is_on_path, is_longest = critical_paths(owner, start, end, place)
    assert (is_on_path.tolist(), is_longest.tolist()) == ([True] * n, [True] * n)
