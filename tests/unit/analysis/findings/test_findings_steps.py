"""Models that executed beside that of the requests: a short step of an ensemble, or under somebody else's load."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from squall.analysis.report.summary import summarise
from tests.regime_runs import diagnose
from tests.synthetic_runs import MS, SyntheticRun, synthesise

OWN, OTHER = "seqlen_head_0_0", "other_0_0"


def run_of(length_ns: int, is_foreign: bool = False, n_times: int = 1) -> SyntheticRun:
    """After each batch of the model `n_times` one of another, `length_ns` long, of the same requests unless it
    `is_foreign`."""
    run = synthesise(rate_hz=40.0)
    run.derived = False
    run.manifest["nodes"]["node-0"]["gpus"] = []
    batches = run.tables["batches"]
    for place in range(len(batches["phase"])):
        row = {name: values[place] for name, values in batches.items()}
        row |= {"model": "other", "instance": OTHER, "recorded_by": "library"}
        if is_foreign:
            row |= {"request_ids": [], "n_foreign": row["n_requests"]}
        for _ in range(n_times):
            row |= {"start_ns": row["end_ns"], "end_ns": row["end_ns"] + length_ns}
            for name, value in row.items():
                batches[name].append(value)
    return run


@pytest.mark.parametrize(
    ("length_ns", "is_foreign", "owner"),
    [
        (1_000, False, OWN),  # a step that took longest of no request
        (10_000 * MS, False, OTHER),  # of steps the longer one, whatever their order
        (5 * MS, True, OWN),  # a neighbour under another load, which breaks no count
    ],
)
def test_the_model_that_took_longest_of_the_requests_has_the_finding(
    tmp_path: Path, length_ns: int, is_foreign: bool, owner: str
) -> None:
    store = run_of(length_ns, is_foreign).write(tmp_path)
    found, _ = diagnose(store)
    owners = set(store.read("joined").column("instance").cast(pa.string()).to_pylist())
    assert owners - {None} == {owner}
    assert {one.scope.instance for one in found if one.level == "window"} == {owner}
    if is_foreign:
        assert all(one.is_met for one in summarise(store).identities)


@pytest.mark.parametrize(
    ("n_times", "n_said"),
    [(2, 2), (1, 2), *(pytest.param(n_times, 1, marks=pytest.mark.slow) for n_times in (2, 1))],
)
def test_a_step_has_the_rows_of_a_request_as_often_as_it_is_one(
    tmp_path: Path, n_times: int, n_said: int
) -> None:
    """The model is a step of an ensemble, `other` another, which each request passes `n_times`."""
    run = run_of(1_000, n_times=n_times)
    run.manifest["servers"]["server-0"] |= {"model": "pipe", "steps": ["seqlen_head", *["other"] * n_said]}
    (rows,) = [one for one in summarise(run.write(tmp_path)).identities if one.name == "batch rows of other"]
    assert rows.is_met == (n_times == n_said)
    assert rows.meaning.endswith(", 2 times") == (n_said == 2)
