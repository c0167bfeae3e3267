"""The row of a run: kept, read back as it was made, and not believed where it is of other tables or damaged."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.analysis.compare.run_row import FILE, RunRow, make_row, read_row, run_row, write_row
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES
from squall.analysis.storage.store import RunStore
from tests.overhead_runs import write_run

SUMMARY = {
    "measure": {"load": {"intended": {"rate_hz": 12.5}}},
    "promises": [{"promise": "p(95)<50ms", "verdict": "kept"}],
}


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made = write_run(tmp_path, n_failed=20, manifest={"seed": 3, "plan": {"load": "open", "sha256": "abc"}})
    write_row(made, SUMMARY, MEMORY_LIMIT_BYTES)
    return made


def test_it_is_read_back_as_it_was_made(store: RunStore) -> None:
    row = read_row(store.run_dir)
    assert row == make_row(store, SUMMARY)
    assert (row.offered_hz, row.promises) == (12.5, {"p(95)<50ms": "kept"})
    assert row.level is not None
    assert (row.n, row.n_failed) == (row.level.n, row.level.n - row.level.n_ok)


def test_a_folder_of_runs_is_a_table(store: RunStore) -> None:
    other = write_run(store.run_dir.parent)
    write_row(other, {}, MEMORY_LIMIT_BYTES)
    found = duckdb.sql(
        f"""SELECT name, figures['p50_ns'].value, level.n, promises['p(95)<50ms'], json_extract(scenario, '$')
        FROM read_parquet('{store.run_dir.parent}/*/run.parquet') ORDER BY name"""
    ).fetchall()
    assert {name for name, *_ in found} == {store.run, other.run}
    assert {kept for *_, kept, _ in found} == {"kept", None}


def test_what_the_manifest_says_is_read_of_it_alone(store: RunStore) -> None:
    store._write_manifest(replace(store.manifest, seed=9))
    assert read_row(store.run_dir).seed == 9


def test_a_row_of_other_tables_is_made_again(store: RunStore) -> None:
    kept = RunStore.open(store.run_dir)
    tables = dict(kept.manifest.tables or {})
    tables.popitem()
    kept._write_manifest(replace(kept.manifest, tables=tables))
    assert run_row(RunStore.open(store.run_dir)).offered_hz is None


def _forged(path: Path, **options: object) -> None:
    table = pq.ParquetFile(path).read()
    forged = table.set_column(table.schema.get_field_index("offered_hz"), "offered_hz", pa.array([99.0]))
    pq.write_table(forged, path, **{"compression": "none", "use_dictionary": False, **options})


@pytest.mark.parametrize(
    "options", [{"compression": "snappy"}, {"use_dictionary": True}], ids=["compressed", "by dictionary"]
)
def test_a_file_that_may_be_larger_than_it_looks_is_not_read(
    store: RunStore, options: dict[str, object]
) -> None:
    _forged(store.run_dir / FILE)
    assert run_row(store).offered_hz == 99.0
    _forged(store.run_dir / FILE, **options)
    assert run_row(store).offered_hz is None


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_file_is_passed_over(store: RunStore, content: bytes) -> None:
    (store.run_dir / FILE).write_bytes(content)
    assert run_row(store) == make_row(store)


def test_links_and_pipes_are_not_followed(store: RunStore, tmp_path: Path) -> None:
    path = store.run_dir / FILE
    other = tmp_path / "other"
    path.rename(other)
    path.symlink_to(other)
    assert run_row(store).offered_hz is None
    path.unlink()
    os.mkfifo(path)
    assert run_row(store).offered_hz is None


def test_columns_are_those_of_the_class(store: RunStore) -> None:
    assert pq.read_schema(store.run_dir / FILE).names == list(RunRow.__dataclass_fields__)
    assert json.loads(pq.read_table(store.run_dir / FILE)["scenario"][0].as_py()) == store.manifest.scenario
