"""From what the batch library recorded to rows of `batches`: which are left out, how they are numbered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import squall.cluster.node.batches
from squall.actors.inject.batch_ring import CutOff, RecordedBatch
from squall.cluster.node.batches import read_recorded

LABELS = {"run": "r", "node": "node-0", "server": "server-0"}


def batch(**changes: Any) -> RecordedBatch:
    given: dict[str, Any] = {
        "pid": 1, "thread": 2, "model": "m", "version": 1, "instance": "m_0_0", "device": -1, "start_ns": 100,
        "compute_start_ns": 110, "compute_end_ns": 120, "end_ns": 130, "rows": 2, "n_requests": 1, "n_failed": 0,
        "request_ids": (b"000000000005",),
    }  # fmt: skip
    return RecordedBatch(**given | changes)


def read(
    monkeypatch: pytest.MonkeyPatch, *found: RecordedBatch | CutOff, from_ns: int = 0
) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    monkeypatch.setattr(squall.cluster.node.batches, "recorded_batches", lambda _: iter(found))
    losses: list[str] = []
    notes: list[str] = []
    tables = read_recorded([Path("a")], LABELS, from_ns, losses, notes)
    return [row for table in tables for row in table.to_pylist()], losses, notes


def test_batches_before_the_load_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [batch(compute_start_ns=at) for at in (10, 49, 50, 51)]
    rows, losses, notes = read(monkeypatch, *found, from_ns=50)
    assert [(row["start_ns"], row["batch_id"]) for row in rows] == [(50, 0), (51, 1)]
    assert losses == []
    assert notes == ["batches: 2 before the load, such as warm-ups of the model, are left out"]


def test_instances_of_one_name_count_their_batches_together_on_each_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [batch(), batch(version=2), batch(device=1), batch(model="n"), batch(instance="m_0_1")]
    rows, _, _ = read(monkeypatch, *found)
    keys = [(row["instance"], row["instance_device"], row["batch_id"]) for row in rows]
    assert keys == [("m_0_0", -1, 0), ("m_0_0", -1, 1), ("m_0_0", 1, 0), ("m_0_0", -1, 2), ("m_0_1", -1, 0)]
    assert [(row["model"], row["version"]) for row in rows][1:4] == [("m", "2"), ("m", "1"), ("n", "1")]


@pytest.mark.parametrize(
    "strange", [b"", b"7", b"00000000000x", b"0000000000051", b"\xb2" * 12, b"-00000000005"]
)
def test_ids_that_are_not_ours_are_counted(monkeypatch: pytest.MonkeyPatch, strange: bytes) -> None:
    ids = (b"000000000005", strange)
    ((row,), _, _) = read(monkeypatch, batch(request_ids=ids, n_requests=3, n_failed=1))
    assert (row["request_ids"], row["n_requests"], row["n_foreign"], row["n_failed"]) == ([5], 3, 2, 1)


def test_a_batch_without_the_inner_instants_has_the_outer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    ((row,), _, _) = read(monkeypatch, batch(compute_start_ns=0, compute_end_ns=0))
    assert (row["start_ns"], row["end_ns"]) == (100, 130)


def test_a_batch_without_instants_is_told_and_what_is_no_record_is_a_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = dict.fromkeys(("start_ns", "compute_start_ns", "compute_end_ns", "end_ns"), 0)
    rows, losses, notes = read(monkeypatch, batch(**none), batch(), CutOff(3, 99))
    assert len(rows) == 1
    assert losses == ["batches: 99 bytes of what was recorded are no record"]
    assert notes == ["batches: 1 for which the backend gave no instants, as it does of failures"]


def test_more_batches_than_a_table_holds_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(squall.cluster.node.batches, "_ROWS_A_TABLE", 20)
    rows, _, _ = read(monkeypatch, *[batch()] * 41)
    assert [row["batch_id"] for row in rows] == list(range(41))


def test_of_what_a_hook_saw_the_instants_that_it_cannot_know_are_null(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooked = batch(start_ns=0, end_ns=0, writer="hook")
    (rows, _, _) = read(monkeypatch, hooked, batch(start_ns=0, end_ns=0))
    told = [(row["recorded_by"], row["start_ns"], row["end_ns"]) for row in rows]
    assert told == [("hook", 110, 120), ("library", 110, 120)]
    assert [(row["exec_start_ns"], row["exec_end_ns"]) for row in rows] == [(None, None), (110, 120)]
