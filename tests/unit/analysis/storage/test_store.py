"""A run directory: rows go in, closed parts stay whatever fails, the seal states all, derived tables change at once."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.schema import TABLES, arrow_schema
from squall.analysis.storage import store as store_module
from squall.analysis.storage.beneath import new_file
from squall.analysis.storage.part import NewParts, conform
from squall.analysis.storage.store import RESERVE_BYTES, RunStore
from squall.analysis.tables.manifest import OWN_FIELDS, Manifest
from squall.analysis.tables.sealed import Unfinished, Verdict
from squall.scenarios.errors import AnalysisError, MissingTable, SchemaMismatch, Sealed, StoreError
from tests.many_examples import examples

NOW_NS = 1_795_250_252_713_561_538
VALID = Verdict(status="VALID")
ABORTED = Verdict(status="ABORTED", reasons=("a reason",))


def rows(values: list[int], name: str = "poll", table: str = "osrt") -> pa.Table:
    """Rows whose every number is the value, and every text the name."""
    texts = pa.array([name] * len(values), pa.string())
    return pa.table(
        {
            field.name: texts if pa.types.is_dictionary(field.type) else pa.array(values).cast(field.type)
            for field in arrow_schema(table)
        }
    )


WINDOWS = rows([1, 2, 3, 4], table="windows")


def create(tmp_path: Path, **options: Any) -> RunStore:
    return RunStore.create(tmp_path / "runs", "demo", NOW_NS, Manifest(seed=7), **options)


def starts(store: RunStore, table: str = "osrt") -> list[int]:
    found: list[int] = store.read(table).column("start_ns" if table == "osrt" else "t_ns").to_pylist()
    return found


def n_stated(store: RunStore, table: str) -> int:
    stated = RunStore.open(store.run_dir).manifest.tables
    assert stated is not None
    return stated[table].rows


def leftovers(store: RunStore) -> list[str]:
    passing = (*store.run_dir.glob(".new*"), *store.run_dir.glob(".old*"), *store.run_dir.rglob("*.open"))
    return [path.name for path in passing]


class FullDisk:
    """Opens files that take `room_bytes` in all and then refuse, as a full disk does.

    Counts and refuses only files whose name ends with `only`.
    """

    def __init__(self, room_bytes: int, only: str = "") -> None:
        self.room_bytes = room_bytes
        self.only = only

    def __call__(self, path: Path) -> BinaryIO:
        disk = self
        if not path.name.endswith(self.only):
            return new_file(path)

        class Limited(RawIOBase):
            def __init__(self) -> None:
                self._file = new_file(path)

            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                if len(data) > disk.room_bytes:
                    raise OSError(errno.ENOSPC, "No space left on device")
                disk.room_bytes -= len(data)
                return self._file.write(data)

            def flush(self) -> None:
                if not self._file.closed:
                    self._file.flush()

            def fileno(self) -> int:
                return self._file.fileno()

            def close(self) -> None:
                super().close()
                self._file.close()

        return cast(BinaryIO, Limited())


def test_a_run_directory_is_named_after_scenario_and_utc_and_holds_a_reserve_until_the_seal(
    tmp_path: Path,
) -> None:
    stores = [create(tmp_path) for _ in range(20)]
    store = stores[0]
    assert len({one.run_dir for one in stores}) == 20
    assert store.run.startswith("demo-20261121T083732Z-")
    assert len(store.run) == len("demo-20261121T083732Z-") + 4
    manifest = json.loads((store.run_dir / "manifest.json").read_text())
    assert (manifest["state"], manifest["run"], manifest["seed"]) == ("open", store.run, 7)
    reserve = store.run_dir / ".reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    store.seal(VALID)
    assert not reserve.exists()


@pytest.mark.parametrize(
    ("parent", "name", "room_bytes", "words"),
    [
        ("file", "demo", 10**9, r"cannot create the run directory .*file: (file exists|not a dir)"),
        ("runs", "demo", 1000, "no space left on device"),
        *(
            ("runs", name, 10**9, "cannot create a run named")
            for name in ("", "../up", "a/b", ".hidden", "a b")
        ),
    ],
)
def test_what_cannot_be_made_is_one_line(
    tmp_path: Path, parent: str, name: str, room_bytes: int, words: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=words):
        RunStore.create(tmp_path / parent, name, NOW_NS, Manifest(), FullDisk(room_bytes))


@examples(30)
@given(parts=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), min_size=1, max_size=5))
def test_what_is_appended_is_read_back_in_order_over_parts(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    store = create(tmp_path_factory.mktemp("store"))
    tables = [conform("osrt", rows(part, name=f"call-{number}")) for number, part in enumerate(parts)]
    for number, table in enumerate(tables):
        store.append("osrt", table)
        if number % 2:
            store.flush("osrt")
    store.seal(VALID)
    again = RunStore.open(store.run_dir)
    assert again.read("osrt").to_pylist() == pa.concat_tables(tables).to_pylist()
    assert again.read("osrt").schema.equals(arrow_schema("osrt"))
    assert n_stated(again, "osrt") == sum(map(len, parts))
    assert again.verify() == []


def test_a_part_is_readable_once_it_is_closed_by_a_flush_or_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PART_ROWS", 3)
    store = create(tmp_path)
    store.append("osrt", conform("osrt", rows([1, 2])).to_batches()[0])
    assert not store.has("osrt")
    with pytest.raises(MissingTable, match="osrt"):
        store.read("osrt")
    store.append("osrt", rows([3]))
    assert (store.has("osrt"), store.tables()) == (True, ["osrt"])
    store.append("osrt", rows([4]))
    store.flush()
    assert [part.name for part in store.parts("osrt")] == ["part-00000.parquet", "part-00001.parquet"]
    assert store.read("osrt", ["end_ns", "name"]).to_pydict() == {
        "end_ns": [1, 2, 3, 4],
        "name": ["poll"] * 4,
    }


def test_a_column_without_any_value_takes_the_type_of_the_schema() -> None:
    schema = arrow_schema("windows")
    found = conform(
        "windows", pa.table([pa.nulls(4) if f.nullable else WINDOWS[f.name] for f in schema], schema.names)
    )
    assert found.schema.equals(schema)
    assert {found[field.name].null_count for field in schema if field.nullable} == {4}
    for table in TABLES:
        names = arrow_schema(table).names
        assert conform(table, pa.table([pa.nulls(0)] * len(names), names)).schema.equals(arrow_schema(table))


def test_a_sealed_run_takes_nothing_more(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.seal(VALID)
    writes: tuple[Callable[[], object], ...] = (
        lambda: store.append("osrt", rows([1])),
        lambda: store.amend(replace(store.manifest, seed=1)),
        lambda: store.seal(VALID),
    )
    for refused in writes:
        with pytest.raises(Sealed):
            refused()
    assert RunStore.open(store.run_dir).is_sealed


def test_a_changed_a_missing_and_an_added_file_show_in_verify(tmp_path: Path) -> None:
    store = create(tmp_path)
    for _ in range(2):
        store.append("osrt", rows([1]))
        store.flush()
    store.seal(VALID)
    first, second = store.parts("osrt")
    first.write_bytes(bytes(first.stat().st_size))
    second.rename(second.with_name("part-00009.parquet"))
    name = "tables/osrt/part-0000"
    assert sorted(store.verify()) == [
        f"{name}0.parquet has changed since the seal",
        f"{name}1.parquet is missing",
        f"{name}9.parquet is not in the manifest",
    ]


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        ("osrt", lambda t: t.drop_columns(["name"]), "column 9 is nothing, not name"),
        ("osrt", lambda t: t.rename_columns([*t.column_names[:-1], "nam"]), "column 9 is nam, not name"),
        ("osrt", lambda t: t.append_column("more", t.column(0)), "column 10 is more, not nothing"),
        (
            "osrt",
            lambda t: t.set_column(7, "start_ns", t["start_ns"].cast(pa.float64())),
            "start_ns is double",
        ),
        (
            "osrt",
            lambda t: t.set_column(7, "start_ns", pa.array([None], pa.int64())),
            "start_ns holds 1 nulls",
        ),
        ("latencies", lambda t: t, "no table 'latencies'"),
    ],
)
def test_a_batch_of_other_columns_is_refused_by_the_first_that_differs(
    tmp_path: Path, table: str, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    with pytest.raises(SchemaMismatch, match=words):
        create(tmp_path).append(table, change(rows([1])))


def test_a_full_disk_costs_the_open_part_and_no_closed_one(tmp_path: Path) -> None:
    disk = FullDisk(room_bytes=10**9)
    store = create(tmp_path, file_opener=disk)
    store.append("osrt", rows([1, 2]))
    store.flush("osrt")
    store.append("osrt", rows([3]))
    disk.room_bytes = 0
    with pytest.raises(StoreError, match="osrt: at least 1 rows were lost: no space left on device"):
        store.flush("osrt")
    assert (starts(store), leftovers(store)) == ([1, 2], [])
    with pytest.raises(StoreError, match="no space left on device"):
        store.append("osrt", rows(list(range(100_000))))
    disk.room_bytes = 10**9
    store.append("osrt", rows([5]))
    store.flush()
    disk.room_bytes = 64 * 1024  # the seal frees the reserve
    store.seal(VALID)
    manifest = RunStore.open(store.run_dir).manifest
    assert manifest.status == "INVALID"
    assert manifest.losses == manifest.reasons
    assert "no space left on device" in manifest.losses[0]
    assert (starts(store), n_stated(store, "osrt")) == ([1, 2, 5], 3)


@pytest.mark.parametrize("verdict", [VALID, ABORTED])
def test_a_seal_drops_a_part_that_cannot_be_closed_and_is_not_valid(tmp_path: Path, verdict: Verdict) -> None:
    disk = FullDisk(room_bytes=10**9, only=".open")
    store = create(tmp_path, file_opener=disk)
    store.append("osrt", rows([1]))
    store.append("nvtx", rows([1], table="nvtx"))
    disk.room_bytes = 0
    store.seal(verdict)
    assert [loss.split(":")[0] for loss in store.manifest.losses] == ["osrt", "nvtx"]
    assert store.tables() == []
    lost = Verdict(status="INVALID", reasons=store.manifest.losses)
    assert store.manifest.verdict == (lost if verdict is VALID else ABORTED)


def test_a_manifest_that_cannot_be_written_leaves_the_run_open_for_another_try(tmp_path: Path) -> None:
    disk = FullDisk(room_bytes=10**9)
    store = create(tmp_path, file_opener=disk)
    store.write_text("summary.json", "old")
    disk.room_bytes = 1
    with pytest.raises(StoreError, match=r"summary\.json"):
        store.write_text("summary.json", "new and longer")
    assert store.read_text("summary.json") == "old"
    with pytest.raises(StoreError, match=r"manifest\.json: no space left on device"):
        store.seal(VALID)
    assert not store.is_sealed
    assert RunStore.open(store.run_dir).manifest.state == "open"
    assert not list(store.run_dir.glob("*.new"))
    disk.room_bytes = 10**6
    store.seal(VALID)
    assert RunStore.open(store.run_dir).is_sealed


def test_a_part_that_a_dead_process_left_is_never_read_and_goes_at_the_seal(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.append("osrt", rows([1]))  # and the process dies
    again = RunStore.open(store.run_dir)
    assert not again.has("osrt")
    again.seal(ABORTED)
    assert not leftovers(again)
    store._parts["osrt"].drop()


@pytest.mark.parametrize("name", [".resumed-..", ".resumed-osrt", ".done-x"])
def test_a_folder_that_squall_did_not_put_aside_is_left_alone(tmp_path: Path, name: str) -> None:
    store = create(tmp_path)
    store.append("osrt", rows([1, 2]))
    store.flush()
    (store.run_dir / name).mkdir()
    for path in (store.run_dir / name / "x", store.run_dir / "logs" / "server-0.log"):
        path.write_text("as it was")
    before = {path for path in store.run_dir.rglob("*") if path.name != ".reserve"}
    again = RunStore.open(store.run_dir)
    again.reopen(["osrt"], lambda _, rows: rows)
    again.seal(ABORTED)
    assert {path for path in store.run_dir.rglob("*") if path.name != ".reserve"} == before
    assert starts(again) == [1, 2]


def test_parts_written_in_any_order_take_the_place_of_the_old_ones_together(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.replace_derived("windows", WINDOWS)
    assert starts(store, "windows") == [1, 2, 3, 4]
    store.seal(VALID)
    with store.replacing("windows") as new:
        elsewhere: NewParts = pickle.loads(pickle.dumps(new))  # another process of the same run directory
        assert [elsewhere.write(number, WINDOWS.slice(number, 1)) for number in (2, 0, 1)] == [1, 1, 1]
        assert starts(store, "windows") == [1, 2, 3, 4]  # until the block ends the old one is read
    assert (starts(store, "windows"), n_stated(store, "windows")) == ([1, 2, 3], 3)
    assert (RunStore.open(store.run_dir).verify(), leftovers(store)) == ([], [])
    reader = pa.RecordBatchReader.from_batches(WINDOWS.schema, WINDOWS.slice(0, 2).to_batches())
    assert store.replace_derived("windows", reader) == 2
    assert n_stated(store, "windows") == 2
    with store.replacing("windows"):
        pass
    assert (store.has("windows"), starts(store, "windows")) == (True, []), "empty, not absent"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, AnalysisError, SchemaMismatch, StoreError])
def test_a_failure_between_parts_leaves_the_old_table_whole(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    disk = FullDisk(10**9, only="part-00001.parquet.open")
    store = create(tmp_path, file_opener=disk)
    store.replace_derived("windows", WINDOWS)
    store.seal(VALID)

    def failing() -> None:
        with store.replacing("windows") as new:
            new.write(0, WINDOWS.slice(0, 1))
            disk.room_bytes = 100
            if failure is SchemaMismatch:
                new.write(2, WINDOWS.drop_columns(["t_ns"]))
            if failure is StoreError:
                new.write(1, WINDOWS)
            raise failure

    with pytest.raises(failure, match="no space left" if failure is StoreError else None):
        failing()
    assert (starts(store, "windows"), store.verify(), leftovers(store)) == ([1, 2, 3, 4], [], [])


@pytest.mark.parametrize("at_rename", [1, 2])
def test_an_interrupt_while_the_tables_change_places_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_rename: int
) -> None:
    store = create(tmp_path)
    store.replace_derived("windows", WINDOWS)
    rename, n_renames = Path.rename, 0

    def interrupted(path: Path, target: Path) -> Path:
        nonlocal n_renames
        n_renames += 1
        done = rename(path, target)
        if n_renames == at_rename:
            raise KeyboardInterrupt
        return done

    def replace() -> None:
        with store.replacing("windows") as new:
            new.write(0, WINDOWS.slice(0, 1))
            monkeypatch.setattr(Path, "rename", interrupted)

    with pytest.raises(KeyboardInterrupt):
        replace()
    monkeypatch.undo()
    assert starts(RunStore.open(store.run_dir), "windows") == ([1, 2, 3, 4] if at_rename == 1 else [1])
    assert leftovers(store) == []


def test_a_process_killed_between_the_renames_leaves_the_old_table_readable(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.replace_derived("windows", WINDOWS)
    (store.run_dir / "tables" / "windows").rename(store.run_dir / ".old-windows")
    (store.run_dir / ".new-windows").mkdir()  # whole, but the process was killed before it got its name
    again = RunStore.open(store.run_dir)
    assert starts(again, "windows") == [1, 2, 3, 4]
    assert again.replace_derived("windows", WINDOWS.slice(0, 2)) == 2
    assert (starts(again, "windows"), leftovers(again)) == ([1, 2], [])


def test_raw_tables_are_never_rewritten_and_derived_ones_never_appended(tmp_path: Path) -> None:
    store = create(tmp_path)
    with pytest.raises(StoreError, match="raw tables are never rewritten"):
        store.replace_derived("osrt", rows([1]))
    with pytest.raises(StoreError, match="derived"):
        store.append("windows", rows([1]))


OWN: dict[str, Any] = {
    "run": "x", "state": "sealed", "tables": {}, "verdict": VALID, "schema_version": 4, "disk_losses": ("x",),
    "unfinished": Unfinished(),
}  # fmt: skip


@pytest.mark.parametrize("field", OWN_FIELDS)
def test_the_stores_own_manifest_fields_cannot_be_set(tmp_path: Path, field: str) -> None:
    store = create(tmp_path)
    with pytest.raises(StoreError, match=field):
        store.amend(replace(store.manifest, **{field: OWN[field]}))
    with pytest.raises(StoreError, match=field):
        RunStore.create(tmp_path, "other", NOW_NS, replace(Manifest(), **{field: OWN[field]}))


def test_an_amended_manifest_is_on_disk_at_once_with_keys_that_this_version_does_not_know(
    tmp_path: Path,
) -> None:
    path = create(tmp_path).run_dir / "manifest.json"
    told = {"nodes": {"node-0": {"n_cores": 8, "colour": "red"}}, "weather": ["mild"]}
    path.write_text(json.dumps({**json.loads(path.read_text()), **told}))
    store = RunStore.open(path.parent)
    store.amend(replace(store.manifest, start_ns=5))
    document = json.loads(path.read_text())
    assert document["start_ns"] == 5
    assert {name: document[name] for name in told} == told


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (None, "no such file or directory"),
        ("{", "is not JSON"),
        ("[]", "states no run and state"),
        (
            '{"run": "x", "state": "open", "schema_version": 0}',
            "schema version 0; this squall reads version 5: analyze it with the squall that wrote it, or run again",
        ),
        (
            '{"run": "x", "state": "sealed", "schema_version": 99}',
            "schema version 99; this squall reads version 5",
        ),
    ],
)
def test_what_is_no_run_directory_is_refused_in_one_line(
    tmp_path: Path, manifest: str | None, words: str
) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(StoreError, match=words) as caught:
        RunStore.open(tmp_path)
    assert "\n" not in str(caught.value)
