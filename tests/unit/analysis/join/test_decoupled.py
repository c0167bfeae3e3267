"""Models that work on after their executions: their batches are exact, their kernels are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.join.join import write_joined
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.identities import cost_identities
from tests.plain_runs import plain_run
from tests.regime_runs import Op, Phase, diagnose, write_regime_run
from tests.window_runs import window

Row = dict[str, Any]
MODELS = {"stream": 0, "whole": 1_000}
"""By model when its request is sent."""


def run_of(
    parent: Path, decoupled: tuple[str, ...], names_batches: bool = True, windows: bool = True
) -> RunStore:
    """A request to each model: executed for 100 ns, with a kernel in that and, of `stream`, one long after, before it
    is answered; all of it in one window of the library."""
    batches, kernels, requests = [], [], []
    for number, (model, sent_ns) in enumerate(MODELS.items(), 1):
        batches.append({
            "model": model, "instance": model, "start_ns": sent_ns + 100, "end_ns": sent_ns + 200, "rows": 1,
            "n_requests": 1, "request_ids": [number], "phase": "p", "recorded_by": "library",
        })  # fmt: skip
        requests.append({
            "request_id": number, "sent_ns": sent_ns, "done_ns": sent_ns + 600, "rows": 1, "phase": "p",
            "target": "server-0", "outcome": "ok",
        })  # fmt: skip
        tie = {"instance": model, "batch_id": 0} if names_batches else {}
        same = {"process": 7, "gpu_uuid": "GPU-0", "phase": "p", "recorded_by": "library"}
        kernels.append({**same, **tie, "start_ns": sent_ns + 120, "end_ns": sent_ns + 150})
        if model == "stream":
            kernels.append({**same, "start_ns": sent_ns + 300, "end_ns": sent_ns + 340})
    tables = {"batches": batches, "kernels": kernels, "requests": requests}
    if windows:
        tables["recordings"] = [window(-10, 5_000)]
    server = {"node": "node-0", "decoupled": list(decoupled)}
    store = plain_run(parent, tables, servers={"server-0": server})
    write_joined(store)
    return store


def by_model(store: RunStore, table: str) -> dict[str, Row]:
    return {row["instance"]: row for row in store.read(table).to_pylist()}


def test_a_request_of_a_decoupled_model_has_its_batch_and_what_the_gpu_did_while_it_was_there(
    tmp_path: Path,
) -> None:
    store = run_of(tmp_path, ("stream",))
    joined, costs = by_model(store, "joined"), by_model(store, "batch_costs")
    stream, whole = joined["stream"], joined["whole"]
    assert (stream["join_level"], stream["tie"], stream["compute_ns"]) == ("exact", "window", 100)
    assert (stream["n_kernels"], stream["kernel_ns"], stream["kernel_busy_ns"], stream["gpu_uuid"]) == (
        2, 70, 70, "GPU-0"
    )  # fmt: skip
    assert {stream[name] for name in ("kernel_share_ns", "gpu_share_ns", "head_ns", "sync_wait_ns")} == {None}
    assert (costs["stream"]["tie"], costs["stream"]["n_kernels"]) == ("none", None)
    assert (whole["join_level"], whole["tie"], whole["n_kernels"], whole["head_ns"]) == (
        "exact",
        "range",
        1,
        20,
    )
    assert all(one.is_met for one in cost_identities(store))


def test_a_model_that_is_not_said_to_be_decoupled_is_joined_with_its_kernels(tmp_path: Path) -> None:
    joined = by_model(run_of(tmp_path, ()), "joined")
    assert {row["tie"] for row in joined.values()} == {"range"}
    assert joined["stream"]["n_kernels"] == 1


@pytest.mark.parametrize("decoupled", [pytest.param((), marks=pytest.mark.slow), ("stream",)])
def test_beside_a_decoupled_model_time_tells_nothing_of_the_others(
    tmp_path: Path, decoupled: tuple[str, ...]
) -> None:
    """Where kernels name no batches: what ran in a batch's time may be of a request that was executed before."""
    store = run_of(tmp_path, decoupled, names_batches=False)
    ties = {name: row["tie"] for name, row in by_model(store, "batch_costs").items()}
    assert ties == dict.fromkeys(MODELS, "none" if decoupled else "window")
    joined = {name: row["tie"] for name, row in by_model(store, "joined").items()}
    assert joined == ({"stream": "window", "whole": "none"} if decoupled else dict.fromkeys(MODELS, "window"))


def test_a_decoupled_model_that_executed_nothing_changes_nothing(tmp_path: Path) -> None:
    store = run_of(tmp_path, ("other",), names_batches=False)
    assert {row["tie"] for row in by_model(store, "batch_costs").values()} == {"window"}


def test_outside_windows_a_request_of_a_decoupled_model_has_no_kernels(tmp_path: Path) -> None:
    store = run_of(tmp_path, ("stream",))
    late = plain_run(
        tmp_path / "late",
        {
            name: store.read(name).drop_columns(["run"]).to_pylist()
            for name in ("batches", "kernels", "requests")
        }
        | {"recordings": [window(110, 5_000)]},
        servers={"server-0": {"node": "node-0", "decoupled": ["stream"]}},
    )
    write_joined(late)
    stream = by_model(late, "joined")["stream"]
    assert (stream["join_level"], stream["tie"], stream["n_kernels"]) == ("exact", "none", None)


@pytest.mark.parametrize("decoupled", [pytest.param((), marks=pytest.mark.slow), ("m",)])
def test_no_finding_looks_into_batches_of_a_decoupled_model(
    tmp_path: Path, decoupled: tuple[str, ...]
) -> None:
    """Of a GPU that is busy all the time."""
    made = write_regime_run(tmp_path, [Phase("steady", (Op(50.0),) * 12)])
    path = made.run_dir / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["servers"]["server-0"]["decoupled"] = list(decoupled)
    path.write_text(json.dumps(manifest))
    store = RunStore.open(made.run_dir)
    found, checks = diagnose(store)
    rules = {one.level: one.rule for one in found if one.scope.instance == "m_0"}
    assert (rules["body"] == "GPU-bound") is not bool(decoupled)
    assert rules["body"] in ("GPU-bound", "none", "not assessed")
    assert {name for name, one in checks.items() if one.status == "unmet"} == set()
    assert (checks["operations tied"].status == "not assessed") is bool(decoupled)
