"""Figures of whole runs that were summarised: latencies, users, batches, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from squall.analysis.compare.run_figures import run_figures
from squall.analysis.published.figures import collected_under, figures_of_run, user_figures
from squall.analysis.requests.closed_loop import UserFigures
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.scenarios.errors import StoreError
from squall.scenarios.published.figures import FIGURES
from tests.synthetic_runs import synthesise, synthesise_closed

LATER = {"bound_by"}
"""Figures that the parts of this change name one after the other."""


def _summarised(store: RunStore) -> Path:
    store.write_text("summary.json", json.dumps(summarise(store).to_json()))
    return store.run_dir


def test_latencies_and_throughput_are_those_of_squall_compare(make_run: Callable[..., RunStore]) -> None:
    store = make_run(synthesise())
    found = figures_of_run(_summarised(store))
    readings = run_figures(store).pooled
    for name in ("throughput_hz", "p50_ns", "p95_ns"):
        assert readings[name].value is not None
        assert found[name] == readings[name].value
    assert set(found) <= set(FIGURES) | LATER
    assert "users_count" not in found  # an open loop has none


def test_users_of_a_closed_loop_are_accounted_for(make_run: Callable[..., RunStore]) -> None:
    store = make_run(synthesise_closed())
    found = figures_of_run(_summarised(store))
    users = summarise(store).measure.users
    assert users is not None
    assert found["users_count"] == users.users_mean_count
    thinking = users.throughput_hz * users.think_mean_ns / 1e9 + users.inside_client_mean_count
    assert found["outside_ratio"] == pytest.approx(thinking / users.users_mean_count, abs=1e-3)


def test_time_outside_requests_is_littles_law() -> None:
    figures = user_figures(UserFigures(1000.0, 1151.0, 441_000_000, 0, 492.0, 0.492, 0.0))
    assert figures["outside_ratio"] == pytest.approx(1.0 - 1151.0 * 0.441 / 1000.0)
    assert user_figures(UserFigures(0.0, 0.0, 0, 0, 0.0, 0.0, 0.0)) == {}


def test_a_run_without_a_summary_is_refused_in_one_line(make_run: Callable[..., RunStore]) -> None:
    store = make_run(synthesise())
    with pytest.raises(StoreError) as caught:
        figures_of_run(store.run_dir)
    assert "\n" not in str(caught.value)


def test_collectors_of_a_run_are_named(make_run: Callable[..., RunStore]) -> None:
    store = make_run(synthesise())
    on = [name for name, one in store.manifest.collectors.items() if one.status == "on"]
    assert collected_under(store.run_dir) == (", ".join(on) or "none")
