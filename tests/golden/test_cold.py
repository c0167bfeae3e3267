"""Planted truths: models that are cold, and models that are slow otherwise, each told by batches, statistics, requests.

The runs are simulated to the nanosecond (`tests/cold_runs.py`): what a batch takes is stated, so is what must be said.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.analysis.compare.over_seeds import SeedPromise, decide
from squall.analysis.report.templates import sentences
from squall.analysis.requests.cold import ColdFigures, cold_figures
from squall.analysis.requests.cold_words import cold_text
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.measured import QUANTILES
from tests.cold_runs import (
    MEASURE,
    MS,
    WARM_UP,
    Load,
    S,
    Took,
    cold_run,
    drifting,
    new_sizes,
    slow_bursts,
    slow_until,
    summary_of,
    warm,
)

slow = partial(pytest.param, marks=pytest.mark.slow)
"""A case of the slow suite, whose fault another one has too."""
BATCHES, STATISTICS, REQUESTS = ("batches", "triton_samples"), ("triton_samples",), ()
SOURCES = pytest.mark.parametrize(
    "tables", [BATCHES, STATISTICS, REQUESTS], ids=["batches", "statistics", "requests"]
)
BATCHES_FIRST = pytest.mark.parametrize(
    "tables",
    [BATCHES, *(slow(one) for one in (STATISTICS, REQUESTS))],
    ids=["batches", "statistics", "requests"],
)
"""The others in the slow suite."""
BUSY = Load("load", "measure", 8.0, 2_500.0)


def seeds(most: int) -> pytest.MarkDecorator:
    """Of the seeds after the first the slow suite."""
    return pytest.mark.parametrize("seed", [1, *map(slow, range(2, most + 1))])


def first_of(seconds: float) -> Took:
    """The first execution takes that long."""
    return lambda one: seconds * S if one.at_ns < 0.5 * S else warm(one)


def cold_of(parent: Path, took: Took, **run: Any) -> ColdFigures:
    store = cold_run(parent, took, **run)
    return cold_figures(store, Requests.read(store), measure_spans(store.manifest), QUANTILES, {})["load"]


def p95_ns(one: ColdFigures) -> int:
    (found,) = (own.value_ns for own in one.without if own.q == 0.95)
    assert found is not None
    return found


@SOURCES
@seeds(3)
def test_a_warm_model_is_not_cold(tmp_path: Path, tables: tuple[str, ...], seed: int) -> None:
    found = cold_of(tmp_path, warm, tables=tables, seed=seed)
    assert (found.kind, found.stretches, found.is_stated, found.advice) == ("none", (), False, None)


@seeds(3)
def test_a_model_that_sleeps_at_sizes_it_has_not_seen_is_cold_until_it_has_seen_them(
    tmp_path: Path, seed: int
) -> None:
    found = cold_of(tmp_path, new_sizes(60 * MS), loads=(WARM_UP, BUSY), n_instances=4, seed=seed)
    assert (found.kind, found.source, found.is_of_first, found.is_stated) == ("cold", "batches", True, True)
    assert found.n_first == found.n_first_slow >= 20, "four instances, each at its own sizes"
    assert found.first_excess_ns == pytest.approx(found.n_first_slow * 60 * MS, rel=0.05)
    (stretch,) = found.stretches
    assert stretch.begin_ns == 0
    assert stretch.end_ns < 3 * S
    assert found.late_ratio > 0.2
    assert p95_ns(found) < 3 * MS < 60 * MS
    assert found.advice is not None
    assert found.advice.phase == "warmup"
    assert found.advice.rate_hz is not None
    assert found.advice.rate_hz >= 2_500, "of the busiest second: its batches are those that must be met"
    assert found.advice.sizes_count > 4


def test_the_advised_warm_up_covers_it(tmp_path: Path) -> None:
    advice = cold_of(tmp_path / "short", new_sizes(60 * MS), loads=(WARM_UP, BUSY), n_instances=4).advice
    assert advice is not None
    assert advice.rate_hz is not None
    longer = Load("warmup", "warmup", advice.duration_ns / S, advice.rate_hz)
    found = cold_of(tmp_path / "long", new_sizes(60 * MS), loads=(longer, BUSY), n_instances=4)
    assert not found.is_stated
    assert found.n_first_slow <= 5, "rare sizes alone are left"


@BATCHES_FIRST
@pytest.mark.parametrize(("until_s", "factor"), [slow(4.0, 6.0), slow(7.0, 6.0), (12.0, 4.0)])
def test_a_model_that_is_slow_for_its_first_seconds_is_cold_until_then(
    tmp_path: Path, tables: tuple[str, ...], until_s: float, factor: float
) -> None:
    found = cold_of(tmp_path, slow_until(until_s, factor), tables=tables)
    assert (found.kind, found.is_of_first, found.is_stated) == ("cold", False, True)
    (stretch,) = found.stretches
    assert stretch.begin_ns == 0
    assert stretch.end_ns / S == pytest.approx(until_s - WARM_UP.seconds, abs=0.3)
    assert found.late_ratio > 0.6
    assert found.advice is not None
    assert found.advice.duration_ns >= until_s * S
    assert found.advice.rate_hz is None, "longer is enough"


@SOURCES
def test_a_first_execution_that_outlasts_the_warm_up(tmp_path: Path, tables: tuple[str, ...]) -> None:
    summary = summary_of(tmp_path, first_of(8.0), tables=tables, promises={"response": ["p(95)<50ms"]})
    found = summary.cold["load"]
    assert found.kind in (("cold",) if tables != STATISTICS else ("cold", "leftovers"))
    assert found.inherited.n == pytest.approx(100, abs=30), "two seconds of 50/s"
    assert found.inherited.oldest_ns == pytest.approx(2 * S, abs=0.2 * S)
    assert found.inherited.until_ns >= 5.9 * S
    (stretch,) = found.stretches
    assert 5.9 * S < stretch.end_ns < 8 * S
    assert found.late_ratio > 0.99
    assert p95_ns(found) < 5 * MS
    assert found.late_of == "response p(95)<50ms"
    assert found.advice is not None
    assert found.advice.duration_ns >= 8 * S
    assert "requests of the one before in flight, the oldest 1.9" in cold_text(found)
    assert summary.findings[0].rule == found.kind
    assert {one.confidence for one in summary.findings[1:]} <= {"medium", "low"}
    (promise,) = summary.promises or ()
    assert (promise.verdict, promise.cold is not None) == ("broken", True)
    assert promise.cold is not None
    assert promise.cold.verdict == "kept"
    assert sentences("outcome", [promise])[0].startswith("PROMISE BROKEN: response p(95)<50ms; ")
    assert "kept without them" in sentences("outcome", [promise])[0]


@BATCHES_FIRST
@seeds(2)
@pytest.mark.parametrize(
    "took",
    [
        slow(slow_bursts(3.0, 0.3)),
        slow_bursts(5.0, 0.5, offset_s=2.0),
        slow(slow_bursts(10.0, 0.5, offset_s=2.0)),
        slow_bursts(500.0, 0.5, offset_s=6.0),
        slow(slow_bursts(4.0, 0.2, factor=20.0, offset_s=2.0)),
    ],
    ids=["every-3-s", "from-its-start-on", "twice", "once-later", "short-and-hard"],
)
def test_a_model_that_is_slow_in_bursts_is_not_cold(
    tmp_path: Path, tables: tuple[str, ...], took: Took, seed: int
) -> None:
    assert cold_of(tmp_path, took, tables=tables, seed=seed).kind == "none"


def test_a_slow_spell_behind_a_warm_up_that_ran_at_full_speed_is_not_cold(tmp_path: Path) -> None:
    took = slow_bursts(500.0, 0.5, offset_s=2.0)
    loads = (Load("warmup", "warmup", 2.0, 300.0), MEASURE)
    assert cold_of(tmp_path, took, loads=loads).kind == "none"


@BATCHES_FIRST
@pytest.mark.parametrize("share", [0.05, slow(0.1)])
def test_a_model_that_gets_slower_with_time_drifts(
    tmp_path: Path, tables: tuple[str, ...], share: float
) -> None:
    summary = summary_of(
        tmp_path, drifting(share), tables=tables, loads=(WARM_UP, Load("load", "measure", 20.0, 300.0))
    )
    found = summary.cold["load"]
    assert (found.kind, found.stretches, found.is_stated) == ("drift", (), True)
    # from the middle of the first sixth to that of the last
    low, high = (1.0 + share * (WARM_UP.seconds + at * 20.0) for at in (1 / 12, 11 / 12))
    assert found.drift_ratio == pytest.approx(high / low, rel=0.1 if tables else 0.3), (
        "without batches of queues too"
    )
    assert summary.findings[0].rule == "drift"
    assert "it is not cold" in summary.findings[0].claim


@BATCHES_FIRST
@pytest.mark.parametrize("factor", [slow(4.0), 8.0])
def test_a_queue_that_arrivals_make_at_the_beginning_is_not_cold(
    tmp_path: Path, tables: tuple[str, ...], factor: float
) -> None:
    loads = (WARM_UP, Load("load", "measure", 20.0, 600.0, busy=(0.0, 1.5, factor)))
    assert cold_of(tmp_path, warm, tables=tables, loads=loads).kind == "none"


@SOURCES
def test_a_warm_up_that_overloads_leaves_what_the_phase_begins_with(
    tmp_path: Path, tables: tuple[str, ...]
) -> None:
    loads = (Load("warmup", "warmup", 2.0, 9_000.0), MEASURE)
    found = cold_of(tmp_path, warm, tables=tables, loads=loads)
    assert (found.kind, found.is_stated) == ("leftovers", True)
    assert found.inherited.n > 1_000
    assert found.advice is not None
    assert found.advice.is_lower
    assert "lower warmup to" in cold_text(found)


def test_a_closed_loop_is_told_by_its_service_times(tmp_path: Path) -> None:
    found = cold_of(tmp_path, slow_until(4.0), is_open=False)
    assert (found.kind, found.is_stated) == ("cold", True)
    assert found.advice is not None
    assert found.advice.rate_hz is None


def test_sizes_that_come_for_the_first_time_far_apart_are_stretches_of_their_own(tmp_path: Path) -> None:
    loads = (WARM_UP, Load("load", "measure", 20.0, 200.0))
    found = cold_of(tmp_path, new_sizes(300 * MS), loads=loads, most_rows=64)
    assert (found.kind, found.is_of_first) == ("cold", True)
    assert p95_ns(found) < 300 * MS


@pytest.mark.slow
def test_of_several_seeds_the_cold_one_is_named(tmp_path: Path) -> None:
    promises = {"response": ["p(95)<10ms"]}
    runs = []
    for seed in (1, 2, 3):
        took = first_of(8.0) if seed == 3 else warm
        (figures,) = summary_of(tmp_path / str(seed), took, seed=seed, promises=promises).promises or ()
        runs.append(SeedPromise(seed, f"run-{seed}", figures))
    found = decide(runs)
    assert found.verdict == "undecided"
    assert found.reason.startswith("seed 3 was cold, the others not: the first ")
    assert "warmup to" in found.reason


def test_executions_without_rows_say_nothing(tmp_path: Path) -> None:
    """As those of a model whose process ended: the server tells of them, with nothing in them."""
    store = cold_run(tmp_path, lambda one: 5 * warm(one), most_rows=1)
    costs = store.read("batch_costs")
    none = pa.array(np.zeros(len(costs), np.int64))
    store.replace_derived("batch_costs", costs.set_column(costs.column_names.index("rows"), "rows", none))
    found = cold_figures(store, Requests.read(store), measure_spans(store.manifest), QUANTILES, {})["load"]
    assert (found.kind, found.source) == ("none", "statistics")
