"""What removing a cause could give back at most is never more than the latency spends on it."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from squall.analysis.findings.facts import facts
from squall.analysis.findings.finding import give_back
from squall.analysis.findings.shares import BODY_PARTS, PARTS, response_shares
from squall.analysis.findings.tried import RULES
from tests.many_examples import examples

SCHEDULER = RULES["scheduler/IPC-bound"]
COLUMNS = [f"{part}_ns" for part in (*PARTS, "compute", "idle_wait", "response")]
LABELS = """service_ns BIGINT, instance_device BIGINT DEFAULT -1, phase VARCHAR DEFAULT 'p', server VARCHAR DEFAULT 's',
    instance VARCHAR DEFAULT 'i', request_kind VARCHAR DEFAULT 'm', outcome VARCHAR DEFAULT 'ok'"""
Row = dict[str, int]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as found:
        numbers = ", ".join(f"{name} BIGINT" for name in COLUMNS)
        found.execute(f"CREATE TABLE joined({numbers}, {LABELS})")
        yield found


def row(parts: dict[str, int], idle_wait_ns: int) -> Row:
    """A request of these PARTS, whose instance was idle for so long while it was there."""
    compute_ns = sum(parts[part] for part in (*BODY_PARTS, "head", "tail"))
    lengths = {f"{part}_ns": ns for part, ns in parts.items()}
    return {
        **lengths,
        "compute_ns": compute_ns,
        "idle_wait_ns": idle_wait_ns,
        "response_ns": sum(parts.values()),
    }


QUEUED = row({**dict.fromkeys(PARTS, 0), "queue": 700, "input": 30, "handover": 20, "head": 250}, 500)
parts_of_a_request = st.fixed_dictionaries({part: st.integers(0, 1_000) for part in PARTS}).filter(
    lambda parts: any(parts.values())
)


@examples(40)
@given(
    st.lists(st.builds(row, parts_of_a_request, st.integers(0, 3_000)), min_size=1, max_size=4),
    st.integers(0, 1),
)
@example([QUEUED], 1)
def test_no_bound_exceeds_what_its_parts_hold(
    connection: duckdb.DuckDBPyConnection, rows: list[Row], n_unexplained: int
) -> None:
    unexplained = {"response_ns": 1_000}
    connection.execute("DELETE FROM joined")
    values = [[one.get(name) for name in COLUMNS] for one in (*rows, *[unexplained] * n_unexplained)]
    places = ", ".join("?" * len(COLUMNS))
    connection.executemany(f"INSERT INTO joined({', '.join(COLUMNS)}) VALUES ({places})", values)
    known = facts(response_shares(connection)["p", "s/i"])
    latency_ns = sum(one["response_ns"] for one in rows)

    def share(*parts: str) -> float:
        return sum(one[f"{part}_ns"] for one in rows for part in parts) / latency_ns

    # waiting that lies in the queue is given back once
    own = [(one["idle_wait_ns"], one["input_ns"] + one["handover_ns"], one["queue_ns"]) for one in rows]
    alone = sum(min(idle, beside + queue) for idle, beside, queue in own) / latency_ns
    beside_queue = sum(min(idle, beside) for idle, beside, _ in own) / latency_ns
    bound = give_back(SCHEDULER, known)
    assert bound.response_ratio == pytest.approx(alone)
    assert bound.with_queue_ratio == pytest.approx(min(1.0, beside_queue + share("queue")))
    for rule in RULES.values():
        found = give_back(rule, known)
        if found.response_ratio is not None and rule is not SCHEDULER:
            fed = share("queue") if rule.give_back.feeds_queue else 0.0
            assert found.with_queue_ratio == pytest.approx(min(1.0, found.response_ratio + fed))
            assert found.with_queue_ratio is not None
            assert found.with_queue_ratio <= 1.0 - share("network", "output", "residual") + 1e-12
