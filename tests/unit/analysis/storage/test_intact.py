"""A run directory that is not what squall writes is refused in one line, whatever of it is wrong."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from squall.analysis.storage import intact
from squall.analysis.storage.beneath import new_file
from squall.analysis.storage.intact import content_errors_of, finite, require_intact
from squall.analysis.storage.parquet import rows_of
from squall.analysis.storage.part import OpenPart
from squall.analysis.storage.schema import TABLES, arrow_schema
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import StoreError
from tests.planted_runs import START_NS, Planted, Shape, plant

DAY_NS = 24 * 3600 * 10**9
Spoil = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    shape = Shape(seed=3, n_requests=12, servers=("traced",), features=frozenset({"blocks", "streams"}))
    return plant(shape).write(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def copy(whole: RunStore, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.run_dir, tmp_path / whole.run))


def part(run: Path, table: str) -> Path:
    return run / "tables" / table / "part-00000.parquet"


def content(change: Callable[[bytes], bytes]) -> Spoil:
    """Changes the bytes of a part."""

    def spoil(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return spoil


def rows(change: Callable[[pa.Table], pa.Table], **how: Any) -> Spoil:
    """Writes the rows of a part otherwise."""
    return lambda path: pq.write_table(change(pq.read_table(path)), path, **how)


def column(name: str, values: Callable[[pa.Table], Any], **how: Any) -> Spoil:
    """Writes a part with other values in a column."""
    return rows(
        lambda table: table.set_column(table.schema.get_field_index(name), name, values(table)), **how
    )


def long_text(n_bytes: int, is_plain: bool = False, **how: Any) -> Spoil:
    """Each row has the same detail, of `n_bytes`."""

    def words(table: pa.Table) -> pa.Array:
        texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), ["x" * n_bytes])
        return texts.cast(pa.string()) if is_plain else texts

    return column("detail", words, compression="zstd", **how)


def restated(run: Path, /, **fields: Any) -> RunStore:
    """The run with other fields in its manifest; None leaves one out."""
    path = run / "manifest.json"
    document = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
    return RunStore.open(run)


def unsealed(run: Path) -> RunStore:
    return restated(run, tables=None, verdict=None, state="open")


def phases(*spans: tuple[str, int, int]) -> dict[str, Any]:
    keys = ("name", "start_ns", "end_ns")
    return {"phases": [{"kind": "measure", **dict(zip(keys, span, strict=True))} for span in spans]}


def refusal(run: Path) -> str:
    with pytest.raises(StoreError) as refused:
        require_intact(RunStore.open(run))
    line = str(refused.value)
    assert "\n" not in line
    assert str(run) in line
    return line.replace(str(run), "RUN")


def test_a_whole_run_is_intact_sealed_or_not_and_so_is_one_whose_manifest_lacks_a_field(copy: Path) -> None:
    require_intact(restated(copy, notes=["x"] * 100_000))
    require_intact(unsealed(copy))
    manifest = json.loads((copy / "manifest.json").read_text())
    for field in manifest.keys() - {"run", "state", "schema_version"}:
        require_intact(restated(copy, **{**manifest, field: None}))


def told_again(path: Path) -> None:
    """The same file with a footer that tells its row groups twice."""
    content, groups = path.read_bytes(), pq.read_metadata(path)
    groups.append_row_groups(pq.read_metadata(path))
    groups.write_metadata_file(path)
    path.write_bytes(content + path.read_bytes()[4:])
    assert len(pq.read_table(path)) == 24


def varint(number: int) -> bytes:
    """A number in Thrift's compact protocol."""
    zigzag, found = 2 * number, bytearray()
    while zigzag > 127:
        found.append(zigzag % 128 + 128)
        zigzag //= 128
    return bytes([*found, zigzag])


def too_many_rows(path: Path) -> None:
    n = 1_100_000
    rows(lambda table: table.take(pa.array(np.zeros(n, np.int64))), row_group_size=n)(path)
    assert varint(n) in path.read_bytes()
    content(lambda found: found.replace(varint(n), varint(130_000_000)))(path)
    assert pq.read_metadata(path).num_rows == 130_000_000


NO_PARQUET = "RUN: cannot read tables/kernels/part-00000.parquet"
TOO_LONG = "has a detail of 8,388,608 bytes: no text of a run is that long"
DIFFERENCES: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"detail": "DELTA_BYTE_ARRAY"}}


@pytest.mark.parametrize(
    ("table", "spoil", "said"),
    [
        ("kernels", content(lambda found: found[: len(found) // 2]), NO_PARQUET),
        ("kernels", content(lambda _: b""), NO_PARQUET),
        ("kernels", content(lambda found: found[:4] + bytes(len(found) - 12) + found[-8:]), NO_PARQUET),
        ("kernels", content(lambda _: b"SQLite format 3\0" + bytes(4096)), NO_PARQUET),
        ("kernels", rows(lambda table: table.drop_columns(["correlation_id"])), "has no column correlation_id"),
        ("batches", rows(lambda _: pa.table({"x": [1]})), "has no column run: it is not of table batches"),
        ("requests", column("sent_ns", lambda table: table["outcome"]), "column sent_ns is string, not int64"),
        ("batches", column("request_ids", lambda table: table["batch_id"]), "column request_ids is int64, not list"),
        ("requests", rows(lambda table: table, write_statistics=False), "part-00000.parquet has no statistics of "),
        ("requests", long_text(8_388_608), TOO_LONG),
        ("requests", long_text(8_388_608, store_schema=False), TOO_LONG),
        ("requests", long_text(100, True, **DIFFERENCES), "the text of detail is encoded as squall encodes none"),
        ("requests", told_again, "requests/part-00000.parquet states rows that it has not"),
        ("requests", too_many_rows, "requests states 130,000,000 rows in "),
    ],
)  # fmt: skip
def test_a_part_that_squall_did_not_write_is_named(copy: Path, table: str, spoil: Spoil, said: str) -> None:
    unsealed(copy)  # a sealed run tells by the size alone
    spoil(part(copy, table))
    assert said in refusal(copy)


@pytest.mark.parametrize(
    "spoil",
    [
        column("outcome", lambda table: table["outcome"].cast(pa.string())),
        long_text(65_536),
        long_text(65_536, store_schema=False),
    ],
    ids=["plain", "as long as any", "as long as any, plain"],
)
def test_a_text_may_stand_plain_and_be_long(copy: Path, spoil: Spoil) -> None:
    store = unsealed(copy)
    before = store.read("requests", ["outcome"]).to_pylist()
    spoil(part(copy, "requests"))
    require_intact(store)
    assert store.read("requests", ["outcome"]).to_pylist() == before
    assert store.read("requests", ["outcome"], pc.field("outcome") == "none of these").num_rows == 0


def test_a_text_of_many_rows_is_held_once(tmp_path: Path) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200, np.int32)), ["x" * 1_000_000])
    pq.write_table(pa.table({"text": words, "n": range(200)}), tmp_path / "part", store_schema=False)
    for keeps in (None, pc.field("n") >= 0):
        rows = rows_of(tmp_path / "part", keeps=keeps)
        assert rows.num_rows == 200
        assert rows.nbytes < 10_000_000


def test_more_text_than_the_bytes_can_hold_is_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As plain values, 12 of 1 MB, which compress to nothing."""
    monkeypatch.setattr(intact, "FEW_TEXT_BYTES", 1_000_000)
    unsealed(copy)
    long_text(1_000_000, True, use_dictionary=False)(part(copy, "requests"))
    assert re.search(r" has 12,[0-9,]+ bytes of text in [0-9,]+ bytes, which squall does not", refusal(copy))


@pytest.mark.parametrize(
    ("table", "spoil", "said"),
    [
        ("requests", rows(lambda table: table.slice(1)), "part-00000.parquet has changed since the seal"),
        ("batches", Path.unlink, "part-00000.parquet is missing"),
        ("kernels", lambda path: shutil.copy(path, path.with_name("part-1.parquet")), "part-1.parquet is not in the"),
    ],
)  # fmt: skip
def test_what_changed_since_the_seal_is_not_taken_for_the_run(
    copy: Path, table: str, spoil: Spoil, said: str
) -> None:
    spoil(part(copy, table))
    assert f"tables/{table}/{said}" in refusal(copy)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (phases(("a", 5, 4)), "phase a ends before it starts"),
        (phases(("b", 7, 9), ("a", 0, 8)), "phases a and b overlap"),
        (phases(("a", 0, 1), ("a", 2, 3)), "two phases are named a"),
        ({"notes": ["x"] * 100_001}, "notes has 100,001 entries, and 100,000 at most are read"),
        ({"losses": ["x"] * 100_001}, "losses has 100,001 entries, and 100,000 at most are read"),
    ],
)
def test_a_manifest_that_cannot_be_says_where(copy: Path, fields: dict[str, Any], said: str) -> None:
    restated(copy, **fields)
    assert f"RUN has a manifest that squall did not write: {said}" in refusal(copy)


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


@pytest.mark.parametrize("table", ["requests", "clock_probes"])
def test_a_table_of_equal_rows_and_steps_is_less_dense_than_is_refused(tmp_path: Path, table: str) -> None:
    rows = steady(table, 50_000)
    whole = OpenPart(tmp_path / "part.parquet", table, new_file)
    for _ in range(4):
        whole.write(rows)
    whole.close()
    assert 200_000 / (tmp_path / "part.parquet").stat().st_size < 24


def steady(table: str, n: int) -> pa.Table:
    """Rows that are as small as any: all texts alike, all instants in equal steps."""

    def column(field: pa.Field) -> pa.Array:
        if field.name in TABLES[table].instants:
            return pa.array(START_NS + np.arange(n) * 10**6, field.type)
        value = "x" if pa.types.is_dictionary(field.type) else 0
        return pa.array(np.full(n, value)).cast(field.type)

    schema = arrow_schema(table)
    return pa.table([column(field) for field in schema], schema=schema)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"), TypeError("no\nlist"), ZeroDivisionError("by 0"), RecursionError("deep"), AttributeError("get"),
        pa.ArrowInvalid("bad"), OverflowError("large"), MemoryError(),
    ],
)  # fmt: skip
def test_what_the_content_of_a_run_raises_is_one_line(error: Exception) -> None:
    with pytest.raises(StoreError) as told, content_errors_of("RUN"):
        raise error
    line = str(told.value)
    assert line.startswith(f"RUN has something in it that squall did not write: {type(error).__name__}")
    assert "\n" not in line


def test_an_interruption_and_errors_of_ours_pass() -> None:
    for kind in (KeyboardInterrupt, StoreError, OSError):
        with pytest.raises(kind), content_errors_of("RUN"):
            raise kind("as it is")
