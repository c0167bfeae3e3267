"""Who has which arrival: the ledger under each rule of dealing, and parts of a plan on their way to workers."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from squall.actors.load.worker import LoadWorker
from squall.cluster.driver.client_workers import Sending
from squall.cluster.driver.ingest import RECORD_GONE, WORKER_GONE, Ledger
from squall.cluster.remote.spawn import Handle
from squall.scenarios.model_shares import ranges_of
from squall.scenarios.plan.deal import DealRule, affinity_of
from squall.scenarios.plan.plan import PhaseSpan, Plan, deal

LABELS = {"run": "r", "target": "server-0", "request_kind": "m"}


def plan_of(n: int, rule: DealRule) -> Plan:
    seq = np.arange(n, dtype=np.int64)
    return Plan(
        seq=seq, offset_ns=seq * 10, phase=(seq % 2 > 0).astype(np.uint8), rows=np.full(n, 3, np.int32),
        variant=np.zeros(n, np.uint8), spans=(PhaseSpan("w", "warmup", 0, 5), PhaseSpan("m", "measure", 5, 10 * n)),
        deal=rule, affinity=affinity_of(seq // 3, seq) if rule == "session" else None,
    )  # fmt: skip


def rows_of(ledger: Ledger, *ended_ns: int | None) -> list[dict[str, Any]]:
    return [row for table in ledger.missing_tables(ended_ns or [None] * 3) for row in table.to_pylist()]


@pytest.mark.parametrize("rule", ["sequence", "hash", "session"])
def test_a_missing_row_names_the_worker_that_the_plan_deals_it_to(rule: DealRule) -> None:
    plan = plan_of(200, rule)
    nodes = ["node-0", "node-1", "node-0"]
    rows = rows_of(Ledger(plan, LABELS, nodes, 1_000))
    assert [row["request_id"] for row in rows] == list(range(200))
    sent_by = {seq: worker for worker, part in enumerate(deal(plan, 3)) for seq in part.seq.tolist()}
    assert {row["request_id"]: row["worker"] for row in rows} == sent_by
    assert {row["worker"]: row["node"] for row in rows} == dict(enumerate(nodes))
    assert [row["scheduled_ns"] for row in rows[:2]] == [1_000, 1_010]
    assert {(row["phase"], row["outcome"], row["detail"]) for row in rows} == {
        ("w", "lost", RECORD_GONE),
        ("m", "lost", RECORD_GONE),
    }


def test_a_missing_row_names_the_model_that_its_arrival_asked() -> None:
    plan = replace(
        plan_of(6, "sequence"), variant=np.array([0, 3, 1, 2, 4, 3], np.uint8), models=ranges_of([2, 3])
    )
    rows = rows_of(Ledger(plan, LABELS, ["node-0"] * 3, 0, models=["dense", "text"]))
    assert [row["request_kind"] for row in rows] == ["dense", "text", "dense", "text", "text", "text"]


def test_only_what_was_due_after_a_workers_end_is_known_to_be_unsent() -> None:
    plan = plan_of(30, "sequence")  # every 10 ns, in turn to workers 0, 1 and 2
    ledger = Ledger(plan, LABELS, ["node-0"] * 3, 10**18)
    ledger.note(recorded(plan, [0, 3]), 0)
    rows = rows_of(ledger, 90, None, 0)
    outcome = {row["request_id"]: row["outcome"] for row in rows}
    assert len(rows) == len(outcome) == 28
    assert {one: outcome[one] for one in (6, 9, 12, 27)} == {
        6: "lost",
        9: "unsent",
        12: "unsent",
        27: "unsent",
    }
    assert {outcome[one] for one in range(1, 30, 3)} == {"lost"}, "of worker 1 nothing is known"
    assert {outcome[one] for one in range(2, 30, 3)} == {"unsent"}, "worker 2 never began"
    assert {row["detail"] for row in rows} == {RECORD_GONE, WORKER_GONE}
    assert all(row["sent_ns"] is None and row["done_ns"] is None for row in rows)


def recorded(plan: Plan, ids: list[int], node_start_ns: int = 0) -> pa.Table:
    """What workers record of these arrivals, on the clock of their node."""
    columns = {"scheduled_ns": plan.offset_ns[ids] + node_start_ns, "rows": plan.rows[ids].astype(np.int64)}
    return pa.table({"request_id": ids, **columns})


def test_rows_at_other_instants_or_of_other_sizes_than_the_plans_are_counted() -> None:
    plan, node_starts_ns = plan_of(100, "sequence"), (10**15, -(10**12))
    good = recorded(plan, list(range(100)), node_starts_ns[0])
    ledger = Ledger(plan, LABELS, ["node-0", "node-1"], 10**18)
    ledger.note(good, node_starts_ns[0])
    ledger.note(recorded(plan, [1, 3], node_starts_ns[1]), node_starts_ns[1])
    assert ledger.n_misplaced == 0
    ledger.note(recorded(plan, [3, 4, 5], node_starts_ns[0] + 1), node_starts_ns[0])
    assert ledger.n_misplaced == 3
    ledger.note(recorded(plan, [3, 4], node_starts_ns[0]), node_starts_ns[1])
    assert ledger.n_misplaced == 5
    ledger.note(
        good.set_column(2, "rows", pa.array([9, *good.column("rows").to_pylist()[1:]])), node_starts_ns[0]
    )
    assert ledger.n_misplaced == 6


def test_missing_rows_come_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.cluster.driver.ingest._MISSING_ROWS", 16)
    plan = plan_of(100, "hash")
    ledger = Ledger(plan, LABELS, ["node-0"], 0)
    ledger.note(recorded(plan, [*range(16, 32), 50]), 0)
    tables = list(ledger.missing_tables([None]))
    assert [len(table) for table in tables] == [16, 16, 15, 16, 16, 4]
    ids = [seq for table in tables for seq in table.column("request_id").to_pylist()]
    assert ids == [*range(16), *range(32, 50), *range(51, 100)]
    assert ledger.n_missing == 83
    ledger.note(recorded(plan, ids), 0)
    assert ledger.n_missing == len(list(ledger.missing_tables([None]))) == 0


def test_a_plan_by_session_of_which_the_affinity_is_lost_is_refused() -> None:
    plan = replace(plan_of(10, "session"), affinity=None)
    with pytest.raises(ValueError, match="needs the affinity"):
        rows_of(Ledger(plan, LABELS, ["node-0", "node-1"], 0))


class _Handle:
    """Notes what is waited for."""

    def __init__(self, waited: list[Any]) -> None:
        self._waited = waited

    def wait(self, reference: Any) -> None:
        self._waited.append(reference)


def test_parts_under_way_stay_below_a_limit_and_all_are_waited_for() -> None:
    waited: list[Any] = []
    handle = cast(Handle[LoadWorker], _Handle(waited))
    sending = Sending(100)
    for reference, n_bytes, done in (
        ("a", 60, []), ("b", 40, []), ("c", 1, ["a"]), ("d", 500, ["a", "b", "c"]), ("e", 0, ["a", "b", "c", "d"]),
    ):  # fmt: skip
        sending.add(handle, cast(Future[None], reference), n_bytes)
        assert waited == done
    sending.finish()
    assert waited == ["a", "b", "c", "d", "e"]
