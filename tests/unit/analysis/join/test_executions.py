from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.executions import add_executions, add_named
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError
from tests.plain_runs import plain_run

Row = dict[str, Any]


def batch(batch_id: int, start_ns: int, ids: tuple[int, ...] = (), **more: Any) -> Row:
    return {
        "model": "m", "version": "1", "instance": "m_0", "batch_id": batch_id, "start_ns": start_ns,
        "end_ns": start_ns + 10, "rows": 3, "n_requests": len(ids), "request_ids": list(ids), **more,
    }  # fmt: skip


def trace(request_id: int | None, compute_start_ns: int | None, **more: Any) -> Row:
    return {
        "model": "m", "version": "1", "request_id": request_id, "compute_start_ns": compute_start_ns,
        "compute_input_end_ns": None if compute_start_ns is None else compute_start_ns + 1,
        "compute_output_start_ns": None if compute_start_ns is None else compute_start_ns + 8, **more,
    }  # fmt: skip


def executions(store: RunStore) -> list[Row]:
    with connect(store, []) as connection:
        add_executions(connection, store)
        found = connection.sql(
            "FROM executions ORDER BY start_ns, server, instance, batch_id"
        ).to_arrow_table()
    rows: list[Row] = found.to_pylist()
    return rows


def members(store: RunStore) -> dict[int, Row]:
    write_batch_costs(store)
    with connect(store, []) as connection:
        add_named(connection, store)
        rows = connection.sql("FROM named JOIN placed USING (place)").to_arrow_table().to_pylist()
    found = {row.pop("request_id"): row for row in rows}
    assert len(found) == len(rows)
    return found


def test_requests_of_a_trace_that_start_together_are_an_execution(tmp_path: Path) -> None:
    requests = [{"request_id": i, "rows": 2, "sent_ns": 0} for i in range(4)]
    traces = [
        trace(0, 100), trace(1, 100), trace(None, 100), trace(2, 50, phase="burst"),
        trace(3, 100, model="other", version="2"), trace(9, None),
    ]  # fmt: skip
    found = executions(plain_run(tmp_path, {"requests": requests, "triton_traces": traces}))
    keys = (
        "model",
        "version",
        "instance",
        "batch_id",
        "start_ns",
        "end_ns",
        "rows",
        "n_requests",
    )
    assert {tuple(row[key] for key in keys) for row in found} == {
        ("m", "1", "", 0, 51, 58, 2, 1),
        ("m", "1", "", 1, 101, 108, 5, 3),
        ("other", "2", "", 2, 101, 108, 2, 1),
    }
    assert {row["source"] for row in found} == {"trace"}
    assert [row["phase"] for row in found if row["start_ns"] == 51] == ["burst"]


def test_batch_ids_of_a_trace_count_through_the_models_of_a_server(tmp_path: Path) -> None:
    traces = [trace(i, 100 * i, model=f"m{i % 2}") for i in range(6)] + [trace(9, 100, server="server-1")]
    found = executions(plain_run(tmp_path, {"triton_traces": traces}))
    assert [
        (row["server"], row["model"], row["batch_id"]) for row in found if row["server"] == "server-0"
    ] == [("server-0", f"m{i % 2}", i) for i in range(6)]
    assert [row["batch_id"] for row in found if row["server"] == "server-1"] == [0]


def test_of_several_rows_of_a_request_the_first_sent_counts(tmp_path: Path) -> None:
    requests = [
        {"request_id": 0, "rows": rows, "sent_ns": sent} for rows, sent in ((7, 9), (2, 5), (4, None))
    ]
    (row,) = executions(plain_run(tmp_path, {"requests": requests, "triton_traces": [trace(0, 100)]}))
    assert (row["rows"], row["n_requests"]) == (2, 1)


def test_a_trace_without_the_inner_instants_gives_the_wider_span(tmp_path: Path) -> None:
    bare = {"compute_input_end_ns": None, "compute_output_start_ns": None}
    traces = [trace(0, 100, **bare, compute_end_ns=120), trace(1, 200, **bare)]
    (row,) = executions(plain_run(tmp_path, {"triton_traces": traces}))
    assert (row["start_ns"], row["end_ns"], row["rows"]) == (100, 120, 1)


def test_a_server_with_a_record_has_no_executions_from_its_trace(tmp_path: Path) -> None:
    traces = [trace(0, 5), trace(1, 7, server="server-1")]
    found = executions(plain_run(tmp_path, {"batches": [batch(0, 6, (0,))], "triton_traces": traces}))
    assert [(row["server"], row["source"]) for row in found] == [
        ("server-0", "record"),
        ("server-1", "trace"),
    ]


def test_a_run_without_batches_and_traces_has_no_executions(tmp_path: Path) -> None:
    store = plain_run(tmp_path, {"requests": [{"request_id": 0}]})
    assert executions(store) == []
    assert members(store) == {}


@pytest.mark.parametrize(
    "tables",
    [
        {"batches": [batch(7, 5), batch(7, 9, node="node-1")]},
        {"batches": [batch(0, 5), batch(1, 5, node="node-1")]},
        {"triton_traces": [trace(0, 100), trace(1, 200, node="node-1")]},
        {"batches": [batch(0, 6, (0,))], "triton_traces": [trace(0, 5, node="node-1")]},
    ],
    ids=["same batch id", "other batch id", "traces alone", "record and trace"],
)
def test_two_servers_of_one_name_are_refused(tables: dict[str, list[Row]], tmp_path: Path) -> None:
    store = plain_run(tmp_path, tables)
    with pytest.raises(
        AnalysisError, match="two servers are named server-0, on node-0 and on node-1: run again"
    ):
        executions(store)


def test_a_batch_that_is_there_twice_is_named(tmp_path: Path) -> None:
    store = plain_run(tmp_path, {"batches": [batch(0, 5), batch(7, 5), batch(7, 5)]})
    with pytest.raises(AnalysisError, match="batch 7 of instance m_0 of server-0 is twice"):
        executions(store)


def test_instances_of_one_name_on_two_gpus_both_count_their_batches_from_0(tmp_path: Path) -> None:
    """As Triton 2.51 names them; each batch has the requests that it names."""
    on_gpus = [
        batch(number, 5 + number + gpu, (2 * number + gpu,), instance_device=gpu)
        for gpu in (1, 0)
        for number in (0, 1)
    ]
    store = plain_run(tmp_path / "apart", {"batches": on_gpus})
    assert len(executions(store)) == 4
    found = {i: (row["instance_device"], row["batch_id"]) for i, row in members(store).items()}
    assert found == {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1)}
    twice = plain_run(tmp_path / "twice", {"batches": [*on_gpus, batch(1, 9, instance_device=1)]})
    with pytest.raises(AnalysisError, match="batch 1 of instance m_0 on GPU 1 of server-0 is twice"):
        executions(twice)


def test_batches_of_two_servers_may_have_one_id(tmp_path: Path) -> None:
    store = plain_run(tmp_path, {"batches": [batch(0, 5), batch(0, 5, server="server-1")]})
    assert len(executions(store)) == 2


def test_a_request_is_a_member_of_the_batch_that_starts_first(tmp_path: Path) -> None:
    batches = [batch(0, 50, (1, 2)), batch(1, 40, (2, 3)), batch(2, 40, (3, 3), instance="m_1")]
    found = members(plain_run(tmp_path, {"batches": batches}))
    assert {i: (row["instance"], row["batch_id"]) for i, row in found.items()} == {
        1: ("m_0", 0),
        2: ("m_0", 1),
        3: ("m_0", 1),
    }


def test_requests_of_a_trace_are_members_of_their_execution(tmp_path: Path) -> None:
    traces = [trace(0, 100), trace(1, 100), trace(None, 100), trace(2, 50), trace(2, 50, model="other")]
    found = members(plain_run(tmp_path, {"triton_traces": traces}))
    assert {i: (row["model"], row["batch_id"]) for i, row in found.items()} == {
        0: ("m", 2),
        1: ("m", 2),
        2: ("m", 0),
    }


def step(batch_id: int, span: tuple[int, int], model: str, *ids: int) -> Row:
    given = {"model": model, "instance": f"{model}_0", "end_ns": span[1], "recorded_by": "library"}
    return batch(batch_id, span[0], ids, **given)


@pytest.mark.parametrize(
    ("spans", "owner"),
    [
        ({"tokenize": (0, 10), "classify": (12, 42)}, "classify"),
        ({"tokenize": (0, 30), "classify": (30, 42)}, "tokenize"),
        ({"tokenize": (0, 10), "classify": (10, 20)}, "tokenize"),
        ({"slow branch": (0, 50), "fast branch": (0, 10), "join": (51, 60)}, "slow branch"),
        ({"a": (0, 40), "b": (0, 50), "c": (51, 70), "d": (41, 65)}, "b"),
        ({"early and long": (0, 45), "late": (40, 60), "end": (60, 70)}, "late"),
    ],
    ids=["second", "first", "equal", "branches", "crossing", "off the path"],
)
def test_a_request_of_an_ensemble_is_a_member_of_the_longest_step_on_its_path(
    tmp_path: Path, spans: dict[str, tuple[int, int]], owner: str
) -> None:
    rows = [step(i, span, model, 1) for i, (model, span) in enumerate(spans.items())]
    found = members(plain_run(tmp_path, {"batches": rows}))
    assert found.keys() == {1}
    assert (found[1]["model"], found[1]["source"]) == (owner, "library")


def test_an_execution_says_who_recorded_it(tmp_path: Path) -> None:
    rows = [batch(i, 10 * i, (i,), recorded_by=by) for i, by in enumerate(("model", "library", "hook"))]
    found = members(plain_run(tmp_path, {"batches": rows}))
    assert {i: row["source"] for i, row in found.items()} == {0: "record", 1: "library", 2: "hook"}


def test_requests_of_an_ensemble_may_wait_for_different_steps(tmp_path: Path) -> None:
    rows = [
        step(0, (0, 10), "a", 1), step(0, (12, 50), "b", 1),
        step(1, (20, 70), "a", 2), step(1, (72, 80), "b", 2), step(2, (90, 95), "a", 3),
    ]  # fmt: skip
    found = members(plain_run(tmp_path, {"batches": rows}))
    assert {i: (row["model"], row["batch_id"]) for i, row in found.items()} == {
        1: ("b", 0), 2: ("a", 1), 3: ("a", 2)
    }  # fmt: skip
