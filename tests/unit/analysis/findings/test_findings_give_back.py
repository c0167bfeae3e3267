"""What removing a cause could give back at most is never more than the latency spends on it."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.findings.finding import give_back
from squall.analysis.findings.rules.facts import facts
from squall.analysis.findings.rules.shares import BODY_PARTS, PARTS, response_shares
from squall.analysis.findings.rules.tried import RULES, rules_of
from tests.many_examples import examples

SCHEDULER = RULES["scheduler/IPC-bound"]
COLUMNS = [f"{part}_ns" for part in (*PARTS, "compute", "idle_wait", "response")]
BATCH = (*BODY_PARTS, "head", "tail")
KEY = ("p", "s/i")
Row = dict[str, int | None]


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as found:
        numbers = ", ".join(f"{name} BIGINT" for name in (*COLUMNS, "service_ns"))
        texts = {"phase": "p", "server": "s", "instance": "i", "request_kind": "m", "outcome": "ok"}
        labels = ", ".join(f"{name} VARCHAR DEFAULT '{value}'" for name, value in texts.items())
        found.execute(f"CREATE TABLE joined({numbers}, {labels}, instance_device BIGINT DEFAULT -1)")
        yield found


def shares_of(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> dict[str, float | None]:
    connection.execute("DELETE FROM joined")
    places = ", ".join("?" * len(COLUMNS))
    values = [[row[name] for name in COLUMNS] for row in rows]
    connection.executemany(f"INSERT INTO joined({', '.join(COLUMNS)}) VALUES ({places})", values)
    return response_shares(connection)[KEY]


def row(parts: list[int], idle_wait_ns: int, is_explained: bool = True) -> Row:
    """A request of these PARTS, whose instance was idle for so long while it was there."""
    by_part = dict(zip(PARTS, parts, strict=True))
    lengths = {f"{part}_ns": ns if is_explained else None for part, ns in by_part.items()}
    compute_ns = sum(by_part[part] for part in BATCH)
    idle = idle_wait_ns if is_explained else None
    return {**lengths, "compute_ns": compute_ns, "idle_wait_ns": idle, "response_ns": sum(parts)}


part_lengths = st.lists(st.integers(0, 1_000), min_size=len(PARTS), max_size=len(PARTS)).filter(any)


@examples(40)
@given(rows=st.lists(st.builds(row, part_lengths, st.integers(0, 3_000)), min_size=1, max_size=4))
def test_no_bound_exceeds_what_its_parts_hold(connection: duckdb.DuckDBPyConnection, rows: list[Row]) -> None:
    known = facts(shares_of(connection, rows))
    latency_ns = sum(one["response_ns"] or 0 for one in rows)

    def share(*parts: str) -> float:
        return sum(one[f"{part}_ns"] or 0 for one in rows for part in parts) / latency_ns

    before = share("queue", "input", "handover")
    bound = give_back(SCHEDULER, known)
    assert bound.response_ratio is not None
    assert bound.with_queue_ratio is not None
    assert bound.response_ratio <= bound.with_queue_ratio + 1e-12
    assert share("queue") <= bound.with_queue_ratio + 1e-12
    assert bound.with_queue_ratio <= before + 1e-12
    for rule in (*rules_of("window", {}), *rules_of("body", {})):
        found = give_back(rule, known)
        if found.response_ratio is not None and rule is not SCHEDULER:
            assert found.with_queue_ratio is not None
            assert found.with_queue_ratio == pytest.approx(
                min(1.0, found.response_ratio + (share("queue") if rule.give_back.feeds_queue else 0.0))
            )
            assert found.with_queue_ratio <= 1.0 - share("network", "output", "residual") + 1e-12


def test_waiting_that_lies_in_the_queue_is_given_back_once(connection: duckdb.DuckDBPyConnection) -> None:
    lengths = {"queue": 700, "input": 30, "handover": 20, "head": 250}
    whole = row([lengths.get(part, 0) for part in PARTS], 500)
    unknown = row([1_000 if part == "network" else 0 for part in PARTS], 0, is_explained=False)
    bound = give_back(SCHEDULER, shares_of(connection, [whole, unknown]))
    assert bound.response_ratio == 0.5
    assert bound.with_queue_ratio == pytest.approx(0.75)
