"""A run of the real H200 export `two_heads`, with all that is derived before metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.metrics.run import run_metrics
from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.store import RunStore
from tests.h200_runs import write_h200_run
from tests.unit.analysis.nsys.conftest import cuda_graphs, h200, h200_report

__all__ = ["cuda_graphs", "h200", "h200_report"]


@pytest.fixture(scope="session")
def two_heads(h200_report: Callable[[str], NsysReport], tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Process 575 is linear_head, process 576 seqlen_head; a phase each, from its first range to its last."""
    report, folder = h200_report("two_heads"), tmp_path_factory.mktemp("two_heads")
    store = write_h200_run(folder, report, {"m_575": "linear_head", "m_576": "seqlen_head"})
    write_batch_costs(store)
    return store


@pytest.fixture(scope="session")
def two_heads_metrics(two_heads: RunStore) -> dict[str, Any]:
    return run_metrics(two_heads)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"
