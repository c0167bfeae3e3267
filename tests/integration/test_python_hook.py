"""Batches of Python models that record them by the hook beside their model.py, in a real Triton without any library."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from squall.actors.inject.library import built_library
from squall.cluster.node.checkup import NodeCheckup
from squall.models.repository import HOOK_FILE, hook_source
from tests.integration.foreign_models import GATHERED, MODEL, write_ensemble, write_model
from tests.integration.live_runs import Bench
from tests.integration.test_foreign_batches import (
    ask,
    assert_all_joined,
    finish,
    rows_of,
    scenario,
    their_server,
)

pytestmark = pytest.mark.beside


def hook_into(models: Path, name: str, rings: Path, execute: str = "def execute") -> None:
    """As a user does: the file beside model.py, two lines into that."""
    version = models / name / "1"
    (version / HOOK_FILE).write_text(hook_source(rings))
    first, _, rest = MODEL.partition("    def execute")
    text = f"from squall_batches import record\n{first.rstrip()}\n        record(self, args)\n\n    {execute}{rest}"
    (version / "model.py").write_text(text)


def theirs(models: Path, name: str, rate_hz: float = 150, **profile: Any) -> dict[str, Any]:
    """A scenario for their server, which has the model."""
    mapping = scenario(models, name, rate_hz, batches="required", **profile)
    del mapping["model"]["repository"]
    return mapping


@contextmanager
def another_server(folder: Path, models: Path, model: str) -> Iterator[None]:
    """One of the same files, whose rings are in the same folder, and which serves somebody meanwhile."""
    is_over = threading.Event()

    def ask_on(url: str) -> None:
        while not is_over.wait(0.05):
            ask(url, model, 1)

    with their_server(folder, models, model, []) as url, ThreadPoolExecutor(1) as client:
        asking = client.submit(ask_on, url)
        yield
        is_over.set()
        asking.result(60)


@pytest.fixture
def rings(tmp_path: Path) -> Path:
    """A folder whose name only the models' files have."""
    (tmp_path / "rings").mkdir()
    return tmp_path / "rings"


@pytest.mark.slow
def test_a_model_of_two_instances_in_a_server_that_knows_nothing_of_squall_is_recorded_exactly(
    alone: Bench, tmp_path: Path, rings: Path
) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", n_instances=2, sleep_s=0.01)
    hook_into(models, "plain", rings)
    with their_server(tmp_path / "server", models, "plain", []) as url:
        port = int(url.rpartition(":")[2])
        (found, *_) = NodeCheckup().server_findings(port)
        assert (found.status, found.what) == ("ok", "Python models of it record their batches")
        ask(url, "plain", 5)
        with another_server(tmp_path / "other", models, "plain"):
            store, summary, screen = finish(alone, theirs(models, "plain"), "--server", url)
    assert_all_joined(store, "plain", "hook")
    assert {row["n_foreign"] for row in rows_of(store, "batches")} == {0}
    batches = rows_of(store, "batches")
    assert {row["instance"] for row in batches} == {"plain_0_0", "plain_0_1"}
    assert {row["exec_start_ns"] for row in batches} == {None}
    assert any(row["n_requests"] > 1 for row in batches)
    assert {row["source"] for row in rows_of(store, "batch_costs")} == {"hook"}
    assert store.manifest.collectors["batches"].how == "by the hook in Python models"
    assert store.manifest.notes == ()
    assert all(one["is_met"] for one in summary["identities"])
    assert "by the hook in Python models" in " ".join(screen.split())


@pytest.mark.slow
def test_the_steps_of_an_ensemble_are_recorded_each_by_its_own_hook(
    alone: Bench, tmp_path: Path, rings: Path
) -> None:
    models = tmp_path / "models"
    for name, sleep_s, execute in (
        ("tokenize", 0.008, "def execute"),
        ("classify", 0.002, "async def execute"),
    ):
        write_model(models, name, GATHERED, sleep_s=sleep_s)
        (rings / name).mkdir()
        hook_into(models, name, rings / name, execute)
    write_ensemble(models, "pipe")
    with their_server(tmp_path / "server", models, "pipe", []) as url:
        store, summary, _ = finish(alone, theirs(models, "pipe", rate_hz=60), "--server", url)
    for model in ("tokenize", "classify"):
        assert_all_joined(store, model, "hook")
    assert all(one["is_met"] for one in summary["identities"])


@pytest.mark.slow
@pytest.mark.skipif(built_library("batches") is None, reason="the batch library was not built: no C compiler")
def test_a_server_that_squall_starts_has_each_batch_once_also_where_its_model_has_the_hook(
    alone: Bench, tmp_path: Path, rings: Path
) -> None:
    models = tmp_path / "models"
    write_model(models, "plain", n_instances=2, sleep_s=0.005)
    hook_into(models, "plain", rings)
    store, _, _ = finish(alone, scenario(models, "plain", batches="required"))
    assert_all_joined(store, "plain")
    assert store.manifest.collectors["batches"].how == "by the batch library in the server"
    (note,) = [one for one in store.manifest.notes if one.startswith("batches: the hook")]
    assert note == "batches: the hook in 2 processes is left unread: the batch library has them too"
