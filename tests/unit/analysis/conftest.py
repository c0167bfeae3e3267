"""Synthetic runs and real nsys exports as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from squall.analysis.report.page import render_html, write_report
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.store import RunStore
from tests.locust_runs import synthesise_locust
from tests.made_once import run_once, value_once
from tests.synthetic_runs import (
    SyntheticRun,
    synthesise,
    synthesise_closed,
    synthesise_two_models,
    synthesise_two_servers,
)
from tests.unit.analysis.h200_fixtures import cuda_graphs, h200, h200_report, two_heads, two_heads_metrics

__all__ = ["cuda_graphs", "h200", "h200_report", "two_heads", "two_heads_metrics"]


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunStore]:
    """Writes a run, by default the one of `synthesise()`."""

    def make(run: SyntheticRun | None = None) -> RunStore:
        return (run or synthesise()).write(tmp_path / "runs")

    return make


@pytest.fixture
def synthetic() -> SyntheticRun:
    """A consistent run, to be broken."""
    return synthesise()


@pytest.fixture
def plain() -> SyntheticRun:
    """A consistent run, to be broken, that nothing is derived of: no join, no windows. It takes a fifth of the time."""
    run = synthesise()
    run.derived = False
    return run


def phaseless() -> SyntheticRun:
    """It ended before its phases began."""
    run = synthesise()
    run.manifest["phases"] = []
    return run


def telling() -> SyntheticRun:
    """Its manifest tells more: a note, a phase that nsys missed, workers without the C lane, a measured warm-up."""
    run = synthesise()
    run.manifest["notes"] = ["a note " * 40]
    run.manifest["collectors"]["nsys"] = {"status": "on", "reason": "", "mend": ""}
    run.manifest["profiled_phases"] = {"burst": {"is_profiled": False, "reason": "it hung"}}
    for worker in run.manifest["workers"]:
        worker |= {"has_lane": False, "no_lane": "it speaks no TLS"}
    run.manifest["phases"][0]["kind"] = "measure"
    return run


RUNS: dict[str, Callable[[], SyntheticRun]] = {
    "whole": synthesise,
    "closed": synthesise_closed,
    "locust": synthesise_locust,
    "two_nodes": lambda: synthesise(n_nodes=2),  # the server and a worker have a node each
    "mixed": synthesise_two_models,  # one on both of its servers
    "two_servers": synthesise_two_servers,
    "phaseless": phaseless,
    "telling": telling,
}
"""Sealed runs for tests that only read, each made once: `whole_run` and so on, and what is derived: `whole_summary`."""


def fixtures_of(name: str, make: Callable[[], SyntheticRun]) -> list[object]:
    @pytest.fixture(scope="session", name=f"{name}_run")
    def run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
        return run_once(tmp_path_factory, f"{name}_run", make().write)

    @pytest.fixture(scope="session", name=f"{name}_summary")
    def summary(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Summary:
        store = request.getfixturevalue(f"{name}_run")
        return value_once(tmp_path_factory, f"{name}_summary", lambda: summarise(store))

    return [run, summary]


for _name, _make in RUNS.items():
    globals().update({f"_{_name}_{i}": fixture for i, fixture in enumerate(fixtures_of(_name, _make))})


@pytest.fixture(scope="session")
def whole_page(whole_run: RunStore, whole_summary: Summary) -> str:
    return write_report(whole_run, whole_summary).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def closed_page(closed_run: RunStore, closed_summary: Summary) -> str:
    return write_report(closed_run, closed_summary).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def telling_page(telling_run: RunStore, telling_summary: Summary) -> str:
    """Without plots: they take as long to draw as all the rest, and what is told is in words."""
    return render_html(telling_summary, telling_run.manifest, [])
