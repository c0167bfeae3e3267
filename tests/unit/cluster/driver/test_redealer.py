"""Leases by the driver's clock: how long they are, from when on one is surely over, and what is dealt anew then."""

from __future__ import annotations

import numpy as np
import pytest

from squall.analysis.clocks.track import ClockTrack
from squall.cluster.driver.redealing.redealer import MARGIN_NS, Redealer, redeals_of, told_of_redeal
from squall.scenarios.plan.plan import PhaseSpan, Plan

S = 1_000_000_000
ANCHOR_NS, START_NS = 1_000 * S, 1_500 * S
"""The run clock minus the driver's; the start instant on the run clock: 500 s of the driver's."""
AHEAD_NS, ERROR_NS = 77 * S, 3_000
"""The node's clock minus the run clock, and how well that is known."""


def plan_of(n: int, gap_ns: int) -> Plan:
    seq = np.arange(n, dtype=np.int64)
    return Plan(
        seq=seq, offset_ns=seq * gap_ns, phase=np.zeros(n, np.uint8), rows=np.ones(n, np.int32),
        variant=np.zeros(n, np.uint8), spans=(PhaseSpan("m", "measure", 0, n * gap_ns + 1),),
    )  # fmt: skip


class At:
    """The driver's monotonic clock, set by hand to seconds after the start instant."""

    def __init__(self, offset_s: float) -> None:
        self.offset_s = offset_s

    def __call__(self) -> int:
        return START_NS - ANCHOR_NS + round(self.offset_s * S)


def redealer_at(now: At, n: int = 1_000, n_workers: int = 3) -> Redealer:
    clock = ClockTrack.constant(-AHEAD_NS, ERROR_NS)
    made = Redealer(plan_of(n, S // 100), n_workers, 5 * S, lambda: {"node-1": clock}, ANCHOR_NS, now)
    made.begin(START_NS, {"node-1": START_NS + AHEAD_NS})
    return made


def test_a_lease_lasts_its_time_from_now_on_on_the_clock_of_the_node() -> None:
    now = At(2.5)
    assert redealer_at(now).until_ns("node-1") == START_NS + AHEAD_NS + round(7.5 * S)


def test_the_first_lease_is_given_as_of_the_start() -> None:
    assert redealer_at(At(-0.5)).until_ns("node-1") == START_NS + AHEAD_NS + 5 * S


def test_a_lease_is_over_where_no_error_of_the_clock_leaves_a_doubt() -> None:
    now = At(0)
    made = redealer_at(now)
    until_ns = made.until_ns("node-1")
    for offset_ns, over_ns in (
        (4 * S, None),
        (5 * S, None),
        (5 * S + ERROR_NS - 1, None),
        (5 * S + ERROR_NS, 5 * S + ERROR_NS),
        (9 * S, 5 * S + ERROR_NS),
    ):
        now.offset_s = offset_ns / S
        assert made.surely_over_ns("node-1", until_ns) == over_ns, offset_ns


def test_what_is_due_after_the_margin_is_dealt_to_the_others_and_told() -> None:
    made = redealer_at(At(3.0))
    assert made.redeal(1, "worker 1 is lost", 2_900_000_000, (0, 2))
    made.close()
    (dealt,) = made.ready()
    facts = dealt.facts
    assert (facts.worker, facts.why, facts.lost_ns, facts.takers) == (
        1, "worker 1 is lost", 2_900_000_000, (0, 2)
    )  # fmt: skip
    assert facts.from_ns == 3 * S + MARGIN_NS + 700 * 100, "100 ns for each of the 700 arrivals left"
    due = [seq for seq in range(1, 1_000, 3) if seq * S // 100 >= facts.from_ns]
    assert sorted(seq for part in dealt.parts.values() for seq in part.seq.tolist()) == due
    assert facts.n_arrivals == len(due)
    assert {taker: len(part) for taker, part in dealt.parts.items()} == {0: 83, 2: 83}
    assert redeals_of([facts])[0].from_ns == facts.from_ns
    assert told_of_redeal(facts) == "166 arrivals of worker 1 due from 5.000 s on are dealt to workers 0, 2"
    assert made.ready() == []


def test_a_lease_that_ends_only_later_moves_the_instant_on() -> None:
    made = redealer_at(At(3.0))
    made.redeal(1, "", 4 * S, (0,))
    made.close()
    (dealt,) = made.ready()
    assert dealt.facts.from_ns > 4 * S + MARGIN_NS


@pytest.mark.parametrize(("offset_s", "takers"), [(8.5, (0, 2)), (3.0, ()), (20.0, (0, 2))])
def test_nothing_is_dealt_where_nothing_is_due_any_more_or_nobody_is_left(
    offset_s: float, takers: tuple[int, ...]
) -> None:
    made = redealer_at(At(offset_s))
    assert not made.redeal(1, "", 0, takers)
    assert made.ready() == []
