"""What every spread of work does: that of this process, that over threads, and those of tests."""

from __future__ import annotations

import time

import pytest

from squall.analysis.storage.query import Spread, in_threads, in_turn
from squall.scenarios.errors import AnalysisError
from tests.unit.analysis.join.test_planted_join import Backwards

SPREADS: list[Spread] = [in_turn, in_threads(1), in_threads(3), Backwards()]
every = pytest.mark.parametrize(
    "spread", SPREADS, ids=["in turn", "one thread", "three threads", "backwards"]
)


def doubled(number: int) -> int:
    """The later, the sooner it is done."""
    time.sleep((4 - number % 5) / 1_000)
    return 2 * number


def refused(number: int) -> int:
    if number == 3:
        raise AnalysisError("three is one too many")
    return number


@every
def test_the_answers_are_in_the_order_of_the_partitions(spread: Spread) -> None:
    assert spread(doubled, range(12)) == [2 * number for number in range(12)]
    assert spread(doubled, []) == []


@every
def test_a_failure_is_raised_as_it_was(spread: Spread) -> None:
    with pytest.raises(AnalysisError, match="three is one too many"):
        spread(refused, range(12))
