"""Several models under load on one server: batches of one are never taken for another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.analysis.join.children import ChildModel, find_children
from squall.analysis.join.join import write_joined
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from tests.plain_runs import START_NS, plain_run
from tests.unit.analysis.join.test_steps import EVERY, MS, Batches, N, nested

Row = dict[str, Any]
S = 1_000_000_000
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


def test_a_model_that_names_nobody_beside_one_that_does_has_its_requests_by_time(tmp_path: Path) -> None:
    """A kernel in the time of each request: those of the other model are known by their batch."""
    batches = Batches()
    requests, kernels = [], []
    for number in range(40):
        at = START_NS + number * EVERY
        batches.add(PARENT, (at + MS, at + 3 * MS), 2 * number)
        batches.add(CHILD, (at + 41 * MS, at + 43 * MS), n_foreign=1)
        requests += [asked(2 * number, PARENT, at), asked(2 * number + 1, CHILD, at + 40 * MS)]
        requests[-2]["done_ns"], requests[-1]["done_ns"] = at + 5 * MS, at + 45 * MS
        kernels.append({
            "start_ns": at + 42 * MS, "end_ns": at + 42 * MS + 1000, "launch_start_ns": at + 42 * MS, "process": 7,
            "gpu_uuid": "GPU-0", "phase": "burst",
        })  # fmt: skip
    tables = {"requests": requests, "batches": batches.rows, "kernels": kernels}
    rows = joined(plain_run(tmp_path, tables, servers=served(CHILD)))
    of_parent, of_child = (
        [row for row in rows.values() if row["request_kind"] == name] for name in (PARENT, CHILD)
    )
    assert {(row["join_level"], row["instance"]) for row in of_parent} == {("exact", f"{PARENT}_0_0")}
    assert {(row["join_level"], row["batch_id"], row["n_kernels"]) for row in of_child} == {
        ("window", None, 1)
    }


def statistics(model: str, n: int, queue_ns: int) -> Row:
    return {
        "model": model, "version": "1", "phase": "burst", "t_ns": START_NS + 100 * S, "interval_ns": 100 * S,
        "request_count": n, "inference_count": n, "execution_count": n, "queue_ns": n * queue_ns,
        "compute_infer_ns": n * 2 * MS, "success_ns": n * (queue_ns + 2 * MS),
    }  # fmt: skip


@pytest.mark.parametrize("is_ensemble", [pytest.param(False, marks=pytest.mark.slow), True])
def test_means_of_a_model_that_two_kinds_of_requests_pass_are_not_told_apart(
    tmp_path: Path, is_ensemble: bool
) -> None:
    """The second model is another one, or an ensemble whose longest step is the first."""
    batches, requests, n = Batches(), [], 50
    for number in range(n):
        at = START_NS + number * EVERY
        batches.add(PARENT, (at + 2 * MS, at + 4 * MS), 2 * number)
        batches.add(PARENT if is_ensemble else CHILD, (at + 52 * MS, at + 54 * MS), 2 * number + 1)
        requests += [asked(2 * number, PARENT, at), asked(2 * number + 1, CHILD, at + 50 * MS)]
    samples = (
        [statistics(PARENT, 2 * n, MS)]
        if is_ensemble
        else [statistics(one, n, MS) for one in (PARENT, CHILD)]
    )
    servers = served(CHILD)
    servers["server-0"]["others"][0]["steps"] = [PARENT] if is_ensemble else []
    store = plain_run(
        tmp_path, {"requests": requests, "batches": batches.rows, "triton_samples": samples}, servers=servers
    )
    rows = joined(store)
    assert {row["join_level"] for row in rows.values()} == {"exact"}
    assert {row["parts_level"] for row in rows.values()} == {"none" if is_ensemble else "statistics"}
