"""What a real Triton's cold model does to a run, and what the run says of it, beside models that are slow otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from squall.actors.inject.library import built_library
from tests.integration.foreign_models import write_timed
from tests.integration.live_runs import Bench, scenario_mapping

pytestmark = [
    pytest.mark.beside,
    pytest.mark.skipif(
        built_library("batches") is None, reason="the batch library was not built: no C compiler"
    ),
]
LIMIT_MS = 60
"""Of the promise: beyond what a warm execution of 4 ms and its queue take, below what a cold one does."""


def mapping_of(folder: Path, warm_up_s: float, rate: str = "150/s", seconds: float = 8.0) -> dict[str, Any]:
    mapping = scenario_mapping(
        model={"name": "timed", "repository": str(folder), "max_batch_size": 8},
        promises={"response": f"p(95)<{LIMIT_MS}ms"},
    )
    mapping["clients"] |= {
        "workers_per_node": 1,
        "timeout": "20s",
        "rows": {"kind": "constant", "value": 1},
    }
    mapping["phases"] = [
        {"name": "warmup", "kind": "warmup", "duration": f"{warm_up_s:g}s",
            "arrivals": {"kind": "poisson", "rate": "10/s"}},
        {"name": "load", "kind": "measure", "duration": f"{seconds:g}s",
            "arrivals": {"kind": "poisson", "rate": rate}},
        {"name": "drain", "kind": "drain", "duration": "5s"},
    ]  # fmt: skip
    return mapping


def finish(bench: Bench, mapping: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Summary and screen of a run, whatever becomes of its promise; on a busy host it may be INVALID."""
    live = bench.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    return json.loads((bench.store().run_dir / "summary.json").read_text()), bench.stdout()


def cold_of(summary: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = summary["cold"]["load"]
    return found


@pytest.mark.slow
@pytest.mark.serial  # which requests are late is told by their times
def test_a_model_that_sleeps_at_sizes_it_has_not_seen_is_cold_on_the_screen_the_promise_and_first_of_the_findings(
    alone: Bench, tmp_path: Path
) -> None:
    write_timed(tmp_path / "models", "timed", "sizes", 0.3)
    summary, screen = finish(alone, mapping_of(tmp_path / "models", warm_up_s=1.0))
    cold = cold_of(summary)
    assert (cold["kind"], cold["source"], cold["is_stated"]) == ("cold", "batches", True)
    assert cold["is_of_first"]
    assert cold["n_first_slow"] >= 3
    assert cold["first_excess_ns"] >= 0.9 * 0.3e9 * cold["n_first_slow"]
    first = next(
        one for one in summary["findings"] if not one["rule"].startswith("starved")
    )  # by other tests
    assert first["rule"] == "cold"
    assert "cold: " in screen
    assert "raise warmup to" in " ".join(screen.split())
    assert summary["promises"][0]["cold"]["n_cold_late"] > 0


@pytest.mark.slow
def test_a_first_execution_that_outlasts_the_warm_up_is_what_the_phase_inherits(
    alone: Bench, tmp_path: Path
) -> None:
    write_timed(tmp_path / "models", "timed", "first", 4.0)
    summary, screen = finish(alone, mapping_of(tmp_path / "models", warm_up_s=2.0))
    cold = cold_of(summary)
    assert cold["kind"] == "cold"
    assert cold["inherited"]["n"] >= 5
    assert 0.5e9 < cold["inherited"]["oldest_ns"] < 2.5e9
    assert "requests of the one before in flight" in " ".join(screen.split())
    assert cold["advice"]["duration_ns"] >= 4_000_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        ("until", 5.0, "cold"),
        # A host that is busier at first would be told of as what it is: slow at first.
        pytest.param("bursts", 0.0, "none", marks=pytest.mark.serial),
        ("drift", 0.25, "drift"),
    ],
)
def test_slow_at_first_is_cold_now_and_then_is_not_and_ever_slower_is_drift(
    alone: Bench, tmp_path: Path, kind: str, value: float, told: str
) -> None:
    write_timed(tmp_path / "models", "timed", kind, value)
    summary, _ = finish(alone, mapping_of(tmp_path / "models", warm_up_s=1.0, rate="60/s"))
    assert cold_of(summary)["kind"] == told
