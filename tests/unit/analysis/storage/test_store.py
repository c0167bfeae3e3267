from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.analysis.schema import arrow_schema
from squall.analysis.storage import store as store_module
from squall.analysis.storage.beneath import new_file
from squall.analysis.storage.part import NewParts, conform
from squall.analysis.storage.store import RESERVE_BYTES, RunStore
from squall.analysis.tables.manifest import OWN_FIELDS, Manifest
from squall.analysis.tables.sealed import SealedTable, Unfinished, Verdict
from squall.scenarios.errors import AnalysisError, MissingTable, SchemaMismatch, Sealed, StoreError

NOW_NS = 1_795_250_252_713_561_538


def sealed(manifest: Manifest) -> Mapping[str, SealedTable]:
    assert manifest.tables is not None
    return manifest.tables


VALID = Verdict(status="VALID")
ABORTED = Verdict(status="ABORTED", reasons=("a reason",))


def osrt(starts_ns: list[int], name: str = "poll") -> pa.Table:
    n = len(starts_ns)
    columns = {
        field.name: [name] * n if pa.types.is_dictionary(field.type) else starts_ns
        for field in arrow_schema("osrt")
    }
    return pa.table(columns)


def create(tmp_path: Path, **options: Any) -> RunStore:
    return RunStore.create(tmp_path / "runs", "demo", NOW_NS, Manifest(seed=7), **options)


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


def test_a_run_directory_is_named_after_scenario_and_utc_and_starts_open(tmp_path: Path) -> None:
    store = create(tmp_path)
    assert store.run.startswith("demo-20261121T083732Z-")
    assert len(store.run) == len("demo-20261121T083732Z-") + 4
    manifest = json.loads((store.run_dir / "manifest.json").read_text())
    assert (manifest["state"], manifest["run"], manifest["seed"]) == ("open", store.run, 7)


def test_two_runs_of_one_second_get_directories_of_their_own(tmp_path: Path) -> None:
    assert len({create(tmp_path).run_dir for _ in range(20)}) == 20


def test_the_reserve_holds_real_bytes_until_the_seal(tmp_path: Path) -> None:
    store = create(tmp_path)
    reserve = store.run_dir / ".reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    store.seal(VALID)
    assert not reserve.exists()


@settings(max_examples=30)
@given(parts=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), min_size=1, max_size=5))
def test_what_is_appended_is_read_back_in_order_over_parts(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    store = create(tmp_path_factory.mktemp("store"))
    for number, part in enumerate(parts):
        store.append("osrt", osrt(part, name=f"call-{number}"))
        if number % 2:
            store.flush("osrt")
    store.seal(VALID)
    again = RunStore.open(store.run_dir)
    expected = pa.concat_tables([conform("osrt", osrt(p, f"call-{i}")) for i, p in enumerate(parts)])
    assert again.read("osrt").to_pylist() == expected.to_pylist()
    assert again.read("osrt").schema.equals(arrow_schema("osrt"))
    assert sealed(again.manifest)["osrt"].rows == sum(map(len, parts))
    assert again.verify() == []


def test_columns_can_be_read_alone(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.append("osrt", osrt([3, 4]))
    store.flush()
    assert store.read("osrt", ["end_ns", "name"]).to_pydict() == {"end_ns": [3, 4], "name": ["poll", "poll"]}


def test_a_record_batch_is_taken_like_a_table(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.append("osrt", conform("osrt", osrt([3, 4])).to_batches()[0])
    store.flush()
    assert store.read("osrt").num_rows == 2


def test_an_open_part_is_not_readable_and_a_closed_one_is(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.append("osrt", osrt([1]))
    assert not store.has("osrt")
    with pytest.raises(MissingTable, match="osrt"):
        store.read("osrt")
    store.flush("osrt")
    assert (store.has("osrt"), store.tables()) == (True, ["osrt"])


def test_a_part_is_closed_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PART_ROWS", 3)
    store = create(tmp_path)
    for start in range(4):
        store.append("osrt", osrt([start, start]))
    assert [part.name for part in store.parts("osrt")] == ["part-00000.parquet", "part-00001.parquet"]
    assert store.read("osrt").num_rows == 8


def test_a_sealed_run_takes_nothing_more(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.seal(VALID)
    writes: tuple[Callable[[], object], ...] = (
        lambda: store.append("osrt", osrt([1])),
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
        store.append("osrt", osrt([1]))
        store.flush()
    store.seal(VALID)
    first, second = store.parts("osrt")
    first.write_bytes(first.read_bytes() + b" ")
    second.rename(second.with_name("part-00009.parquet"))
    name = "tables/osrt/part-0000"
    assert sorted(store.verify()) == [
        f"{name}0.parquet has changed since the seal",
        f"{name}1.parquet is missing",
        f"{name}9.parquet is not in the manifest",
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop_columns(["name"]), "column 9 is nothing, not name"),
        (lambda t: t.rename_columns([*t.column_names[:-1], "nam"]), "column 9 is nam, not name"),
        (lambda t: t.append_column("more", t.column(0)), "column 10 is more, not nothing"),
        (lambda t: t.set_column(7, "start_ns", t["start_ns"].cast(pa.float64())), "start_ns is double"),
        (lambda t: t.set_column(7, "start_ns", pa.array([None], pa.int64())), "start_ns holds 1 nulls"),
    ],
)
def test_a_batch_of_other_columns_is_refused_by_the_first_that_differs(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    store = create(tmp_path)
    with pytest.raises(SchemaMismatch, match=words):
        store.append("osrt", change(osrt([1])))


def test_a_table_that_the_schema_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="no table 'latencies'"):
        create(tmp_path).append("latencies", osrt([1]))


def test_a_full_disk_costs_the_open_part_and_no_closed_one(tmp_path: Path) -> None:
    disk = FullDisk(room_bytes=10**9)
    store = create(tmp_path, file_opener=disk)
    store.append("osrt", osrt([1, 2]))
    store.flush("osrt")
    store.append("osrt", osrt([3]))
    disk.room_bytes = 0
    with pytest.raises(StoreError, match="osrt: at least 1 rows were lost: no space left on device"):
        store.flush("osrt")
    assert store.read("osrt")["start_ns"].to_pylist() == [1, 2]
    assert not list(store.run_dir.glob("tables/*/*.open"))

    disk.room_bytes = 64 * 1024  # the seal frees the reserve
    store.seal(VALID)
    manifest = RunStore.open(store.run_dir).manifest
    assert manifest.status == "INVALID"
    assert manifest.losses == manifest.reasons
    assert "no space left on device" in manifest.losses[0]
    assert sealed(manifest)["osrt"].rows == 2


def test_a_disk_that_fills_while_rows_are_appended_raises_and_the_store_goes_on(tmp_path: Path) -> None:
    disk = FullDisk(room_bytes=10**9)
    store = create(tmp_path, file_opener=disk)
    disk.room_bytes = 0
    with pytest.raises(StoreError, match="no space left on device"):
        store.append("osrt", osrt(list(range(100_000))))
    disk.room_bytes = 10**9
    store.append("osrt", osrt([5]))
    store.seal(VALID)
    assert store.read("osrt")["start_ns"].to_pylist() == [5]


def test_a_seal_drops_a_part_that_cannot_be_closed_and_is_invalid(tmp_path: Path) -> None:
    disk = FullDisk(room_bytes=10**9, only=".open")
    store = create(tmp_path, file_opener=disk)
    store.append("osrt", osrt([1]))
    store.append("nvtx", nvtx_rows())
    disk.room_bytes = 0
    store.seal(Verdict(status="VALID"))
    assert store.manifest.status == "INVALID"
    assert [loss.split(":")[0] for loss in store.manifest.losses] == ["osrt", "nvtx"]
    assert store.tables() == []


def test_a_loss_adds_no_reason_to_a_verdict_that_was_not_valid(tmp_path: Path) -> None:
    disk = FullDisk(room_bytes=10**9, only=".open")
    store = create(tmp_path, file_opener=disk)
    store.append("osrt", osrt([1]))
    disk.room_bytes = 0
    store.seal(ABORTED)
    assert store.manifest.verdict == ABORTED


def nvtx_rows() -> pa.Table:
    columns = {
        field.name: ["a"] if pa.types.is_dictionary(field.type) else [1] for field in arrow_schema("nvtx")
    }
    return pa.table(columns)


def test_a_manifest_that_cannot_be_written_leaves_the_run_open_for_another_try(tmp_path: Path) -> None:
    disk = FullDisk(room_bytes=10**9)
    store = create(tmp_path, file_opener=disk)
    disk.room_bytes = 0
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
    store.append("osrt", osrt([1]))  # and the process dies
    again = RunStore.open(store.run_dir)
    assert not again.has("osrt")
    again.seal(ABORTED)
    assert not list(again.run_dir.glob("tables/*/*.open"))
    store._parts["osrt"].drop()


@pytest.mark.parametrize(
    "name", [".resumed-..", ".resumed-.", ".resumed-", ".resumed-x", ".done-..", ".done-x"]
)
def test_a_folder_put_aside_that_names_no_table_is_left_alone(tmp_path: Path, name: str) -> None:
    store = create(tmp_path)
    store.append("osrt", osrt([1, 2]))
    store.flush()
    (store.run_dir / name).mkdir()
    for path in (store.run_dir / name / "x", store.run_dir / "logs" / "server-0.log"):
        path.write_text("as it was")
    before = {path for path in store.run_dir.rglob("*") if path.name != ".reserve"}
    again = RunStore.open(store.run_dir)
    again.reopen(["osrt"], lambda _, rows: rows)
    again.seal(ABORTED)
    assert {path for path in store.run_dir.rglob("*") if path.name != ".reserve"} == before
    assert again.read("osrt", ["start_ns"]).to_pydict() == {"start_ns": [1, 2]}


def test_derived_tables_are_replaced_before_and_after_the_seal(whole_run: RunStore, tmp_path: Path) -> None:
    windows = whole_run.read("windows")
    store = create(tmp_path)
    store.replace_derived("windows", windows)
    assert store.read("windows").num_rows == windows.num_rows
    store.seal(VALID)
    reader = pa.RecordBatchReader.from_batches(windows.schema, windows.slice(0, 3).to_batches())
    assert store.replace_derived("windows", reader) == 3
    again = RunStore.open(store.run_dir)
    assert sealed(again.manifest)["windows"].rows == 3
    assert again.verify() == []


def test_a_derived_table_that_fails_midway_leaves_the_old_one(whole_run: RunStore, tmp_path: Path) -> None:
    windows = whole_run.read("windows")
    store = create(tmp_path)
    store.replace_derived("windows", windows)
    with pytest.raises(SchemaMismatch):
        store.replace_derived("windows", windows.drop_columns(["t_ns"]))
    assert store.read("windows").num_rows == windows.num_rows
    assert not list(store.run_dir.glob("tables/*/*.open"))


def test_parts_written_in_any_order_take_the_place_of_the_old_ones_together(
    whole_run: RunStore, tmp_path: Path
) -> None:
    windows = whole_run.read("windows")
    store = create(tmp_path)
    store.replace_derived("windows", windows)
    store.seal(VALID)
    with store.replacing("windows") as new:
        elsewhere: NewParts = pickle.loads(pickle.dumps(new))  # another process of the same run directory
        assert [elsewhere.write(number, windows.slice(number, 1)) for number in (2, 0, 1)] == [1, 1, 1]
        assert store.read("windows").equals(windows)  # until the block ends the old one is read
    again = RunStore.open(store.run_dir)
    assert again.read("windows").equals(windows.slice(0, 3))
    assert (sealed(again.manifest)["windows"].rows, again.verify()) == (3, [])
    assert leftovers(store) == []


def test_a_table_of_no_parts_becomes_empty_not_absent(tmp_path: Path) -> None:
    store = create(tmp_path)
    with store.replacing("windows"):
        pass
    assert store.has("windows")
    assert store.read("windows").num_rows == 0


@pytest.mark.parametrize("failure", [KeyboardInterrupt, AnalysisError])
def test_a_failure_between_parts_leaves_the_old_table_whole(
    whole_run: RunStore, tmp_path: Path, failure: type[BaseException]
) -> None:
    windows = whole_run.read("windows")
    store = create(tmp_path)
    store.replace_derived("windows", windows)
    store.seal(VALID)

    def failing() -> None:
        with store.replacing("windows") as new:
            new.write(0, windows.slice(0, 1))
            raise failure

    with pytest.raises(failure):
        failing()
    assert store.read("windows").equals(windows)
    assert (store.verify(), leftovers(store)) == ([], [])


@pytest.mark.parametrize("at_rename", [1, 2])
def test_an_interrupt_while_the_tables_change_places_leaves_the_old_or_the_new(
    whole_run: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_rename: int
) -> None:
    windows = whole_run.read("windows")
    store = create(tmp_path)
    store.replace_derived("windows", windows)
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
            new.write(0, windows.slice(0, 1))
            monkeypatch.setattr(Path, "rename", interrupted)

    with pytest.raises(KeyboardInterrupt):
        replace()
    monkeypatch.undo()
    n_rows = RunStore.open(store.run_dir).read("windows").num_rows
    assert n_rows == (windows.num_rows if at_rename == 1 else 1)
    assert leftovers(store) == []


def test_a_process_killed_between_the_renames_leaves_the_old_table_readable(
    whole_run: RunStore, tmp_path: Path
) -> None:
    windows = whole_run.read("windows")
    store = create(tmp_path)
    store.replace_derived("windows", windows)
    (store.run_dir / "tables" / "windows").rename(store.run_dir / ".old-windows")
    (store.run_dir / ".new-windows").mkdir()  # whole, but the process was killed before it got its name
    again = RunStore.open(store.run_dir)
    assert again.read("windows").equals(windows)
    assert again.replace_derived("windows", windows.slice(0, 2)) == 2
    assert again.read("windows").num_rows == 2
    assert leftovers(again) == []


def test_a_full_disk_in_a_later_part_leaves_the_old_table(whole_run: RunStore, tmp_path: Path) -> None:
    windows = whole_run.read("windows")
    disk = FullDisk(room_bytes=10**9, only="part-00001.parquet.open")
    store = create(tmp_path, file_opener=disk)
    store.replace_derived("windows", windows)
    disk.room_bytes = 100

    def replace() -> None:
        with store.replacing("windows") as new:
            new.write(0, windows.slice(0, 1))
            new.write(1, windows.slice(1, 1))

    with pytest.raises(StoreError, match="no space left"):
        replace()
    assert store.read("windows").equals(windows)
    assert leftovers(store) == []


def leftovers(store: RunStore) -> list[str]:
    return [path.name for path in store.run_dir.iterdir() if path.name.startswith((".new", ".old"))]


def test_raw_tables_are_never_rewritten_and_derived_ones_never_appended(tmp_path: Path) -> None:
    store = create(tmp_path)
    with pytest.raises(StoreError, match="raw tables are never rewritten"):
        store.replace_derived("osrt", osrt([1]))
    with pytest.raises(StoreError, match="derived"):
        store.append("windows", osrt([1]))


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


def test_an_amended_manifest_is_on_disk_at_once(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.amend(replace(store.manifest, start_ns=5))
    assert RunStore.open(store.run_dir).manifest.start_ns == 5


def test_keys_that_this_version_does_not_know_stay_on_the_disk(tmp_path: Path) -> None:
    run_dir = create(tmp_path).run_dir
    document = json.loads((run_dir / "manifest.json").read_text())
    told = {"nodes": {"node-0": {"n_cores": 8, "colour": "red"}}, "weather": ["mild"]}
    _with_manifest(run_dir, json.dumps({**document, **told}))
    store = RunStore.open(run_dir)
    store.amend(replace(store.manifest, start_ns=5))
    document = json.loads((run_dir / "manifest.json").read_text())
    assert document["start_ns"] == 5
    assert {name: document[name] for name in told} == told


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "absent", "no such file or directory"),
        (lambda p: _with_manifest(p, "{"), "is not JSON"),
        (lambda p: _with_manifest(p, "[]"), "states no run and state"),
        (
            lambda p: _with_manifest(p, '{"run": "x", "state": "open", "schema_version": 0}'),
            "schema version 0; this squall reads version 5: analyze it with the squall that wrote it, or run again",
        ),
        (
            lambda p: _with_manifest(p, '{"run": "x", "state": "sealed", "schema_version": 99}'),
            "schema version 99; this squall reads version 5",
        ),
    ],
)
def test_what_is_no_run_directory_is_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        RunStore.open(make(tmp_path))
    assert "\n" not in str(caught.value)


def _with_manifest(path: Path, text: str) -> Path:
    (path / "manifest.json").write_text(text)
    return path


def test_a_parent_that_is_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot create the run directory .*file: (file exists|not a dir)"):
        RunStore.create(tmp_path / "file", "demo", NOW_NS, Manifest())


def test_a_disk_without_room_for_the_reserve_refuses_the_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no space left on device"):
        create(tmp_path, file_opener=FullDisk(room_bytes=1000))


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_plain_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="cannot create a run named"):
        RunStore.create(tmp_path, name, NOW_NS, Manifest())


def test_text_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    disk = FullDisk(room_bytes=10**9)
    store = create(tmp_path, file_opener=disk)
    store.write_text("summary.json", "old")
    disk.room_bytes = 1
    with pytest.raises(StoreError, match=r"summary\.json"):
        store.write_text("summary.json", "new and longer")
    assert (store.run_dir / "summary.json").read_text() == "old"
