"""Which batch holds an operation, against a search through all batches; and which instance a lane is of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from squall.analysis.join.holders import AMBIGUOUS, FEWEST, UNHELD
from squall.cluster.node.injected.kernel_owners import (
    Instance,
    Int64s,
    Tally,
    by_lane,
    held_by,
)

SPAN = st.tuples(st.integers(0, 40), st.integers(1, 12)).map(lambda one: (one[0], one[0] + one[1]))


def instance(spans: list[tuple[int, int]]) -> Instance:
    start, end = (np.array([span[edge] for span in spans], np.int64) for edge in (0, 1))
    return Instance(start, end, np.arange(len(spans)) + 100)


def by_hand(spans: list[tuple[int, int]], start: int, end: int) -> int:
    """The batch id, AMBIGUOUS, or UNHELD."""
    held = [number for number, (first, last) in enumerate(spans) if first <= start and end <= last]
    return UNHELD if not held else AMBIGUOUS if len(held) > 1 else held[0] + 100


@example([(0, 7), (0, 7), (5, 6)], [(4, 3)])
@given(st.lists(SPAN, max_size=12), st.lists(st.tuples(st.integers(0, 55), st.integers(0, 3)), max_size=20))
def test_the_batch_that_holds_an_operation_is_the_one_found_by_hand(
    spans: list[tuple[int, int]], points: list[tuple[int, int]]
) -> None:
    start = np.array([at for at, _ in points], np.int64)
    end = start + np.array([length for _, length in points], np.int64)
    own = instance(spans)
    found = own.holders(start, end)
    ids = np.where(found >= 0, own.batch_ids(found), found)
    wanted = [by_hand(spans, *one) for one in zip(start.tolist(), end.tolist(), strict=True)]
    nested = [any(s <= first and last < e for first, last in spans) for s, e in zip(start, end, strict=True)]
    for got, want, is_longer in zip(ids.tolist(), wanted, nested, strict=True):
        assert got == want or (is_longer and got == AMBIGUOUS and want >= 0)


def batches(n: int, first: int, every: int, length: int) -> list[tuple[int, int]]:
    return [(first + number * every, first + number * every + length) for number in range(n)]


def ops_in(spans: list[tuple[int, int]], lead: int = 12) -> tuple[Int64s, Int64s]:
    start = np.array([first + lead for first, _ in spans], np.int64)
    return start, start + 2


class TestOwners:
    A, B = batches(100, 0, 50, 40), batches(100, 20, 50, 40)

    def owners(self, *lanes: tuple[tuple[int, ...], tuple[Int64s, Int64s]]) -> dict[tuple[int, ...], int]:
        tally = Tally((instance(self.A), instance(self.B)), (100, 100))
        for lane, spans in lanes:
            tally.add(lane, *spans)
        return tally.owners()

    def test_a_process_is_of_the_instance_that_holds_all_of_it(self) -> None:
        found = self.owners(((7, 1, 7), ops_in(self.A)), ((8, 1, 7), ops_in(self.B, 22)))
        assert found == {(7,): 0, (7, 1, 7): 0, (8,): 1, (8, 1, 7): 1}

    def test_streams_of_one_process_are_told_apart(self) -> None:
        found = self.owners(((7, 1, 7), ops_in(self.A)), ((7, 1, 13), ops_in(self.B, 22)))
        assert found == {(7, 1, 7): 0, (7, 1, 13): 1}

    def test_what_both_hold_nearly_always_has_no_owner(self) -> None:
        both = ops_in(self.A[:-1], 25)
        assert self.owners(((7, 1, 7), both)) == {}
        few = [*self.A[:4], *((first + 13, first + 30) for first, _ in self.A[4:99])]
        assert self.owners(((7, 1, 7), ops_in(few))) == {(7,): 0, (7, 1, 7): 0}

    def test_what_no_instance_holds_has_no_owner(self) -> None:
        outside = ops_in([*self.A[:97], (10**6, 10**6), (10**6, 10**6)])
        assert self.owners(((7, 1, 7), outside)) == {}

    @pytest.mark.parametrize(("n", "is_owned"), [(FEWEST - 1, False), (FEWEST, True)])
    def test_a_few_operations_tell_nothing(self, n: int, is_owned: bool) -> None:
        found = self.owners(((7, 1, 7), ops_in(self.A[:n])))
        assert (found == {(7,): 0, (7, 1, 7): 0}) is is_owned

    def test_a_stream_of_few_operations_is_of_the_instance_of_its_process(self) -> None:
        found = self.owners(((7, 1, 7), ops_in(self.A)), ((7, 1, 13), ops_in(self.A[:3])))
        assert found == {(7,): 0, (7, 1, 7): 0, (7, 1, 13): 0}


class TestBusyInstances:
    """Both compute nearly all the time: their batches hold 99 % of anything."""

    A, B = batches(1_000, 0, 1_000, 990), batches(1_000, 500, 1_000, 990)

    def owner(self, start: Int64s, n_begun: int = 1_000) -> dict[tuple[int, ...], int]:
        tally = Tally((instance(self.A), instance(self.B)), (n_begun, n_begun))
        tally.add((7, 1, 7), start, start + 1)
        return tally.owners()

    @staticmethod
    def of_b(n: int, n_astray: int = 0) -> Int64s:
        """`n` operations all over the batches of b, and some in its pauses."""
        at = np.linspace(600, 900_000, n).astype(np.int64)
        return np.concatenate([at[at % 1_000 // 10 != 49], np.arange(n_astray) * 1_000 + 495])

    def test_the_one_that_misses_nothing_is_the_owner(self) -> None:
        assert self.owner(self.of_b(20_000)) == {(7,): 1, (7, 1, 7): 1}

    def test_of_fewer_operations_than_pauses_tell_there_is_none(self) -> None:
        assert self.owner(self.of_b(1_000)) == {}

    def test_if_it_misses_a_few_too_there_is_none(self) -> None:
        assert self.owner(self.of_b(20_000, n_astray=15)) == {(7,): 1, (7, 1, 7): 1}
        assert self.owner(self.of_b(20_000, n_astray=80)) == {}

    def test_batches_that_hardly_ever_begin_tell_nothing(self) -> None:
        assert self.owner(self.of_b(20_000), n_begun=FEWEST - 1) == {}


def test_without_batches_nothing_is_owned() -> None:
    tally = Tally((), ())
    tally.add((7, 1, 7), *ops_in(TestOwners.A))
    assert tally.owners() == {}


def test_rows_of_a_lane_keep_their_order() -> None:
    context, stream = np.array([1, 1, 2, 1]), np.array([7, 8, 7, 7])
    found = {lane: rows.tolist() for lane, rows in by_lane(5, context, stream)}
    assert found == {(5, 1, 7): [0, 3], (5, 1, 8): [1], (5, 2, 7): [2]}
    assert list(by_lane(5, np.zeros(0), np.zeros(0))) == []


def test_each_operation_has_the_batch_of_its_lane() -> None:
    instances = (instance([(0, 10), (20, 30)]), instance([(0, 30), (22, 40)]))
    start = np.array([1, 21, 12, 23, 1, 35])
    lanes = [((5, 1, 7), np.array([0, 1, 2])), ((5, 1, 8), np.array([3, 4])), ((6, 1, 7), np.array([5]))]
    held = held_by(instances, {(5, 1, 7): 0, (5, 1, 8): 1}, lanes, start, start + 2)
    assert held.instance.tolist() == [0, 0, 0, 1, 1, -1]
    assert held.is_tied.tolist() == [True, True, False, False, True, False]
    assert held.is_ambiguous.tolist() == [False, False, False, True, False, False]
    assert held.batch_id[held.is_tied].tolist() == [100, 101, 100]
