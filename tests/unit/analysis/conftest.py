"""Synthetic runs and real nsys exports as fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from squall.analysis.render.report import render_html, write_report
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
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


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """One sealed run for tests that only read."""
    return run_once(tmp_path_factory, "whole_run", synthesise().write)


@pytest.fixture(scope="session")
def whole_summary(whole_run: RunStore, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return value_once(tmp_path_factory, "whole_summary", lambda: summarise(whole_run))


@pytest.fixture(scope="session")
def whole_page(whole_run: RunStore, whole_summary: Summary) -> str:
    return page_of(whole_run, whole_summary)


@pytest.fixture(scope="session")
def closed_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """The same of a closed loop."""
    return run_once(tmp_path_factory, "closed_run", synthesise_closed().write)


@pytest.fixture(scope="session")
def closed_summary(closed_run: RunStore, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return value_once(tmp_path_factory, "closed_summary", lambda: summarise(closed_run))


@pytest.fixture(scope="session")
def closed_page(closed_run: RunStore, closed_summary: Summary) -> str:
    return page_of(closed_run, closed_summary)


@pytest.fixture(scope="session")
def two_nodes_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """The server and a worker have a node each."""
    return run_once(tmp_path_factory, "two_nodes_run", synthesise(n_nodes=2).write)


@pytest.fixture(scope="session")
def two_nodes_summary(two_nodes_run: RunStore, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return value_once(tmp_path_factory, "two_nodes_summary", lambda: summarise(two_nodes_run))


@pytest.fixture(scope="session")
def mixed_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Of two models, one on both of its servers."""
    return run_once(tmp_path_factory, "mixed_run", synthesise_two_models().write)


@pytest.fixture(scope="session")
def mixed_summary(mixed_run: RunStore, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return value_once(tmp_path_factory, "mixed_summary", lambda: summarise(mixed_run))


@pytest.fixture(scope="session")
def two_servers_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return run_once(tmp_path_factory, "two_servers_run", synthesise_two_servers().write)


@pytest.fixture(scope="session")
def two_servers_summary(two_servers_run: RunStore, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return value_once(tmp_path_factory, "two_servers_summary", lambda: summarise(two_servers_run))


@pytest.fixture(scope="session")
def phaseless_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """It ended before its phases began."""
    run = synthesise()
    run.manifest["phases"] = []
    return run_once(tmp_path_factory, "phaseless_run", run.write)


@pytest.fixture(scope="session")
def phaseless_summary(phaseless_run: RunStore, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return value_once(tmp_path_factory, "phaseless_summary", lambda: summarise(phaseless_run))


@pytest.fixture(scope="session")
def telling_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Its manifest tells more: a note, a phase that nsys missed, workers without the C lane, a measured warm-up."""
    run = synthesise()
    run.manifest["notes"] = ["a note " * 40]
    run.manifest["collectors"]["nsys"] = {"status": "on", "reason": "", "mend": ""}
    run.manifest["profiled_phases"] = {"burst": {"is_profiled": False, "reason": "it hung"}}
    for worker in run.manifest["workers"]:
        worker |= {"has_lane": False, "no_lane": "it speaks no TLS"}
    run.manifest["phases"][0]["kind"] = "measure"
    return run_once(tmp_path_factory, "telling_run", run.write)


@pytest.fixture(scope="session")
def telling_summary(telling_run: RunStore, tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return value_once(tmp_path_factory, "telling_summary", lambda: summarise(telling_run))


@pytest.fixture(scope="session")
def telling_page(telling_run: RunStore, telling_summary: Summary) -> str:
    """Without plots: they take as long to draw as all the rest, and what is told is in words."""
    return render_html(telling_summary, telling_run.manifest, [])


def page_of(store: RunStore, summary: Summary) -> str:
    return write_report(store, summary).read_text(encoding="utf-8")
