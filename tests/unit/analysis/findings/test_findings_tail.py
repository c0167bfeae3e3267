from __future__ import annotations

from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.findings.rules.confidence import RunState
from squall.analysis.findings.sent import SentRequests
from squall.analysis.findings.tail import TAIL_PARTS, Tail, tail_finding, tails
from squall.analysis.schema import arrow_schema
from tests.many_examples import examples

COLUMNS = (
    "phase", "target", "request_kind", "outcome", "request_id", "batch_id", "sent_ns", "response_ns", "service_ns",
    "lag_ns", "wait_ns",
    "compute_ns", "reply_ns", "parts_level", "network_ns", "queue_ns", "input_ns", "handover_ns", "output_ns",
    "residual_ns", "kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns",
    "n_kernels", "n_copies",
)  # fmt: skip
Row = dict[str, Any]


def connection_with(rows: list[Row]) -> duckdb.DuckDBPyConnection:
    """A connection with a view `joined` of `rows`; what a row lacks is null."""
    types = {
        one.name: pa.string() if pa.types.is_dictionary(one.type) else one.type
        for one in arrow_schema("joined")
    }
    table = pa.table({name: pa.array([row.get(name) for row in rows], types[name]) for name in COLUMNS})
    connection = duckdb.connect()
    connection.register("joined", table)
    return connection


def request(number: int, queue_ns: int, is_split: bool = True, is_profiled: bool = True) -> Row:
    """A request of 1 ms and its queue: 100 µs lag, 300 µs network, 600 µs compute."""
    row: Row = {
        "phase": "burst", "target": "server-0", "request_kind": "m", "outcome": "ok", "request_id": number,
        "batch_id": number, "sent_ns": number, "lag_ns": 100_000, "compute_ns": 600_000, "wait_ns": 200_000 + queue_ns,
        "reply_ns": 100_000, "parts_level": "trace" if is_split else "none", "response_ns": 1_000_000 + queue_ns,
        "service_ns": 900_000 + queue_ns,
    }  # fmt: skip
    if is_split:
        row |= {"network_ns": 250_000, "queue_ns": queue_ns, "input_ns": 10_000, "handover_ns": 30_000,
                "output_ns": 9_000, "residual_ns": 1_000}  # fmt: skip
    if is_profiled:
        row |= {"kernel_busy_ns": 300_000, "copy_exposed_ns": 50_000, "sync_wait_ns": 0, "launch_idle_ns": 50_000,
                "head_ns": 150_000, "tail_ns": 50_000, "n_kernels": 9, "n_copies": 1}  # fmt: skip
    return row


def of_burst(rows: list[Row]) -> Tail:
    found = tails(connection_with(rows), ["burst"])["burst", "server-0", ""]
    assert isinstance(found, Tail)
    return found


def test_the_tail_names_the_part_that_grew_most() -> None:
    rows = [request(i, 50_000 if i % 50 else 40_000_000 + i) for i in range(1_000)]  # 2 % wait 40 ms
    tail = of_burst(rows)
    assert tail.n == 11  # nearest rank: the 990th of 1,000 and the 10 beyond
    assert tail.n_base == 980  # half of the rows and more are of one value, which is the median
    assert tail.grew_most == "queue"
    assert tail.growth_ns["queue"] == pytest.approx(sum(tail.growth_ns.values()))
    connection = connection_with(rows)
    finding = tail_finding(
        connection, ("burst", "server-0", ""), tail, {"m": "Their batches are launch-bound."}
    )
    assert finding.rule == "queue grows"
    assert "queue grew most, by 40.0 ms, 100 % of the difference." in finding.claim
    assert finding.claim.endswith("Their batches are launch-bound.")
    assert finding.rows is not None
    assert [row["request_id"] for row in finding.rows.worst] == [950, 900, 850, 800, 750]
    ((n,),) = connection.execute(f"SELECT count(*) FROM joined WHERE {finding.rows.where}").fetchall()
    assert n == tail.n


def test_parts_that_are_not_known_stay_whole() -> None:
    tail = of_burst([request(i, i * 1_000, is_split=False, is_profiled=False) for i in range(1_000)])
    assert {part for part, value in tail.parts_ns.items() if value} == {"lag", "wait", "compute", "reply"}
    assert tail.grew_most == "wait"
    known = ("phase", "target", "outcome", "request_id", "sent_ns", "response_ns", "service_ns", "lag_ns")
    rows = [request(i, i * 1_000) for i in range(1_000)]
    lost = [{**{name: row[name] for name in known}, "parts_level": "none"} for row in rows]
    assert {part for part, value in of_burst(lost).parts_ns.items() if value} == {"lag", "unjoined"}


def test_a_profiled_batch_without_work_on_a_gpu_has_no_head() -> None:
    rows = [
        {**request(i, i * 1_000), "n_kernels": 0, "n_copies": 0, "head_ns": 600_000} for i in range(1_000)
    ]
    parts = of_burst(rows).parts_ns
    assert (parts["compute"], parts["head"]) == (600_000, 0)


def test_without_calls_waits_and_launches_are_one_part_and_the_tail_is_told_all_the_same() -> None:
    rows = [{**request(i, i * 1_000), "sync_wait_ns": None, "launch_idle_ns": None} for i in range(1_000)]
    tail = of_burst(rows)
    assert (tail.parts_ns["body_idle"], tail.parts_ns["sync_wait"], tail.parts_ns["launch_idle"]) == (
        50_000,
        0,
        0,
    )
    assert tail.parts_ns["unjoined"] == 0
    assert tail.grew_most == "queue"
    assert of_burst([request(i, i * 1_000) for i in range(1_000)]).parts_ns["body_idle"] == 0


def test_a_p99_that_the_requests_do_not_carry_is_not_assessed() -> None:
    rows = [request(i, i) for i in range(100)]
    found = tails(connection_with(rows), ["burst"])["burst", "server-0", ""]
    assert found == 100
    finding = tail_finding(connection_with(rows), ("burst", "server-0", ""), found, {})
    assert finding.rule == "not assessed"
    assert "100 ok requests carry no p99, which takes 368" in finding.claim


def test_failed_requests_are_in_neither_group_and_a_closed_loop_has_its_service_time() -> None:
    rows = [request(i, i * 1_000) for i in range(1_000)]
    failed = [{**request(1_000 + i, 10**9), "outcome": "timeout"} for i in range(50)]
    assert of_burst([*rows, *failed]) == of_burst(rows)
    closed = [{**row, "response_ns": None, "lag_ns": None} for row in rows]
    tail = of_burst(closed)
    assert tail.parts_ns["lag"] == 0
    assert tail.p99_ns == of_burst(rows).p99_ns - 100_000


@pytest.mark.parametrize(("n_failed", "is_told"), [(10, False), (11, True)])  # of 1,010 and 1,011
def test_a_tail_says_how_many_requests_are_missing_from_it(n_failed: int, is_told: bool) -> None:
    rows = [request(i, 50_000 if i % 50 else 40_000_000 + i) for i in range(1_000)]
    lost = [{**request(1_000 + i, 10**9), "outcome": "timeout", "batch_id": None} for i in range(n_failed)]
    connection = connection_with([*rows, *lost])
    sent = SentRequests.read(connection).of("burst", "server-0")
    assert (sent.n, sent.n_ok, sent.n_unserved) == (1_000 + n_failed, 1_000, n_failed)
    finding = tail_finding(connection, ("burst", "server-0", ""), of_burst(rows), {}, RunState(), sent)
    start = "11 of 1,011 requests did not end ok and are not among these. The 11 requests at or beyond"
    assert finding.claim.startswith(start) == is_told
    assert (finding.confidence == "medium") == is_told


@pytest.mark.parametrize(
    "state", [RunState(losses=("worker 1 died",)), RunState(unmet_checks=("in flight",))]
)
def test_a_tail_of_a_run_that_lost_something_is_less_sure(state: RunState) -> None:
    rows = [request(i, 50_000 if i % 50 else 40_000_000 + i) for i in range(1_000)]
    finding = tail_finding(connection_with(rows), ("burst", "server-0", ""), of_burst(rows), {}, state)
    assert (finding.confidence, len(finding.confidence_reasons)) == ("medium", 1)
    flat = [request(i, 50_000) for i in range(1_000)]
    none = tail_finding(connection_with(flat), ("burst", "server-0", ""), of_burst(flat), {}, state)
    assert (none.rule, none.confidence) == ("none", "medium")


@examples(16)
@given(n=st.integers(368, 800), most_ns=st.sampled_from((3, 10**6, 10**9)), seed=st.integers(0, 2**32 - 1))
def test_parts_add_up_to_the_latency_and_their_growth_to_its_growth(n: int, most_ns: int, seed: int) -> None:
    rng = Random(seed)
    rows = [request(i, rng.randint(0, most_ns), rng.random() < 0.8, rng.random() < 0.8) for i in range(n)]
    ordered = sorted(row["response_ns"] for row in rows)
    tail = of_burst(rows)
    p99, median = ordered[-(-99 * len(rows) // 100) - 1], ordered[-(-len(rows) // 2) - 1]
    assert (tail.p99_ns, tail.median_ns) == (p99, median)
    own = [value for value in ordered if value >= p99]
    base = [value for value in ordered if value <= median and value < p99] or own
    assert (tail.n, tail.n_base) == (len(own), len(base))
    assert tail.latency_ns == pytest.approx(sum(own) / len(own))
    growth = sum(own) / len(own) - sum(base) / len(base)
    assert sum(tail.growth_ns.values()) == pytest.approx(growth, abs=1.0)
    assert set(tail.parts_ns) == set(TAIL_PARTS)
    finding = tail_finding(connection_with(rows), ("burst", "server-0", ""), tail, {})
    assert (finding.rule == "none") == (growth < 1.0)
    assert finding.rule == "none" or sum(
        value for value in finding.shares.values() if value
    ) == pytest.approx(1.0)
