"""Whose turn it is to be asked."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from squall.cluster.remote.turns import Turns


def test_few_are_asked_every_time() -> None:
    turns = Turns(most=3)
    assert [turns.next("abc") for _ in range(2)] == [list("abc")] * 2
    assert turns.next("") == []


@given(st.integers(1, 50), st.integers(1, 10))
def test_of_many_each_has_its_turn_as_often_as_the_others(n: int, most: int) -> None:
    turns, asked = Turns(most), Counter[int]()
    for _ in range(n):
        found = turns.next(range(n))
        assert len(found) == len(set(found)) == min(n, most)
        asked.update(found)
    assert set(asked.values()) == {min(n, most)}


@given(st.lists(st.integers(0, 30), min_size=1))
def test_some_may_go_meanwhile(sizes: list[int]) -> None:
    turns = Turns(most=4)
    for size in sizes:
        assert len(turns.next(range(size))) == min(size, 4)
