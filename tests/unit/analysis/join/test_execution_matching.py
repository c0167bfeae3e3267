"""Operations of batches that overlap, of an instance that says whose each is: tied to the true batch, or to none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.many_examples import examples
from tests.overlapping_batches import Batches, Found, Rules, Schedule, Window, found, schedule

MS = 1_000_000


def windows_of(made: Schedule, on_ns: int, every_ns: int, first_ns: int) -> list[Window]:
    return [(at, at + on_ns) for at in range(first_ns, made.end_ns - on_ns, every_ns)]


@pytest.mark.parametrize(
    ("rules", "least_before", "most_before"),
    [
        (Rules(gap_us=800), 0.3, 0.6),
        (Rules(gap_us=800, jitter=0), 0.3, 0.6),
        (Rules(gap_us=800, n_event_sets=0), 0.3, 0.6),
        (Rules(gap_us=800, n_event_sets=3, events=(2, 4, 6, 7)), 0.3, 0.6),
        (Rules(gap_us=800, events=(7,)), 0.3, 0.6),
        (Rules(gap_us=800, ahead=3), 0.3, 0.6),
        (Rules(n_instances=2, gap_us=400), 0.4, 0.7),
    ],
    ids=["two events", "no jitter", "new events", "four events", "one event", "three ahead", "two instances"],
)
def test_with_events_nearly_all_are_tied_and_to_the_batch_that_they_are_of(
    rules: Rules, least_before: float, most_before: float
) -> None:
    made = schedule(rules)
    before, after = found(made, with_events=False), found(made)
    assert least_before < before.share < most_before, "the intervals overlap"
    assert (before.n_wrong, after.n_wrong) == (0, 0)
    assert after.share > 0.99


def test_an_instance_that_always_has_more_to_do_leaves_its_copies_to_none() -> None:
    made = schedule(Rules())
    after = found(made)
    is_kernel = np.arange(len(after.true_batch)) % 7 < 6
    assert after.n_wrong == 0
    assert after.is_tied[is_kernel].mean() > 0.99
    assert after.is_tied[~is_kernel].mean() < 0.1, (
        "they end one execution or begin the next: nothing says which"
    )


def test_where_the_next_three_always_wait_nothing_tells_and_nothing_is_tied() -> None:
    made = schedule(Rules(ahead=3))
    after = found(made)
    assert after.n_wrong == 0
    assert after.share < 0.05


def test_a_window_may_begin_and_end_amid_an_execution() -> None:
    made = schedule(Rules(n_batches=600, gap_us=700))
    after = found(made, windows_of(made, 20 * MS, 31 * MS, 3_333_000))
    assert len(after.true_batch) > 500
    assert after.n_wrong == 0
    assert after.share > 0.95


def test_what_one_window_tells_of_the_events_holds_in_the_others() -> None:
    """Of a busy window alone the copies cannot be told; one in which the instance is idle now and then says of which
    event an execution ends with."""
    made = schedule(Rules(n_batches=300, gap_us=300, seed=3))
    idle = schedule(Rules(n_batches=300, gap_us=1_500, seed=3))
    assert found(made).share < 0.9
    later = joined(made, idle)
    after = found(later, [(0, made.end_ns), (made.end_ns, later.end_ns)])
    assert after.n_wrong == 0
    assert after.share > 0.98


def joined(first: Schedule, second: Schedule) -> Schedule:
    """One after the other, of the same instance."""
    shift_ns, n = first.end_ns, 100_000
    for rows in (second.operations, second.events):
        rows["correlation_id"] += n
    for name in ("start_ns", "end_ns"):
        second.operations[name] += shift_ns
    (one,), (other,) = first.instances, second.instances
    both = zip(one, other, (shift_ns, shift_ns, n), strict=True)
    batches = Batches(*(np.append(before, after + ahead) for before, after, ahead in both))
    return Schedule(
        (batches,), np.append(first.operations, second.operations),
        np.append(first.true_batch, second.true_batch + n), np.append(first.true_instance, second.true_instance),
        np.append(first.launched_ns, second.launched_ns + shift_ns), np.append(first.events, second.events),
        np.append(first.recorded_ns, second.recorded_ns + shift_ns), first.end_ns + second.end_ns,
    )  # fmt: skip


def test_an_event_that_is_lost_leaves_its_window_as_it_was_and_no_other() -> None:
    made = schedule(Rules(gap_us=800, lost_events=frozenset([77])))
    assert found(made).n_wrong == 0
    assert found(made).is_tied.tolist() == found(made, with_events=False).is_tied.tolist()
    whole = schedule(Rules(n_batches=600, gap_us=700))
    windows = windows_of(whole, 20 * MS, 31 * MS, 3_333_000)
    first_ns, last_ns = windows[5]
    amid = int(np.searchsorted(whole.recorded_ns, (first_ns + last_ns) // 2))
    after = found(schedule(Rules(n_batches=600, gap_us=700, lost_events=frozenset([amid]))), windows)
    assert after.n_wrong == 0
    assert 0.02 < found(whole, windows).share - after.share < 0.1


def test_a_batch_without_an_execution_costs_its_neighbours_alone() -> None:
    after = found(schedule(Rules(gap_us=800, n_batches=1_000, without_execution=frozenset([300, 700]))))
    assert after.n_wrong == 0
    assert after.share > 0.97


@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_of_which_nobody_told_tie_nothing_that_was_not_tied(ahead: int) -> None:
    """An operation of such a batch may lie in one other alone: that is so without events too."""
    made = schedule(
        Rules(gap_us=800, n_batches=1_000, ahead=ahead, unreported=frozenset([100, 400, 401, 402, 403, 800]))
    )
    before, after = found(made, with_events=False), found(made)
    wrong = tied_wrong(after)
    assert wrong == tied_wrong(before)
    assert len(wrong) < 60


def tied_wrong(one: Found) -> set[int]:
    return set(np.flatnonzero(one.is_tied & (one.batch_id != one.true_batch)).tolist())


def test_lanes_that_several_busy_instances_could_have_are_of_none() -> None:
    after = found(schedule(Rules(n_instances=2, gap_us=300, n_batches=400)))
    assert after.n_wrong == 0


def test_of_two_instances_that_both_fit_a_lane_is_of_neither() -> None:
    made = schedule(Rules(gap_us=800))
    twins = Schedule(
        (made.instances[0], made.instances[0]), made.operations, made.true_batch, made.true_instance,
        made.launched_ns, made.events, made.recorded_ns, made.end_ns,
    )  # fmt: skip
    assert found(twins).share == 0


RULES = st.builds(
    Rules,
    seed=st.integers(0, 10_000),
    n_batches=st.integers(20, 120),
    n_instances=st.integers(1, 3),
    n_kernels=st.integers(1, 5),
    kernel_us=st.sampled_from([5.0, 40.0, 300.0]),
    jitter=st.sampled_from([0.0, 0.1, 1.0]),
    ahead=st.integers(1, 3),
    gap_us=st.sampled_from([20.0, 150.0, 600.0, 2_000.0]),
    events=st.sets(st.integers(1, 6), max_size=3).map(lambda some: tuple(sorted(some))),
    n_event_sets=st.integers(0, 3),
    without_execution=st.sets(st.integers(0, 119), max_size=2).map(frozenset),
    lost_events=st.sets(st.integers(0, 119), max_size=1).map(frozenset),
    answer_us=st.sampled_from([5.0, 60.0, 500.0]),
)


@example(Rules(20, 20, 2, 2, 5.0, jitter=0, gap_us=20, n_event_sets=0), 2, 0, False)
@example(
    Rules(0, 20, n_kernels=2, kernel_us=40, jitter=0, gap_us=20, events=(1,), lost_events=frozenset([6])),
    2,
    0,
    False,
)
@example(
    Rules(0, 57, n_kernels=3, kernel_us=300, jitter=0, gap_us=20, events=(2,), n_event_sets=0,
          without_execution=frozenset([50]), answer_us=5), 35, 20, False,
)  # fmt: skip
@given(RULES, st.integers(2, 40), st.integers(0, 20), st.booleans())
@examples(150)
def test_whatever_is_tied_is_tied_to_the_true_batch(
    rules: Rules, on_ms: int, first_ms: int, is_whole: bool
) -> None:
    """An execution ends with an event, whatever others there are; one that is lost is missed where several recur."""
    last = rules.n_kernels + 1
    events = (*(one for one in rules.events if one < last), last)
    lost = rules.lost_events if rules.n_event_sets and len(events) > 1 else frozenset[int]()
    made = schedule(replace(rules, events=events, lost_events=lost))
    windows = None if is_whole else windows_of(made, on_ms * MS, 2 * on_ms * MS, first_ms * MS)
    if windows == []:
        return
    assert found(made, windows).n_wrong == 0


def test_events_that_end_no_execution_tie_nothing_wrong_where_the_instance_is_idle_now_and_then() -> None:
    made = schedule(Rules(gap_us=800, events=(3,), n_batches=400))
    before, after = found(made, with_events=False), found(made)
    assert after.n_wrong == 0
    assert after.share == before.share
