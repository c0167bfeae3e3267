"""Real nsys exports of 2025.3.2 on an H200 (tests/fixtures/h200) as fixtures, each made once."""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import scrub
from squall.analysis.storage.store import RunStore
from tests.h200_runs import write_h200_run
from tests.made_once import run_once, value_once

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200"


@pytest.fixture(scope="session")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A real export by name, unpacked once. Its ranges read `execute`, as models of before ours wrote them."""
    folder = tmp_path_factory.mktemp("h200")

    def unpack(name: str) -> Path:
        path = folder / f"{name}.sqlite"
        if not path.exists():
            path.write_bytes(lzma.decompress((FIXTURES / f"{name}.nsys.sqlite.xz").read_bytes()))
        return path

    return unpack


@pytest.fixture(scope="session")
def h200_report(
    h200: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], NsysReport]:
    """A real report, scrubbed once, its `execute` ranges named as ours: instance by process, batch by row."""
    folder = tmp_path_factory.mktemp("scrubbed")

    def make(name: str) -> NsysReport:
        if not (folder / name).exists():
            path = folder / f"{name}.sqlite"
            path.write_bytes(h200(name).read_bytes())
            with closing(sqlite3.connect(path)) as file:
                ours = "'squall|m_' || ((globalTid >> 24) & 16777215) || '|' || rowid"
                file.execute(f"UPDATE NVTX_EVENTS SET text = {ours} WHERE text = 'execute'")
                file.commit()
            scrub(path, folder / name)
            path.unlink()
        return NsysReport(folder / name)

    return make


@pytest.fixture(scope="session")
def two_heads(h200_report: Callable[[str], NsysReport], tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """Process 575 is linear_head, process 576 seqlen_head; a phase each, from its first range to its last."""

    def write(folder: Path) -> RunStore:
        models = {"m_575": "linear_head", "m_576": "seqlen_head"}
        store = write_h200_run(folder, h200_report("two_heads"), models)
        write_batch_costs(store)
        return store

    return run_once(tmp_path_factory, "two_heads", write)


@pytest.fixture(scope="session")
def two_heads_metrics(two_heads: RunStore, tmp_path_factory: pytest.TempPathFactory) -> RunMetrics:
    return value_once(tmp_path_factory, "two_heads_metrics", lambda: run_metrics(two_heads))


@pytest.fixture(scope="session")
def cuda_graphs(tmp_path_factory: pytest.TempPathFactory) -> NsysReport:
    """A real Parquet folder of 2025.3.2, scrubbed: 143 batches of a CUDA graph of ten kernels, traced node by node."""
    folder = tmp_path_factory.mktemp("cuda_graphs") / "scrubbed"
    scrub(FIXTURES / "cuda_graphs.nsys.parquetdir", folder)
    return NsysReport(folder)
