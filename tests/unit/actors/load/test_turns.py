"""Whose turn it is in each sequence, without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from squall.actors.load.sequence_turns import Passed, Turns
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.sequences import CUT, SequenceRule, Sequences

LENGTH = 3
RULE = SequenceRule(2, ConstantRows(value=LENGTH), 1, "r")
"""Lane 0 has requests 0 2 4 | 6 8 10 | …, lane 1 has 1 3 5 | 7 9 11 | …"""
NOTHING: Passed[str] = Passed(None, (), "", False)


def turns_of(**changes: bool) -> Turns[str]:
    rule = replace(RULE, **changes)  # type: ignore[arg-type]
    return Turns(Sequences(rule), rule)


def comes(turns: Turns[str], *ids: int) -> list[str]:
    return [turns.comes(one, f"request {one}")[0] for one in ids]


def test_a_request_waits_for_the_one_before_it_in_its_sequence_alone() -> None:
    turns = turns_of()
    assert comes(turns, 0, 1, 2, 4, 3) == ["now", "now", "later", "later", "later"]
    assert turns.n_waiting == 3
    assert turns.ended(0, True) == replace(NOTHING, next="request 2")
    assert turns.ended(2, True) == replace(NOTHING, next="request 4")
    assert comes(turns, 6) == ["now"], "the next sequence does not wait for the last of this one"
    assert turns.ended(4, True) == replace(NOTHING, is_over=True)
    assert turns.ended(1, True) == replace(NOTHING, next="request 3")
    assert turns.n_waiting == 0


def test_what_follows_a_request_that_failed_is_not_sent_and_the_next_sequence_is() -> None:
    turns = turns_of()
    assert comes(turns, 0, 2) == ["now", "later"]
    passed = turns.ended(0, False)
    assert (passed.next, passed.never, passed.is_over) == (None, ("request 2",), True)
    assert passed.why.startswith(CUT)
    assert turns.comes(4, "request 4") == ("never", passed.why)
    assert comes(turns, 6) == ["now"]


def test_a_sequence_goes_on_after_a_failure_where_it_is_told_to() -> None:
    turns = turns_of(is_cut_by_failure=False)
    comes(turns, 0, 2)
    assert turns.ended(0, False) == replace(NOTHING, next="request 2")


def test_without_order_nothing_waits_and_a_failure_still_cuts() -> None:
    turns = turns_of(is_ordered=False)
    assert comes(turns, 0, 2) == ["now", "now"]
    assert turns.ended(2, False).is_over
    assert comes(turns, 4) == ["never"]
    assert not turns.ended(0, True).next


def test_what_still_waits_at_the_end_is_told() -> None:
    turns = turns_of()
    comes(turns, 0, 2, 4, 1, 3)
    assert turns.rest() == ["request 2", "request 4", "request 3"]
    assert turns.n_waiting == 0
    assert turns.rest() == []


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_connection_is_named_where_it_is_kept(is_pinned: bool) -> None:
    turns = turns_of(is_pinned=is_pinned)
    keys = [turns.key_of(one) for one in (0, 2, 4, 6, 1)]
    assert (len(set(keys[:3])), len(set(keys))) == ((1, 3) if is_pinned else (1, 1))
    assert (keys[0] is None) != is_pinned


def test_a_sequence_keeps_its_server_until_its_end() -> None:
    turns = turns_of()
    comes(turns, 0)
    assert turns.target_of(0) is None
    turns.takes(0, 1)
    turns.ended(0, True)
    comes(turns, 2)
    assert turns.target_of(2) == 1
