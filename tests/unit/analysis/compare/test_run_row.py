"""The row of a run: kept, read back as it was made, and not believed where it is of other tables or damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.analysis.compare.run_row import (
    FAILURES,
    FILE,
    Answers,
    RunRow,
    make_row,
    read_row,
    run_row,
    write_row,
)
from squall.analysis.storage.query import MEMORY_LIMIT_BYTES
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from tests.known import known
from tests.overhead_runs import LENGTH_NS, START_NS, table, write_run

SUMMARY = {
    "measure": {"load": {"intended": {"rate_hz": 12.5}}},
    "promises": [{"promise": "p(95)<50ms", "verdict": "kept"}],
}
DECIDED = {
    "verdict": "broken", "promise": "p(95)<50ms", "n": 1_000, "n_late": 51, "n_in_time": 100, "at_ns": 1, "phases": [],
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    made = write_run(tmp_path, n_failed=20, manifest={"seed": 3, "plan": {"load": "open", "sha256": "abc"}})
    write_row(made, SUMMARY, MEMORY_LIMIT_BYTES)
    return made


def test_it_is_read_back_as_it_was_made(store: RunStore) -> None:
    row = read_row(store.run_dir)
    assert row == make_row(store, SUMMARY)
    assert (row.status, row.seed, row.schedule, row.answers.sha256) == ("VALID", 3, "abc", None)
    assert (row.offered_hz, row.promises) == (12.5, {"p(95)<50ms": "kept"})
    assert row.figures["p50_ns"].value == row.quantiles_ns[49] == pytest.approx(15e6, rel=0.01)
    assert (row.figures[FAILURES].value, row.quantiles_ns[98]) == (0.02, None)
    level = known(row.level)
    assert (row.n, row.n_failed) == (level.n, level.n - level.n_ok)


def test_a_folder_of_runs_is_a_table_with_the_columns_of_the_class(store: RunStore) -> None:
    other = write_run(store.run_dir.parent)
    write_row(other, {}, MEMORY_LIMIT_BYTES)
    found = duckdb.sql(
        f"""SELECT name, figures['p50_ns'].value, level.n, promises['p(95)<50ms'], json_extract(scenario, '$')
        FROM read_parquet('{store.run_dir.parent}/*/run.parquet') ORDER BY name"""
    ).fetchall()
    assert {(name, kept) for name, _, _, kept, _ in found} == {(store.run, "kept"), (other.run, None)}
    written = pq.read_table(store.run_dir / FILE)
    assert written.column_names == list(RunRow.__dataclass_fields__)
    assert json.loads(written["scenario"][0].as_py()) == store.manifest.scenario


def test_what_the_manifest_says_is_read_of_it_alone_and_a_row_of_other_tables_is_made_again(
    store: RunStore,
) -> None:
    kept = RunStore.open(store.run_dir)
    kept._write_manifest(replace(kept.manifest, seed=9))
    assert (read_row(store.run_dir).seed, read_row(store.run_dir).offered_hz) == (9, 12.5)
    tables = dict(kept.manifest.tables or {})
    tables.popitem()
    kept._write_manifest(replace(kept.manifest, tables=tables))
    assert run_row(RunStore.open(store.run_dir)).offered_hz is None


def forged(path: Path, **options: object) -> None:
    found = pq.ParquetFile(path).read()
    found = found.set_column(found.schema.get_field_index("offered_hz"), "offered_hz", pa.array([99.0]))
    pq.write_table(found, path, **{"compression": "none", "use_dictionary": False, **options})


def linked(path: Path) -> None:
    path.symlink_to(path.rename(path.with_suffix(".other")))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "spoil",
    [
        # a file that may be larger than it looks
        lambda path: forged(path, compression="snappy"),
        lambda path: forged(path, use_dictionary=True),
        *(lambda path, text=text: path.write_bytes(text) for text in (b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1")),
        linked,
        piped,
    ],
)  # fmt: skip
def test_a_row_that_is_damaged_forged_or_elsewhere_is_made_again(
    store: RunStore, spoil: Callable[[Path], object]
) -> None:
    path = store.run_dir / FILE
    forged(path)
    assert run_row(store).offered_hz == 99.0
    spoil(path)
    assert run_row(store) == make_row(store)


@pytest.mark.parametrize(
    ("options", "is_valid", "why"),
    [
        ({"status": "INVALID"}, False, "INVALID; it was made so"),
        ({"manifest": {"decided": DECIDED}}, False, "ended early, once its promises were decided"),
    ],
    ids=str,
)
def test_a_run_that_does_not_count_says_why(
    tmp_path: Path, options: dict[str, Any], is_valid: bool, why: str
) -> None:
    run = read_row(write_run(tmp_path, **options).run_dir)
    assert (run.is_valid, run.has_verdict, run.why_left_out) == (is_valid, True, why)
    assert read_row(tmp_path / "none").problem.startswith("cannot be read")


def answers_of(parent: Path, response_bytes: int = 8, **warm_up: Any) -> Answers:
    """Of a run whose first request, with the changes `warm_up`, was to warm up."""
    kinds = {"warm": "warmup", "burst": "measure"}
    rows = write_run(parent / "rows", phases=[*kinds]).read("requests").to_pylist()
    rows = [{**row, "response_bytes": response_bytes} for row in rows]
    spans = [
        {"name": name, "kind": kind, "start_ns": START_NS + at * LENGTH_NS, "end_ns": START_NS + (at + 1) * LENGTH_NS}
        for at, (name, kind) in enumerate(kinds.items())
    ]  # fmt: skip
    store = write_run(parent, status=None, phases=[*kinds], omit=["requests"], manifest={"phases": spans})
    store.append("requests", table("requests", [{**rows[0], **warm_up}, *rows[1:]]))
    store.flush()
    store.seal(Verdict(status="VALID", reasons=()))
    return read_row(store.run_dir).answers


def test_a_failed_warm_up_request_is_no_other_answer(tmp_path: Path) -> None:
    whole = answers_of(tmp_path / "whole")
    assert whole.sha256 is not None
    assert answers_of(tmp_path / "failed", outcome="timeout") == whole
    assert answers_of(tmp_path / "other", 9) != whole
