"""Critical paths and waits of many requests at once, against a walk over each by itself."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.join.critical_path import critical_paths, waited_from
from squall.analysis.storage.row_groups import NULL

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


def wait_by_hand(step: Step, steps: list[Step], path: list[Step]) -> int:
    others = [one for one in steps if one is not step]
    ends = [end for _, _, end, _ in others if end <= step[1]]
    around = [one[1] for one in path if one[1] <= step[1] and step[2] <= one[2]] if step not in path else []
    return max([*ends, *around], default=NULL)


DRAWN = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 12)), max_size=20).map(
    lambda drawn: [(owner, start, start + length, i) for i, (owner, start, length) in enumerate(drawn)]
)


@given(DRAWN, st.randoms())
def test_path_longest_step_and_waits_are_those_of_a_walk(steps: list[Step], random: Any) -> None:
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
    waits = waited_from(owner, start, end, is_on_path)
    for step, found in zip(steps, waits.tolist(), strict=True):
        own = by_owner[step[0]]
        if sum(one[1] == one[2] == step[1] for one in own) < 2 and len(
            {one[1] for one in paths[step[0]]}
        ) == len(
            paths[step[0]]
        ):  # of several that take no time at one instant any may count as the one before
            assert found == wait_by_hand(step, own, paths[step[0]])


def test_a_fork_and_what_one_step_asks_for_within_it() -> None:
    """tokenize, then filter beside embed, which asks two children; then rank."""
    steps = {
        "tokenize": (0, 0, 10, 0), "filter": (0, 12, 15, 2), "embed": (0, 11, 40, 1), "child": (0, 20, 25, 3),
        "second child": (0, 26, 39, 4), "rank": (0, 42, 50, 5),
    }  # fmt: skip
    owner, start, end, place = columns(list(steps.values()))
    is_on_path, is_longest = critical_paths(owner, start, end, place)
    on_path = dict(zip(steps, is_on_path.tolist(), strict=True))
    assert [name for name, is_on in on_path.items() if is_on] == ["tokenize", "embed", "rank"]
    assert [name for name, is_it in zip(steps, is_longest.tolist(), strict=True) if is_it] == ["embed"]
    waits = dict(zip(steps, waited_from(owner, start, end, is_on_path).tolist(), strict=True))
    assert waits == {
        "tokenize": NULL, "filter": 11, "embed": 10, "child": 15, "second child": 25, "rank": 40
    }  # fmt: skip


@pytest.mark.parametrize("n", [0, 1])
def test_of_nothing_there_is_no_path_and_one_step_is_its_own(n: int) -> None:
    owner, start, end, place = columns([(7, 3, 9, 1)] * n)
    is_on_path, is_longest = critical_paths(owner, start, end, place)
    assert (is_on_path.tolist(), is_longest.tolist()) == ([True] * n, [True] * n)
    assert waited_from(owner, start, end, is_on_path).tolist() == [NULL] * n
