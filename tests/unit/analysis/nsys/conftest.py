"""Runs of the real exports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.store import RunStore
from tests.h200_runs import write_h200_run


@pytest.fixture(scope="session")
def h200_run(
    h200_report: Callable[[str], NsysReport],
    cuda_graphs: NsysReport,
    two_heads: RunStore,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], RunStore]:
    """A sealed run of a real report by name, written once, for tests that only read."""
    folder, runs = tmp_path_factory.mktemp("runs"), {"two_heads": two_heads}

    def make(name: str) -> RunStore:
        if name not in runs:
            report = cuda_graphs if name == "cuda_graphs" else h200_report(name)
            runs[name] = write_h200_run(folder, report)
        return runs[name]

    return make
