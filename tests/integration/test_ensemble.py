"""An ensemble of a repository of one's own: which of its steps the requests wait for, though no batch is recorded."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.storage.store import RunStore
from tests.integration.foreign_models import BY_ONE, write_ensemble, write_model
from tests.integration.live_runs import Bench, scenario_mapping

pytestmark = [pytest.mark.slow, pytest.mark.beside]

SLOW_S = 0.03
RATE_HZ = 60.0
"""Twice what the slow step serves: one request of 30 ms at a time."""


def write_repository(folder: Path) -> Path:
    """`pipe` of two steps, of which the first is slow, and a model that nobody asks."""
    for name, sleep_s in (("tokenize", SLOW_S), ("classify", 0.0), ("bystander", 0.0)):
        write_model(folder, name, BY_ONE, sleep_s=sleep_s)
    write_ensemble(folder, "pipe")
    return folder


@pytest.fixture(scope="module")
def run(
    tmp_path_factory: pytest.TempPathFactory, shared_ray: tuple[str, Path]
) -> tuple[RunStore, dict[str, Any], str]:
    """The one run of this file: its store, its summary and its screen."""
    folder, tmp = tmp_path_factory.mktemp("ensemble"), tmp_path_factory.mktemp("t")
    bench = Bench(folder, tmp, *shared_ray)
    mapping = scenario_mapping(
        model={"name": "pipe", "repository": str(write_repository(folder / "models")), "max_batch_size": 8},
        clients={"workers_per_node": 1, "timeout": "20s"},
        profile={"nsys": "off", "nvml": "off", "batches": "off"},
    )
    mapping["phases"] = [
        {"name": "burst", "kind": "measure", "duration": "2s",
            "arrivals": {"kind": "poisson", "rate": f"{RATE_HZ:g}/s"}},
        {"name": "drain", "kind": "drain", "duration": "5s"},
    ]  # fmt: skip
    live = bench.start_run(mapping, "--verbose")
    assert live.end() in (0, 3, 99), live.lines
    store = bench.store()
    return store, json.loads((store.run_dir / "summary.json").read_text()), bench.stdout()


def test_every_model_that_took_part_is_sampled_and_no_other(
    run: tuple[RunStore, dict[str, Any], str],
) -> None:
    store, _, _ = run
    assert store.manifest.servers["server-0"].steps == ("tokenize", "classify")
    rows = store.read("triton_samples").to_pylist()
    served: Counter[str] = Counter()
    for row in rows:
        served[row["model"]] += row["request_count"]
    n_ok = store.read("requests").column("outcome").to_pylist().count("ok")
    assert served == {"pipe": n_ok, "tokenize": n_ok, "classify": n_ok}
    assert n_ok > RATE_HZ


def test_the_step_that_queues_is_the_finding(run: tuple[RunStore, dict[str, Any], str]) -> None:
    _, summary, screen = run
    (found,) = [one for one in summary["findings"] if one["level"] == "window"]
    assert (found["rule"], found["details"]) == ("queue-bound", ["step tokenize of ensemble pipe"])
    assert found["shares"]["tokenize queue"] == pytest.approx(found["margin"])
    assert found["margin"] > 0.5
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert found["confidence"] in ("medium", "low")
    assert "queue-bound, step tokenize of ensemble pipe" in " ".join(screen.split())


def test_queue_and_compute_of_each_step_are_on_the_screen_in_their_order(
    run: tuple[RunStore, dict[str, Any], str],
) -> None:
    _, summary, screen = run
    tokenize, classify = summary["measure"]["models"]
    assert (tokenize["model"], classify["model"]) == ("tokenize", "classify")
    assert tokenize["queue_mean_ns"] > 2 * classify["queue_mean_ns"]
    assert tokenize["compute_mean_ns"] >= SLOW_S * 1e9
    assert screen.index("tokenize: queue") < screen.index("classify: queue")


def test_what_nobody_knows_the_tail_of_is_no_finding(run: tuple[RunStore, dict[str, Any], str]) -> None:
    _, summary, screen = run
    assert "unjoined" not in {one["rule"].partition(" ")[0] for one in summary["findings"]}
    assert "unjoined grows" not in screen
