"""A run directory: rows go in, closed parts stay whatever fails, the seal states all, derived tables change at once, a
run that is sealed without all that was recorded is taken up again."""

from __future__ import annotations

import errno
import json
import pickle
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.storage import store as store_module
from squall.analysis.storage.beneath import new_file
from squall.analysis.storage.manifest import OWN_FIELDS, Manifest
from squall.analysis.storage.part import NewParts, conform
from squall.analysis.storage.schema import TABLES, arrow_schema
from squall.analysis.storage.sealed import Unfinished, Verdict
from squall.analysis.storage.store import RESERVE, RESERVE_BYTES, RunStore
from squall.scenarios.errors import SchemaMismatch, SquallError, StoreError
from tests.many_examples import examples

NOW_NS = 1_795_250_252_713_561_538
VALID = Verdict(status="VALID")
STORIES = yaml.safe_load((Path(__file__).parent / "stories.yaml").read_text())


class Disk:
    """Opens files that take `room_bytes` in all and then refuse, as a full disk does.

    Counts and refuses only files whose name ends with `only`.
    """

    def __init__(self, room_bytes: int = 10**9, only: str = "") -> None:
        self.room_bytes = room_bytes
        self.only = only

    def __call__(self, path: Path) -> BinaryIO:
        disk = self

        class Limited(FileIO):
            def write(self, data: Any) -> int:
                if path.name.endswith(disk.only):
                    if len(data) > disk.room_bytes:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    disk.room_bytes -= len(data)
                return super().write(data)

        return cast(BinaryIO, Limited(path, "xb"))


def rows(values: list[int], table: str = "osrt") -> pa.Table:
    """Rows whose every number is the value, of the node that its hundreds say."""
    texts = {"node": [f"node-{value // 100}" for value in values]}
    return pa.table(
        {
            field.name: pa.array(texts.get(field.name, ["poll"] * len(values)), pa.string())
            if pa.types.is_dictionary(field.type)
            else pa.array(values).cast(field.type)
            for field in arrow_schema(table)
        }
    )


WINDOWS = rows([1, 2, 3, 4], "windows")


def create(tmp_path: Path, disk: Callable[[Path], BinaryIO] = new_file) -> RunStore:
    return RunStore.create(tmp_path / "runs", "demo", NOW_NS, Manifest(seed=7), disk)


def held(store: RunStore) -> dict[str, list[int]]:
    """The rows of each table, as the disk has them."""
    again = RunStore.open(store.run_dir)
    instant = {table: "start_ns" if "start_ns" in arrow_schema(table).names else "t_ns" for table in TABLES}
    return {table: again.read(table, [instant[table]]).column(0).to_pylist() for table in again.tables()}


def leftovers(store: RunStore) -> list[str]:
    """Names in the run directory that are none of the run."""
    passing = (*store.run_dir.glob(".*"), *store.run_dir.glob("*.new"), *store.run_dir.rglob("*.open"))
    return sorted({path.name for path in passing} - ({RESERVE} if not store.is_sealed else set()))


class Story:
    """A run directory, and by name what is done to it, beside the methods of the store, and what is then true of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.full = Disk()
        self.store = create(tmp_path, self.full)
        self.dead: list[RunStore] = []

    def disk(self, room_bytes: int, only: str = "") -> None:
        self.full.room_bytes, self.full.only = room_bytes, only

    def append(self, table: str, *values: int) -> None:
        self.store.append(table, rows([*values], table).to_batches()[0])

    def replace(self, table: str, *values: int) -> None:
        self.store.replace_derived(table, rows([*values], table))

    def amend(self, **fields: Any) -> None:
        stated: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        self.store.amend(replace(self.store.manifest, **stated))

    def seal(self, status: str, lacks: str = "", is_broken_off: bool = False) -> None:
        verdict = Verdict(status=status, reasons=() if status == "VALID" else ("a reason",))
        unfinished = Unfinished(folders={lacks: "/tmp/x"}, why={lacks: "no space"}) if lacks else None
        self.store.seal(verdict, unfinished, is_broken_off)

    def reopen(self, node: int, *tables: str) -> None:
        """Rows of that node come again."""

        def others(_: str, found: pa.Table) -> pa.Table:
            return found.filter(pa.array(name.as_py() != f"node-{node}" for name in found["node"]))

        self.store.reopen(tables or ["osrt"], others)

    def killed(self) -> None:
        self.dead.append(self.store)
        self.store = RunStore.open(self.store.run_dir, self.full)

    def rename(self, name: str, other: str) -> None:
        (self.store.run_dir / name).rename(self.store.run_dir / other)

    def holds(self, **tables: list[int]) -> None:
        assert held(self.store) == tables
        document = json.loads((self.store.run_dir / "manifest.json").read_text())
        if not self.store.is_sealed:
            assert not {"tables", "verdict", "unfinished"} & {*document}
            return
        assert {name: entry["rows"] for name, entry in document["tables"].items()} == {
            name: len(values) for name, values in tables.items()
        }
        assert RunStore.open(self.store.run_dir).verify() == []

    def parts(self, table: str, *names: str) -> None:
        assert [part.name for part in self.store.parts(table)] == [*names]

    def reads(self, name: str, text: str) -> None:
        assert self.store.read_text(name) == text

    def leaves(self, *names: str) -> None:
        assert leftovers(self.store) == [*names]

    def says(self, losses: list[str] | None = None, **stated: Any) -> None:
        manifest = RunStore.open(self.store.run_dir).manifest
        if losses is not None:
            assert [loss[: len(begin)] for loss, begin in zip(manifest.losses, losses, strict=True)] == losses
        if manifest.status == "INVALID":
            assert manifest.reasons == manifest.losses
        for name, value in stated.items():
            assert getattr(manifest, name) == (tuple(value) if isinstance(value, list) else value), name


@pytest.mark.parametrize("name", STORIES)
def test_a_run_directory_becomes_what_its_story_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PART_ROWS", 3)
    story = Story(tmp_path)
    for step in STORIES[name]:
        (verb, given), *more = step.items()
        options = {**dict(more), **(given if isinstance(given, dict) else {})}
        words = options.pop("refused", None)
        values = given if isinstance(given, list) else [] if isinstance(given, dict | None) else [given]
        with pytest.raises(SquallError, match=re.escape(words)) if words else nullcontext():
            does: Callable[..., object] = getattr(story if hasattr(story, verb) else story.store, verb)
            does(*values, **options)
    for dead in story.dead:  # their finalisers write to files that they still have open
        for part in dead._parts.values():
            part.drop()


def test_a_run_directory_is_named_after_scenario_and_utc_and_holds_a_reserve_until_the_seal(
    tmp_path: Path,
) -> None:
    store, *others = (create(tmp_path) for _ in range(20))
    assert len({store.run_dir, *(other.run_dir for other in others)}) == 20
    assert store.run[:-4] == "demo-20261121T083732Z-"
    manifest = json.loads((store.run_dir / "manifest.json").read_text())
    assert (manifest["state"], manifest["run"], manifest["seed"]) == ("open", store.run, 7)
    reserve = store.run_dir / RESERVE
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
        RunStore.create(tmp_path / parent, name, NOW_NS, Manifest(), Disk(room_bytes))


@examples(30)
@given(parts=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), min_size=1, max_size=5))
def test_what_is_appended_is_read_back_in_order_over_parts(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]]
) -> None:
    store = create(tmp_path_factory.mktemp("store"))
    tables = [conform("osrt", rows(part)) for part in parts]
    for number, table in enumerate(tables):
        store.append("osrt", table)
        if number % 2:
            store.flush("osrt")
    store.seal(VALID)
    again = RunStore.open(store.run_dir)
    assert again.read("osrt").to_pylist() == pa.concat_tables(tables).to_pylist()
    assert again.read("osrt").schema.equals(arrow_schema("osrt"))
    assert again.verify() == []


def test_a_column_without_any_value_takes_the_type_of_the_schema() -> None:
    schema = arrow_schema("windows")
    found = conform(
        "windows", pa.table([pa.nulls(4) if f.nullable else WINDOWS[f.name] for f in schema], schema.names)
    )
    assert found.schema.equals(schema)
    assert {found[field.name].null_count for field in schema if field.nullable} == {4}


def test_a_changed_a_missing_and_an_added_file_show_in_verify(tmp_path: Path) -> None:
    store = create(tmp_path)
    for _ in range(2):
        store.append("osrt", rows([1]))
        store.flush()
    store.seal(VALID)
    first, second = sorted((store.run_dir / "tables" / "osrt").iterdir())
    first.write_bytes(bytes(first.stat().st_size))
    second.rename(second.with_name("part-00009.parquet"))
    name = "tables/osrt/part-0000"
    assert sorted(store.verify()) == [
        f"{name}0.parquet has changed since the seal",
        f"{name}1.parquet is missing",
        f"{name}9.parquet is not in the manifest",
    ]


def with_starts(values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(7, "start_ns", values)


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        ("osrt", lambda t: t.drop_columns(["name"]), "column 9 is nothing, not name"),
        ("osrt", lambda t: t.rename_columns([*t.column_names[:-1], "nam"]), "column 9 is nam, not name"),
        ("osrt", lambda t: t.append_column("more", t.column(0)), "column 10 is more, not nothing"),
        ("osrt", with_starts(pa.array([1.0])), "start_ns is double"),
        ("osrt", with_starts(pa.array([None], pa.int64())), "start_ns holds 1 nulls"),
        ("latencies", lambda t: t, "no table 'latencies'"),
    ],
)
def test_a_batch_of_other_columns_is_refused_by_the_first_that_differs(
    tmp_path: Path, table: str, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    with pytest.raises(SchemaMismatch, match=words):
        create(tmp_path).append(table, change(rows([1])))


def test_parts_written_in_any_order_take_the_place_of_the_old_ones_together(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.replace_derived("windows", WINDOWS)
    store.seal(VALID)
    with store.replacing("windows") as new:
        elsewhere: NewParts = pickle.loads(pickle.dumps(new))  # another process of the same run directory
        new.files.update({number: elsewhere.write(number, WINDOWS.slice(number, 1)) for number in (2, 0, 1)})
        assert held(store) == {"windows": [1, 2, 3, 4]}  # until the block ends the old one is read
    assert held(store) == {"windows": [1, 2, 3]}
    reader = pa.RecordBatchReader.from_batches(WINDOWS.schema, WINDOWS.slice(0, 2).to_batches())
    assert store.replace_derived("windows", reader) == 2
    assert (held(store), store.verify(), leftovers(store)) == ({"windows": [1, 2]}, [], [])
    with store.replacing("windows"):
        pass
    assert held(store) == {"windows": []}, "empty, not absent"


def interrupt(*_: object) -> Path:
    raise KeyboardInterrupt


def replace_windows(store: RunStore, then: Callable[[NewParts], object]) -> None:
    """By one row, after which something happens."""
    with store.replacing("windows") as new:
        new.write(0, WINDOWS.slice(0, 1))
        then(new)


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (interrupt, KeyboardInterrupt),
        (lambda new: new.write(2, WINDOWS.drop_columns(["t_ns"])), SchemaMismatch),
        (lambda new: new.write(1, WINDOWS), StoreError),  # for which there is no room
    ],
)
def test_a_failure_between_parts_leaves_the_old_table_whole(
    tmp_path: Path, failing: Callable[[NewParts], object], error: type[BaseException]
) -> None:
    disk = Disk(10**9, only="part-00001.parquet.new")
    store = create(tmp_path, disk)
    store.replace_derived("windows", WINDOWS)
    store.seal(VALID)
    disk.room_bytes = 100
    with pytest.raises(error):
        replace_windows(store, failing)
    assert (held(store), store.verify(), leftovers(store)) == ({"windows": [1, 2, 3, 4]}, [], [])


@pytest.mark.parametrize(("n_done", "rows_left"), [(1, [1, 2, 3, 4]), (2, [1])])
def test_an_interrupt_while_the_tables_change_places_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_done: int, rows_left: list[int]
) -> None:
    store = create(tmp_path)
    store.replace_derived("windows", WINDOWS)
    rename, done = Path.rename, list[Path]()

    def interrupted(path: Path, target: Path) -> Path:
        done.append(rename(path, target))
        return interrupt() if len(done) == n_done else target

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        replace_windows(store, lambda _: patch.setattr(Path, "rename", interrupted))
    assert (held(store), leftovers(store)) == ({"windows": rows_left}, [])


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
    assert {name: document[name] for name in (*told, "start_ns")} == {**told, "start_ns": 5}


OTHER_VERSION = '{{"run": "x", "state": "sealed", "schema_version": {}}}'


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (None, "no such file or directory"),
        ("{", "is not JSON"),
        ("[]", "states no run and state"),
        (OTHER_VERSION.format(0), "schema version 0; this squall reads version 5: analyze it with the squall that"),
        (OTHER_VERSION.format(99), "schema version 99; this squall reads version 5"),
    ],
)  # fmt: skip
def test_what_is_no_run_directory_is_refused_in_one_line(
    tmp_path: Path, manifest: str | None, words: str
) -> None:
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(StoreError, match=words) as caught:
        RunStore.open(tmp_path)
    assert "\n" not in str(caught.value)
