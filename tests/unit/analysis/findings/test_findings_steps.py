"""Models that executed beside that of the requests: a short step of an ensemble, or under somebody else's load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from tests.regime_runs import diagnose
from tests.synthetic_runs import SyntheticRun, synthesise

MS = 1_000_000
SHORT_NS = 1_000


def run_of(**model: Any) -> SyntheticRun:
    """After each batch of the model one of another, `length_ns` long, of the same requests unless it `is_foreign`."""
    run = synthesise(rate_hz=40.0)
    run.derived = False
    run.manifest["nodes"]["node-0"]["gpus"] = []
    batches = run.tables["batches"]
    for place in range(len(batches["phase"])):
        row = {name: values[place] for name, values in batches.items()}
        end_ns = row["end_ns"]
        row |= {"model": "other", "instance": "other_0_0", "start_ns": end_ns, "recorded_by": "library"}
        row["end_ns"] = end_ns + model["length_ns"]
        if model["is_foreign"]:
            row |= {"request_ids": [], "n_foreign": row["n_requests"]}
        for name, value in row.items():
            batches[name].append(value)
    return run


def owners(store: RunStore) -> set[str | None]:
    return set(store.read("joined").column("instance").cast(pa.string()).to_pylist())


def test_a_step_that_took_longest_of_no_request_has_no_finding(tmp_path: Path) -> None:
    store = run_of(length_ns=SHORT_NS, is_foreign=False).write(tmp_path)
    found, _ = diagnose(store)
    assert owners(store) - {None} == {"seqlen_head_0_0"}
    assert {one.scope.instance for one in found if one.level == "window"} == {"seqlen_head_0_0"}


def test_of_steps_the_longer_one_has_the_finding_whatever_their_order(tmp_path: Path) -> None:
    store = run_of(length_ns=10_000 * MS, is_foreign=False).write(tmp_path)
    found, _ = diagnose(store)
    assert owners(store) - {None} == {"other_0_0"}
    assert {one.scope.instance for one in found if one.level == "window"} == {"other_0_0"}


def test_a_neighbour_under_another_load_has_no_finding_and_breaks_no_count(tmp_path: Path) -> None:
    store = run_of(length_ns=5 * MS, is_foreign=True).write(tmp_path)
    found, _ = diagnose(store)
    assert {one.scope.instance for one in found if one.level == "window"} == {"seqlen_head_0_0"}
    assert all(one.is_met for one in summarise(store).identities)


def with_steps(steps: list[str], is_twice: bool) -> SyntheticRun:
    """The model is a step of an ensemble, `other` another, which each request passes once more where it `is_twice`."""
    run = run_of(length_ns=SHORT_NS, is_foreign=False)
    run.manifest["servers"]["server-0"] |= {"model": "pipe", "steps": steps}
    batches = run.tables["batches"]
    for place in range(len(batches["phase"])):
        if is_twice and batches["model"][place] == "other":
            row = {name: values[place] for name, values in batches.items()}
            row |= {"start_ns": row["end_ns"], "end_ns": row["end_ns"] + SHORT_NS}
            for name, value in row.items():
                batches[name].append(value)
    return run


@pytest.mark.parametrize(
    ("is_twice", "is_said"),
    [
        (True, True),
        (False, True),
        *(pytest.param(is_twice, False, marks=pytest.mark.slow) for is_twice in (True, False)),
    ],
)
def test_a_step_has_the_rows_of_a_request_as_often_as_it_is_one(
    tmp_path: Path, is_twice: bool, is_said: bool
) -> None:
    steps = ["seqlen_head", "other", *(["other"] if is_said else [])]
    summary = summarise(with_steps(steps, is_twice).write(tmp_path))
    (rows,) = [one for one in summary.identities if one.name == "batch rows of other"]
    assert rows.is_met == (is_twice == is_said)
    assert rows.meaning.endswith(", 2 times") == is_said
