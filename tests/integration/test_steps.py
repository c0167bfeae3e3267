"""Steps of requests in a real Triton: an ensemble, and a model that asks another, with and without the request's id."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from squall.actors.inject.library import built_library
from squall.analysis.storage.store import RunStore
from tests.integration.foreign_models import (
    BY_ONE,
    WARMED,
    write_caller,
    write_ensemble,
    write_model,
    write_stream,
)
from tests.integration.live_runs import Bench
from tests.integration.test_foreign_batches import finish, rows_of, scenario, their_server

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(
        built_library("batches") is None, reason="the batch library was not built: no C compiler"
    ),
]
KEY = ("server", "instance", "instance_device", "batch_id")


def steps_of(store: RunStore) -> dict[int, list[dict[str, Any]]]:
    """By request. Holds what is so of any run: each row's batch names the request, or lies within one that does, and
    `joined` has the rows that are said to be joined for each request that has any."""
    batches = {tuple(row[name] for name in KEY): row for row in rows_of(store, "batches")}
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows_of(store, "steps"):
        found.setdefault(row["request_id"], []).append(row)
    for one, own in found.items():
        for row in own:
            batch = batches[tuple(row[name] for name in KEY)]
            assert (one in batch["request_ids"]) == (row["tie"] == "id")
            assert row["tie"] == "id" or any(
                outer["start_ns"] <= row["start_ns"] and row["end_ns"] <= outer["end_ns"]
                for outer in own if outer["tie"] == "id" and outer["model"] != row["model"]
            )  # fmt: skip
    rows = [row for row in rows_of(store, "joined") if row["request_id"] in found]
    assert {(row["request_id"], *(row[name] for name in KEY)) for row in rows} == {
        (one, *(row[name] for name in KEY)) for one, own in found.items() for row in own if row["is_joined"]
    }
    return found


@pytest.mark.slow
def test_both_steps_of_an_ensemble_are_on_the_path(alone: Bench, tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "tokenize", sleep_s=0.01)
    write_model(models, "classify", sleep_s=0.002)
    write_ensemble(models, "pipe")
    store, summary, screen = finish(alone, scenario(models, "pipe", rate_hz=60))
    found = steps_of(store)
    assert len(found) == len(rows_of(store, "requests"))
    for own in found.values():
        assert [(row["model"], row["is_on_path"]) for row in own] == [("tokenize", True), ("classify", True)]
        assert all(row["wait_ns"] > 0 for row in own)
        assert own[1]["wait_ns"] == own[1]["start_ns"] - own[0]["end_ns"]
    told = summary["steps"]
    assert [one["model"] for one in told["models"]] == ["tokenize", "classify"]
    assert 0.5 < sum(one["latency_ratio"] for one in told["models"]) <= 1.0
    assert told["children"] == []
    assert "tokenize: " in screen.partition("Steps")[2].partition("\n")[0]
    assert all(one["is_met"] for one in summary["identities"])


def run_of_caller(alone: Bench, folder: Path) -> tuple[RunStore, dict[str, Any], str]:
    """A run against a server that somebody else started with `caller` and `child` of `folder/models`."""
    mapping = scenario(folder / "models", "caller", rate_hz=40)
    del mapping["model"]["repository"]
    live = alone.start("inject", "--folder", folder / "rings")
    assert live.end() == 0, live.lines
    injected = alone.stdout().splitlines()
    with their_server(folder / "server", folder / "models", "caller", injected, others=["child"]) as url:
        found = finish(alone, mapping, "--server", url)
    assert {row["outcome"] for row in rows_of(found[0], "requests")} == {"ok"}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("passes_id", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_model_that_another_asks_is_a_step_beside_the_path(
    alone: Bench, tmp_path: Path, passes_id: bool
) -> None:
    models = tmp_path / "models"
    write_model(models, "child", BY_ONE + WARMED, sleep_s=0.003)
    write_caller(models, "caller", "child", passes_id=passes_id)
    store, summary, screen = run_of_caller(alone, tmp_path)
    found = steps_of(store)
    requests = {row["request_id"] for row in rows_of(store, "requests")}
    assert found.keys() == requests
    tie = "id" if passes_id else "time"
    for own in found.values():
        assert [(row["model"], row["is_on_path"], row["is_joined"], row["tie"]) for row in own] == [
            ("caller", True, True, "id"), ("child", False, False, tie)
        ]  # fmt: skip
        assert own[1]["wait_ns"] == own[1]["start_ns"] - own[0]["start_ns"] >= 4e6
    told = summary["steps"]
    assert [one["model"] for one in told["models"]] == ["caller", "child"]
    n = len(requests)
    expected = [] if passes_id else [("child", "caller", n, n, 0, 0)]
    names = ("model", "parent", "n_batches", "n_tied", "n_ambiguous", "n_unheld")
    assert [tuple(one[name] for name in names) for one in told["children"]] == expected
    assert ("are tied to caller by time" in " ".join(screen.split())) is not passes_id
    assert all(one["is_met"] for one in summary["identities"])
    assert Counter(row["join_level"] for row in rows_of(store, "joined")) == {"exact": n}


@pytest.mark.long
@pytest.mark.slow
def test_a_decoupled_model_that_another_asks_is_told_and_is_a_step(alone: Bench, tmp_path: Path) -> None:
    """Its execution returns at once; its work, and so its answer, come later, still within the one that asks. On a busy
    host an execution may return after its answer, and after the one that asks: none holds it then."""
    models = tmp_path / "models"
    write_stream(models, "child")
    write_caller(models, "caller", "child", passes_id=False, is_stream=True)
    store, summary, _ = run_of_caller(alone, tmp_path)
    assert store.manifest.servers["server-0"].decoupled == ("child",)
    found = steps_of(store)
    batches = rows_of(store, "batches")
    children = [row for row in batches if row["model"] == "child"]
    outlived = {
        one for row in batches for one in row["request_ids"]
        if any(row["start_ns"] <= child["start_ns"] < row["end_ns"] < child["end_ns"] for child in children)
    }  # fmt: skip
    assert found.keys() == {row["request_id"] for row in rows_of(store, "requests")} - outlived
    (told,) = summary["steps"]["children"]
    assert told["n_tied"] == len(found)
    for own in found.values():
        assert [(row["model"], row["is_on_path"], row["tie"]) for row in own] == [
            ("caller", True, "id"), ("child", False, "time")
        ]  # fmt: skip
    costs = [row for row in rows_of(store, "batch_costs") if row["model"] == "child"]
    assert {row["tie"] for row in costs} == {"none"}
    assert all(one["is_met"] for one in summary["identities"])
