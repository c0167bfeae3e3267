"""Several models under load on one server: batches of one are never taken for another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.analysis.join.children import ChildModel, find_children
from squall.analysis.join.join import write_joined
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from tests.plain_runs import plain_run
from tests.unit.analysis.join.test_steps import EVERY, MS, N, nested

Row = dict[str, Any]
PARENT, CHILD = "parent", "child"


def asked(request_id: int, model: str, at_ns: int) -> Row:
    return {
        "request_id": request_id, "request_kind": model, "target": "server-0", "sent_ns": at_ns, "scheduled_ns": at_ns,
        "done_ns": at_ns + 80 * MS, "outcome": "ok", "rows": 1, "phase": "burst",
    }  # fmt: skip


def served(*others: str, model: str = PARENT) -> dict[str, Row]:
    more: list[Row] = [{"model": name, "steps": [], "version": "1", "batch_record": None} for name in others]
    return {"server-0": {"node": "node-0", "model": model, "version": "1", "others": more}}


def joined(store: RunStore) -> dict[int, Row]:
    write_joined(store)
    return {row["request_id"]: row for row in store.read("joined").to_pylist()}


@pytest.mark.parametrize(("others", "parent"), [((), PARENT), ((CHILD,), None)])
def test_a_model_under_load_that_names_nobody_is_not_taken_for_what_another_calls(
    tmp_path: Path, others: tuple[str, ...], parent: str | None
) -> None:
    """Its batches lie within the other's, by chance: alone under load the other would be said to call it."""
    batches = nested()
    requests = [asked(number, PARENT, number * EVERY - MS) for number in range(N)]
    requests += [asked(N + number, CHILD, number * EVERY + 2 * MS) for number in range(N) if others]
    store = plain_run(tmp_path, {"requests": requests, "batches": batches.rows}, servers=served(*others))
    rows = joined(store)
    with connect(store, ["batches"]) as connection:
        found = [one.model for one in find_children(connection, store.manifest, is_placed=False)]
    assert found == ([ChildModel("server-0", CHILD, PARENT, N, N, 0, 0)] if parent else [])
    assert store.has("steps") == bool(parent)
    assert {row["join_level"] for row in rows.values() if row["request_kind"] == PARENT} == {"exact"}
    assert {row["join_level"] for row in rows.values() if row["request_kind"] == CHILD} == (
        {"none"} if others else set()
    )
