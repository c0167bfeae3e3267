"""The runs and exports of the benchmark of the join hold what its tables say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from squall.analysis.nsys.batches import attribution
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import scrub
from squall.analysis.storage.store import RunStore
from tests.bench import big_runs
from tests.bench.big_events import BATCHES
from tests.bench.big_exports import write_big_export
from tests.bench.big_runs import write_big_run
from tests.bench.join import measured
from tests.bench.join_steps import RUN_STEPS, Step
from tests.fakes import out_of_memory

SCALE = 0.0004
GIB = 1 << 30


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    return write_big_run(tmp_path_factory.mktemp("big"), SCALE)


@contextmanager
def views(store: RunStore) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection in which every table of the run is a view."""
    with duckdb.connect() as connection:
        for table in store.tables():
            connection.read_parquet([str(part) for part in store.parts(table)]).create_view(table)
        yield connection


def ask(store: RunStore, query: str) -> list[tuple[object, ...]]:
    with views(store) as connection:
        rows: list[tuple[object, ...]] = connection.execute(query).fetchall()
    return rows


def test_every_request_that_was_not_rejected_is_in_one_batch(big: RunStore) -> None:
    assert big.verify() == []
    ((n, first, last, n_ids),) = ask(
        big, "SELECT count(*), min(request_id), max(request_id), count(DISTINCT request_id) FROM requests"
    )
    assert (first, last, n_ids) == (0, n - 1, n)  # type: ignore[operator]
    assert n > SCALE * BATCHES * 7  # type: ignore[operator]
    members = "(SELECT unnest(request_ids) AS request_id FROM batches)"
    assert ask(
        big, f"SELECT outcome, count(*) FROM requests ANTI JOIN {members} USING (request_id) GROUP BY ALL"
    ) == [
        ("rejected", n // 501)  # type: ignore[operator]
    ]
    assert ask(big, f"SELECT count(*) - count(DISTINCT request_id) FROM {members}") == [(0,)]


def test_every_batch_of_a_recorded_phase_has_its_events_within_it(big: RunStore) -> None:
    recorded = "(SELECT * FROM batches WHERE phase IN ('steady', 'burst'))"
    for table, n in {"kernels": 40, "memcpys": 2, "cuda_api": 43}.items():
        key = "server, instance, instance_device, batch_id"
        counts = f"SELECT {key}, count(*) AS n, min(start_ns) AS a, max(end_ns) AS b FROM {table}"
        wrong = f"""SELECT count(*) FROM {recorded} b LEFT JOIN ({counts} GROUP BY ALL) e
            USING ({key}) WHERE n IS DISTINCT FROM {n} OR a < start_ns OR b > end_ns"""
        ((n_wrong,),) = ask(big, wrong)
        assert n_wrong <= 12, table  # type: ignore[operator]  # those that the edges of a phase cut, of each instance
    assert ask(
        big, "SELECT count(*) FROM kernels WHERE start_ns < launch_start_ns OR end_ns <= start_ns"
    ) == [(0,)]


def test_the_rows_of_a_report_come_by_start(big: RunStore) -> None:
    rows = ask(big, "SELECT phase, server, start_ns FROM kernels")
    reports = list(dict.fromkeys(row[:2] for row in rows))
    assert len(reports) == 4
    assert rows == sorted(rows, key=lambda row: (reports.index(row[:2]), row[2]))


def test_numbers_do_not_depend_on_the_pieces(
    big: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(big_runs, "EVENT_ROWS", 1_600)
    monkeypatch.setattr(big_runs, "REQUEST_ROWS", 100)
    other = write_big_run(tmp_path, SCALE)
    with views(big) as whole, views(other) as pieces:
        for table in big.tables():
            query = f"SELECT count(*), sum(hash(row)) FROM (SELECT * EXCLUDE (run) FROM {table}) row"
            assert pieces.execute(query).fetchall() == whole.execute(query).fetchall(), table


def test_statistics_count_what_the_batches_served(big: RunStore) -> None:
    sums = "SELECT sum(request_count), sum(inference_count), sum(execution_count) FROM triton_samples"
    assert ask(big, sums) == ask(big, "SELECT sum(n_requests), sum(rows), count(*) FROM batches")


@pytest.mark.slow
def test_a_repeated_export_has_each_event_so_many_times(tmp_path: Path) -> None:
    counts = []
    for n in (1, 2):
        scrub(write_big_export(tmp_path / f"{n}.sqlite", n), tmp_path / f"{n}")
        counts.append(attribution(NsysReport(tmp_path / f"{n}")))
    assert counts[0]["kernels"].n == counts[0]["kernels"].n_tied == 54_742
    assert {table: (2 * one.n, 2 * one.n_tied) for table, one in counts[0].items()} == {
        table: (one.n, one.n_tied) for table, one in counts[1].items()
    }


@pytest.mark.slow
def test_a_step_is_measured_in_a_process_of_its_own(big: RunStore) -> None:
    cost = measured(RUN_STEPS["bare"], big.run_dir, GIB, 7)
    assert (cost.rows, cost.failure) == (7, "")
    assert cost.cpu_s > 0
    assert 30 << 20 < cost.peak_bytes < GIB
    assert measured(Step("full", out_of_memory), big.run_dir, GIB, 7).failure == "MemoryError: no room"
