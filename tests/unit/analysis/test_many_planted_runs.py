"""Many planted runs, each made and derived once, against loops over plain rows and against what was planted: join,
figures, findings and windows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.metrics.run import run_metrics
from tests.many_examples import folder_in, many
from tests.planted_runs import MS, Shape, plant, shapes
from tests.reference_join import reference
from tests.unit.analysis.join import test_planted_join as of_join
from tests.unit.analysis.join import test_window_join as of_window_join
from tests.unit.analysis.metrics import test_planted_metrics as of_metrics


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.mark.slow
@pytest.mark.long
@many(60)
@given(shape=shapes(most_requests=60))
def test_many_planted_runs_come_out_as_loops_find_them(shape: Shape, parent: Path) -> None:
    planted = plant(shape)
    with folder_in(parent) as folder:
        store = of_join.derived(planted, folder)
        expected = reference(store)
        of_join.check_run(store, planted, expected)
        of_metrics.check_run(store, run_metrics(store), expected)


@pytest.mark.slow
@pytest.mark.long
@many(60)
@given(shape=shapes(most_requests=60), on_ms=st.integers(1, 120), pause_ms=st.integers(1, 100))
def test_many_runs_in_windows_come_out_as_loops_find_them(
    shape: Shape, on_ms: int, pause_ms: int, parent: Path
) -> None:
    with folder_in(parent) as folder:
        store = of_window_join.recorded(shape, folder, on_ms * MS, (on_ms + pause_ms) * MS)
        expected = reference(store)
        of_join.check_tables(store, expected)
        of_window_join.check_sums(store)
        of_metrics.check_run(store, run_metrics(store), expected)
