"""What was a lost worker's and is dealt to the others: whole, evenly, and the same wherever it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.plan.deal import DealRule, Redeal, affinity_of, owners_of, workers_of
from squall.scenarios.plan.plan import PhaseSpan, Plan, deal, deal_again
from tests.merged_plans import merge

RULES: tuple[DealRule, ...] = ("sequence", "hash", "session")


def plan_of(gaps_ns: Sequence[int], rule: DealRule) -> Plan:
    offsets = np.array([0, *accumulate(gaps_ns)], np.int64)
    seq = np.arange(offsets.size, dtype=np.int64)
    return Plan(
        seq=seq, offset_ns=offsets, phase=np.zeros(seq.size, np.uint8), rows=(1 + seq % 3).astype(np.int32),
        variant=(seq % 4).astype(np.uint8), spans=(PhaseSpan("m", "measure", 0, int(offsets[-1]) + 1),), deal=rule,
        affinity=affinity_of(seq // 3, seq) if rule == "session" else None,
    )  # fmt: skip


def owners(plan: Plan, n_workers: int, redeals: Sequence[Redeal]) -> np.ndarray:
    return owners_of(plan.deal, plan.seq, plan.affinity, plan.offset_ns, n_workers, redeals)


def cut(part: Plan, from_ns: int) -> Plan:
    """What of a part is due before."""
    kept = part.offset_ns < from_ns
    columns = {name: getattr(part, name)[kept] for name in part.columns}
    return Plan(spans=part.spans, deal=part.deal, **columns)


@given(
    gaps_ns=st.lists(st.integers(0, 5), max_size=80),
    rule=st.sampled_from(RULES),
    n_workers=st.integers(2, 5),
    losses=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300)), max_size=4),
)
def test_the_union_of_what_is_sent_is_the_plan_whoever_is_lost_and_when(
    gaps_ns: list[int], rule: DealRule, n_workers: int, losses: list[tuple[int, int]]
) -> None:
    """A lost worker sends its parts up to the instant, and the takers what `deal_again` gives them, each once."""
    plan = plan_of(gaps_ns, rule)
    held: list[tuple[int, Plan]] = list(enumerate(deal(plan, n_workers)))
    redeals: list[Redeal] = []
    living = set(range(n_workers))
    for lost, from_ns in losses:
        if lost not in living or len(living) == 1:
            continue
        living.discard(lost)
        redeals.append(Redeal(lost, from_ns, tuple(sorted(living))))
        given_ = deal_again(plan, n_workers, redeals)
        held = [(owner, cut(part, from_ns) if owner == lost else part) for owner, part in held]
        held += given_.items()
        assert set(given_) <= living
    whole = merge([part for _, part in held])
    assert whole.sha256() == plan.sha256()
    sent_by = {seq: owner for owner, part in held for seq in part.seq.tolist()}
    assert owners(plan, n_workers, redeals).tolist() == [sent_by[seq] for seq in range(len(plan))]


@pytest.mark.parametrize("rule", RULES)
def test_without_a_loss_the_owner_is_the_worker_of_the_deal(rule: DealRule) -> None:
    plan = plan_of([1] * 500, rule)
    assert owners(plan, 7, ()).tolist() == workers_of(rule, plan.seq, plan.affinity, 7).tolist()


def test_in_turn_stays_in_turn_also_where_the_numbers_have_a_common_factor() -> None:
    """Of four workers two are lost, one after the other: what they had alternates between those that are left."""
    plan = plan_of([1] * 799, "sequence")
    found = owners(plan, 4, [Redeal(1, 0, (0, 2, 3)), Redeal(3, 0, (0, 2))])
    assert found[1::4].tolist()[:12] == [0, 2, 0, 0, 2, 2, 0, 2, 0, 0, 2, 2]
    assert found[3::4].tolist()[:6] == [0, 2, 0, 2, 0, 2]
    assert np.bincount(found).tolist() == [400, 0, 400]


def test_a_hash_deals_again_without_a_pattern() -> None:
    """z of 3 takers' shares of the lost worker's n arrivals: binomial, |z| < 5."""
    plan = plan_of([1] * 39_999, "hash")
    first = workers_of("hash", plan.seq, None, 4)
    found = owners(plan, 4, [Redeal(2, 0, (0, 1, 3))])[first == 2]
    n = found.size
    assert abs(n - 10_000) < 5 * np.sqrt(40_000 * 0.25 * 0.75)
    for taker in (0, 1, 3):
        assert abs(np.count_nonzero(found == taker) - n / 3) < 5 * np.sqrt(n * 2 / 9)


def test_a_session_moves_as_a_whole() -> None:
    plan = plan_of([1] * 2_999, "session")
    found = owners(plan, 3, [Redeal(0, 0, (1, 2))])
    assert {len(set(found[start : start + 3])) for start in range(0, 3_000, 3)} == {1}
    assert set(found) == {1, 2}


@pytest.mark.parametrize("takers", [(), (0, 1)])
def test_a_redeal_needs_others_to_deal_to(takers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="what worker 1 had cannot be dealt to"):
        Redeal(1, 0, takers)
