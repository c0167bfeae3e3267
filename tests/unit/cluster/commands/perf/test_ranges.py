"""Ranges as texts, and the levels that a search goes through."""

from __future__ import annotations

from collections.abc import Callable, Generator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.cluster.commands.perf.ranges import Range, binary, linear, parse_range
from squall.scenarios.errors import ScenarioError

RATES = st.decimals(min_value="0.1", max_value="1000", places=1)


def walked(
    levels: Generator[Fraction, bool, None], is_met: Callable[[Fraction], bool], most: int = 1_000
) -> list[Fraction]:
    found = [next(levels)]
    while len(found) < most:
        try:
            found.append(levels.send(is_met(found[-1])))
        except StopIteration:
            break
    return found


def whole(text: str) -> Range:
    return parse_range("--concurrency-range", text, is_whole=True)


@given(start=st.integers(1, 50), end=st.integers(0, 60), step=st.integers(1, 9))
def test_a_whole_range_is_that_of_python(start: int, end: int, step: int) -> None:
    levels = whole(f"{start}:{end}:{step}")
    expected = list(range(start, end + 1, step)) or [start]
    assert levels.is_open == (end == 0)
    if end:
        assert walked(linear(levels), lambda _: True) == expected
        assert levels.has_several == (len(expected) > 1)


@given(start=RATES, n=st.integers(0, 30), step=RATES)
def test_rates_are_exact(start: object, n: int, step: object) -> None:
    first, by = Fraction(str(start)), Fraction(str(step))
    end = first + n * by
    text = f"{start}:{end.numerator / end.denominator:.1f}:{step}"
    levels = parse_range("--request-rate-range", text, is_whole=False)
    assert walked(linear(levels), lambda _: True) == [first + index * by for index in range(n + 1)]


@pytest.mark.parametrize("text", ["", "a", "1:2:3:4", "0", "1:2:0", "-1", "1:-2", "1.5", "1/2", "inf"])
def test_what_is_no_range_is_refused_with_its_flag(text: str) -> None:
    with pytest.raises(ScenarioError, match=r"^--concurrency-range: "):
        whole(text)


def test_what_is_left_out_is_one() -> None:
    assert {whole("4").end, whole("4").step, whole("4:8").step} == {1}
    assert walked(linear(whole("4")), lambda _: True) == [4]


@given(edge=st.integers(1, 40), step=st.integers(1, 5))
def test_a_linear_search_ends_at_the_first_level_that_does_not_meet(edge: int, step: int) -> None:
    found = walked(linear(whole(f"1:0:{step}")), lambda at: at < edge)
    assert found == list(range(1, int(found[-1]) + 1, step))
    assert found[-1] >= edge or edge == 1
    assert all(at < edge for at in found[:-1])


@given(edge=st.integers(2, 128), step=st.integers(1, 6))
def test_a_binary_search_ends_within_a_step_of_the_edge(edge: int, step: int) -> None:
    found = walked(binary(whole(f"1:128:{step}")), lambda at: at < edge)
    met = max(at for at in found if at < edge)
    not_met = min(at for at in found if at >= edge)
    assert found[:2] == [1, 128]
    assert 0 < not_met - met <= step


def test_a_binary_search_ends_where_the_start_fails_or_the_end_does_not() -> None:
    assert walked(binary(whole("2:9")), lambda _: False) == [2]
    assert walked(binary(whole("2:9")), lambda _: True) == [2, 9]
