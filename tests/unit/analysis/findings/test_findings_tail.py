"""Where the time of the p99 requests goes, against sorted lists in Python, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.findings.confidence import RunState
from squall.analysis.findings.finding import Finding
from squall.analysis.findings.sent import Sent, SentRequests
from squall.analysis.findings.tail import TAIL_PARTS, Tail, tail_finding, tails
from squall.analysis.storage.schema import arrow_schema
from tests.many_examples import examples

Row = dict[str, Any]
ROWS: dict[str, Row] = yaml.safe_load((Path(__file__).parent / "tail.yaml").read_text())
KEY = ("burst", "server-0", "")
SPLIT = ("network", "queue", "input", "handover", "output", "residual")
BATCH = ("kernel_busy", "copy_exposed", "sync_wait", "launch_idle", "head", "tail")
SCHEMA = pa.schema(
    pa.field(one.name, pa.string() if pa.types.is_dictionary(one.type) else one.type)
    for one in arrow_schema("joined")
)


def connection_with(rows: list[Row]) -> duckdb.DuckDBPyConnection:
    """A connection with a view `joined` of `rows`; what a row lacks is null."""
    connection = duckdb.connect()
    connection.register("joined", pa.Table.from_pylist(rows, schema=SCHEMA))
    return connection


def request(number: int, queued_ns: int, kind: str = "whole") -> Row:
    """A request of tail.yaml that waited for so long in the queue."""
    row = {"request_id": number, "batch_id": number, "sent_ns": number, **ROWS["whole"], **ROWS[kind]}
    for name in ("queue_ns", "wait_ns", "response_ns", "service_ns"):
        row[name] = None if row[name] is None else row[name] + queued_ns
    return row


def latency_ns(row: Row) -> int:
    return int(row["service_ns"] if row["response_ns"] is None else row["response_ns"])


def parts_of(row: Row) -> dict[str, int]:
    names = ["lag"]
    if row["parts_level"] != "none":
        names += SPLIT
    elif row["compute_ns"] is not None:
        names += ("wait", "reply")
    names += BATCH if (row["n_kernels"] or 0) + (row["n_copies"] or 0) else ["compute"]
    parts = {name: row[f"{name}_ns"] or 0 for name in names}
    if "head" in parts and row["sync_wait_ns"] is None:
        parts["body_idle"] = row["compute_ns"] - sum(parts[name] for name in BATCH)
    return {**dict.fromkeys(TAIL_PARTS, 0), **parts, "unjoined": latency_ns(row) - sum(parts.values())}


def of_burst(rows: list[Row]) -> Tail:
    found = tails(connection_with(rows), ["burst"])[KEY]
    assert isinstance(found, Tail)
    return found


@examples(16)
@given(n=st.integers(368, 800), most_ns=st.sampled_from((3, 10**6, 10**9)), seed=st.integers(0, 2**32 - 1))
def test_the_parts_of_tail_and_base_are_those_of_their_rows(n: int, most_ns: int, seed: int) -> None:
    rng = Random(seed)
    kinds = rng.choices([kind for kind in ROWS if kind != "failed"], k=3)
    rows = [request(i, rng.randint(0, most_ns), rng.choice(kinds)) for i in range(n)]
    failed = [request(n + i, 10**9, "failed") for i in range(rng.randint(0, 9))]
    tail = of_burst([*rows, *failed])
    ordered = sorted(map(latency_ns, rows))
    p99, median = ordered[-(-99 * n // 100) - 1], ordered[-(-n // 2) - 1]
    assert (tail.p99_ns, tail.median_ns) == (p99, median)
    own = [row for row in rows if latency_ns(row) >= p99]
    base = [row for row in rows if latency_ns(row) <= median and latency_ns(row) < p99] or own
    assert (tail.n, tail.n_base) == (len(own), len(base))
    for parts_ns, group in ((tail.parts_ns, own), (tail.base_ns, base)):
        found = [parts_of(row) for row in group]
        means = {part: sum(one[part] for one in found) / len(found) for part in TAIL_PARTS}
        assert parts_ns == pytest.approx(means, abs=1.0)
    growth = sum(map(latency_ns, own)) / len(own) - sum(map(latency_ns, base)) / len(base)
    assert sum(tail.growth_ns.values()) == pytest.approx(growth, abs=1.0)
    finding = tail_finding(connection_with(rows), KEY, tail, {}, RunState(), Sent())
    if tail.grew_most != "unjoined":
        assert (finding.rule == "none") == (growth < 1.0)
    assert finding.rule in ("none", "not assessed") or sum(
        filter(None, finding.shares.values())
    ) == pytest.approx(1.0)


BURST = [request(i, 50_000 if i % 50 else 40_000_000 + i) for i in range(1_000)]  # 2 % wait 40 ms


def found_of(rows: list[Row], state: RunState = RunState()) -> Finding:  # noqa: B008
    connection = connection_with(rows)
    tail = tails(connection, ["burst"])[KEY]
    sent = SentRequests.read(connection).of("burst", "server-0")
    return tail_finding(connection, KEY, tail, {"m": "Their batches are launch-bound."}, state, sent)


def test_the_tail_names_the_part_that_grew_most() -> None:
    finding = found_of(BURST)
    assert finding.rule == "queue grows"
    assert "queue grew most, by 40.0 ms, 100 % of the difference." in finding.claim
    assert finding.claim.endswith("Their batches are launch-bound.")
    assert finding.rows is not None
    assert [row["request_id"] for row in finding.rows.worst] == [950, 900, 850, 800, 750]
    query = f"SELECT count(*) FROM joined WHERE {finding.rows.where}"
    # nearest rank: the 990th of 1,000 and the 10 beyond
    assert connection_with(BURST).execute(query).fetchall() == [(11,)]


@pytest.mark.parametrize(("n_failed", "is_told"), [(10, False), (11, True)])  # of 1,010 and 1,011
def test_a_tail_says_how_many_requests_are_missing_from_it(n_failed: int, is_told: bool) -> None:
    lost = [request(1_000 + i, 10**9, "failed") for i in range(n_failed)]
    finding = found_of([*BURST, *lost])
    start = "11 of 1,011 requests did not end ok and are not among these. The 11 requests at or beyond"
    assert finding.claim.startswith(start) == is_told
    assert (finding.confidence == "medium") == is_told


def test_a_p99_takes_368_requests_and_is_less_sure_of_a_run_that_lost_some() -> None:
    assert found_of(BURST[:367]).rule == "not assessed"
    assert found_of(BURST, RunState(losses=("worker 1 died",))).confidence == "medium"
