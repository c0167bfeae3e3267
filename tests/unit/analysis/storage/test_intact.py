"""A run directory that is not what squall writes is refused in one line, whatever of it is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.analysis.storage.intact import finite, require_intact
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import StoreError
from tests.planted_runs import START_NS, Planted, Shape, plant

DAY_NS = 24 * 3600 * 10**9
Spoil = Callable[[Path], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    shape = Shape(seed=3, n_requests=12, servers=("traced",), features=frozenset({"blocks", "streams"}))
    return plant(shape).write(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copy(whole: RunStore, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.run_dir, tmp_path / whole.run))


def part(run: Path, table: str) -> Path:
    return run / "tables" / table / "part-00000.parquet"


def rewritten(table: str, change: Callable[[pa.Table], pa.Table]) -> Spoil:
    def spoil(run: Path) -> None:
        pq.write_table(change(pq.read_table(part(run, table))), part(run, table))

    return spoil


def with_bytes(table: str, change: Callable[[bytes], bytes]) -> Spoil:
    def spoil(run: Path) -> None:
        path = part(run, table)
        path.write_bytes(change(path.read_bytes()))

    return spoil


def unsealed(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["tables"], manifest["verdict"]
    (run / "manifest.json").write_text(json.dumps({**manifest, "state": "open"}))


def with_manifest(**fields: Any) -> Spoil:
    def spoil(run: Path) -> None:
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps({**manifest, **fields}))

    return spoil


def phase(name: str, start_ns: int, end_ns: int) -> dict[str, Any]:
    return {"name": name, "kind": "measure", "start_ns": start_ns, "end_ns": end_ns}


def refusal(run: Path) -> str:
    with pytest.raises(StoreError) as refused:
        require_intact(RunStore.open(run))
    line = str(refused.value)
    assert "\n" not in line
    assert str(run) in line
    return line.replace(str(run), "RUN")


def test_a_whole_run_is_intact_sealed_or_not(copy: Path) -> None:
    require_intact(RunStore.open(copy))
    unsealed(copy)
    require_intact(RunStore.open(copy))


NO_PARQUET: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "footer of zeros": lambda content: content[:4] + bytes(len(content) - 12) + content[-8:],
    "foreign": lambda _: b"SQLite format 3\0" + bytes(4096),
}


@pytest.mark.parametrize("how", NO_PARQUET)
def test_a_part_that_is_no_parquet_file_is_named(copy: Path, how: str) -> None:
    unsealed(copy)  # a sealed run tells by the size alone
    with_bytes("kernels", NO_PARQUET[how])(copy)
    assert "RUN: cannot read tables/kernels/part-00000.parquet" in refusal(copy)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            rewritten("kernels", lambda rows: rows.drop_columns(["correlation_id"])),
            "has no column correlation_id",
        ),
        (
            rewritten("batches", lambda _: pa.table({"x": [1]})),
            "has no column run: it is not of table batches",
        ),
        (
            rewritten("requests", lambda rows: _replaced(rows, "sent_ns", pa.array(["x"] * rows.num_rows))),
            "column sent_ns is string, not int64",
        ),
        (
            rewritten("batches", lambda rows: _replaced(rows, "request_ids", rows["batch_id"])),
            "column request_ids is int64, not list",
        ),
    ],
)
def test_a_part_of_another_schema_is_named_with_its_column(copy: Path, spoil: Spoil, said: str) -> None:
    unsealed(copy)
    spoil(copy)
    assert said in refusal(copy)


def _replaced(rows: pa.Table, column: str, values: Any) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(column), column, values)


def test_text_that_stands_plain_is_no_fault(copy: Path) -> None:
    unsealed(copy)
    rewritten("requests", lambda rows: _replaced(rows, "outcome", rows["outcome"].cast(pa.string())))(copy)
    require_intact(RunStore.open(copy))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            rewritten("requests", lambda rows: rows.slice(1)),
            "requests/part-00000.parquet has changed since the seal",
        ),
        (rewritten("kernels", lambda rows: rows.slice(0, 0)), "kernels/part-00000.parquet has changed"),
        (lambda run: part(run, "batches").unlink(), "batches/part-00000.parquet is missing"),
        (
            lambda run: shutil.copy(
                part(run, "kernels"), part(run, "kernels").with_name("part-00001.parquet")
            ),
            "kernels/part-00001.parquet is not of this run",
        ),
        (with_manifest(tables=None), "tables is not a mapping"),
    ],
)
def test_what_changed_since_the_seal_is_not_taken_for_the_run(copy: Path, spoil: Spoil, said: str) -> None:
    spoil(copy)
    assert said in refusal(copy)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"phases": "x"}, "phases is not a list"),
        ({"phases": None}, "phases is not a list"),
        ({"phases": ["x"]}, "phases[0] is not a mapping"),
        ({"phases": [{"name": "a"}]}, "phases[0] has no kind"),
        ({"phases": [{"name": "a", "kind": "measure", "start_ns": 5.0, "end_ns": 6}]}, "phases[0].start_ns is not a"),
        ({"phases": [{"name": "a", "kind": "measure", "start_ns": 5, "end_ns": 4}]}, "phase a ends before it starts"),
        ({"phases": [phase("b", 7, 9), phase("a", 0, 8)]}, "phases a and b overlap"),
        ({"phases": [phase("a", 0, 1), phase("a", 2, 3)]}, "two phases are named a"),
        ({"nodes": ["node-0"]}, "nodes is not a mapping"),
        ({"nodes": {"node-0": None}}, "nodes[node-0] is not a mapping"),
        ({"nodes": {"node-0": {"clock_error_ns": "1"}}}, "nodes[node-0].clock_error_ns is not a whole number"),
        ({"servers": {"server-0": {}}}, "servers[server-0] has no node"),
        ({"servers": {"server-0": None}}, "servers[server-0] is not a mapping"),
        ({"plan": None}, "plan is not a mapping"),
        ({"scenario": []}, "scenario is not a mapping"),
        ({"verdict": None}, "verdict is not a mapping"),
        ({"workers": None}, "workers is not a list"),
        ({"profiled_phases": {"steady": None}}, "profiled_phases[steady] is not a mapping"),
        ({"start_ns": True}, "start_ns is not a whole number"),
    ],
)  # fmt: skip
def test_a_manifest_of_another_shape_says_where(copy: Path, fields: dict[str, Any], said: str) -> None:
    with_manifest(**fields)(copy)
    assert f"RUN has a manifest that squall did not write: {said}" in refusal(copy)


@pytest.mark.parametrize(
    "field",
    [
        "scenario",
        "plan",
        "phases",
        "nodes",
        "servers",
        "workers",
        "collectors",
        "profiled_phases",
        "start_ns",
    ],
)
def test_a_field_that_the_manifest_lacks_is_no_fault(copy: Path, field: str) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest[field]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    require_intact(RunStore.open(copy))


@pytest.mark.parametrize(
    ("table", "column", "t_ns"),
    [
        ("requests", "scheduled_ns", 0),
        ("requests", "done_ns", 2**63 - 1),
        ("requests", "sent_ns", -(2**63)),
        ("batches", "end_ns", 2**63 - 1),
        ("kernels", "start_ns", START_NS + 31 * DAY_NS),
        ("cuda_api", "end_ns", START_NS - 31 * DAY_NS),
    ],
)
def test_an_instant_far_from_the_run_is_named(tmp_path: Path, table: str, column: str, t_ns: int) -> None:
    run: Planted = plant(Shape(seed=3, n_requests=12, features=frozenset({"blocks"})))
    run.rows[table][-1][column] = t_ns
    line = refusal(run.write(tmp_path).run_dir)
    assert f"tables/{table}/part-00000.parquet has a {column} that is" in line
    assert "days from the start of the run" in line


def test_derived_tables_count_only_for_who_reads_them(copy: Path) -> None:
    (copy / "tables" / "joined").mkdir(exist_ok=True)
    part(copy, "joined").write_bytes(b"")
    require_intact(RunStore.open(copy))
    with pytest.raises(StoreError, match=r"cannot read tables/joined/part-00000\.parquet"):
        require_intact(RunStore.open(copy), derived_too=True)


def test_figures_that_are_no_number_are_none_and_said() -> None:
    nan, inf = float("nan"), float("inf")
    figures = {"a": 1.5, "b": [nan, 2, {"c": (inf, "x", None)}], "d": -inf, "e": True}
    found, where = finite(figures)
    assert found == {"a": 1.5, "b": [None, 2, {"c": [None, "x", None]}], "d": None, "e": True}
    assert where == ["b[0]", "b[2].c[0]", "d"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
