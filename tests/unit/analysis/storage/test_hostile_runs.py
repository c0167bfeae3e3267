"""A run directory of somebody else leads nowhere: names, links, pipes, places of files that are to be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from squall.analysis.storage.beneath import new_file, read_plain, refuse_ways_out
from squall.analysis.storage.home import bring_home
from squall.analysis.storage.manifest import SEALED, Manifest
from squall.analysis.storage.parquet import read_parquet, rows_of
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import is_beneath, is_component, json_of
from tests.bucket import bucket


def written(folder: Path, **fields: Any) -> Path:
    """A run directory whose manifest has these fields."""
    run_dir = folder / "run"
    (run_dir / "tables").mkdir(parents=True)
    document = {"run": "run", "state": SEALED, "schema_version": Manifest().schema_version, "tables": {}}
    (run_dir / "manifest.json").write_text(json.dumps({**document, **fields}), encoding="utf-8")
    return run_dir


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("run-1", "a b", "é", "...", "..a", "*", "node-1")),
        *(
            (name, False)
            for name in (
                "../x",
                "..",
                ".",
                "/etc",
                "a/../../x",
                "a\0b",
                "a\nb",
                "",
                "a//b",
                "a\\b",
                "x" * 300,
                "\ud800",
            )
        ),
    ],
)
def test_a_name_leads_nowhere_else(name: str, is_one: bool) -> None:
    assert (is_component(name), is_beneath(f"tables/{name}")) == (is_one, is_one)


def test_a_manifest_with_a_name_that_leads_away_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has a manifest that squall did not write: run: "):
        RunStore.open(written(tmp_path, run="../x"))


@pytest.mark.parametrize("kept", [{"node-1": "/tmp"}, {"../x": "/"}, ["/"]])
def test_a_run_whose_rows_lie_on_nodes_is_refused(kept: object, tmp_path: Path) -> None:
    told = f"^{tmp_path}/run: rows of this run are not in it, but on the nodes that recorded them: "
    with pytest.raises(StoreError, match=told):
        RunStore.open(written(tmp_path, kept=kept))


def test_a_run_with_all_of_its_rows_is_opened(tmp_path: Path) -> None:
    files = [{"path": "tables/requests/part-00000.parquet", "rows": 1, "bytes": 1, "node": ""}]
    run_dir = written(tmp_path, kept={}, tables={"requests": {"rows": 1, "files": files}})
    assert RunStore.open(run_dir).run == "run"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.symlink_to(path.parents[1]), "a link"),
        (lambda path: path.symlink_to("manifest.json"), "a link"),
        (os.mkfifo, "a pipe"),
    ],
)
@pytest.mark.parametrize("name", ["summary.json", "tables/requests", "logs", "x"])
def test_what_is_no_file_in_a_run_is_refused(
    make: Callable[[Path], None], kind: str, name: str, tmp_path: Path
) -> None:
    path = written(tmp_path) / name
    make(path)
    with pytest.raises(StoreError, match=f"^{path} is {kind}, which squall leaves in no folder: remove it$"):
        RunStore.open(tmp_path / "run")


def test_a_pipe_in_place_of_the_manifest_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(StoreError, match="is a pipe"):
        RunStore.open(tmp_path)
    with pytest.raises(OSError, match="it is no file"):
        read_plain(tmp_path / "manifest.json")


def test_a_run_may_be_reached_by_a_link_of_the_users_own(tmp_path: Path) -> None:
    run_dir = written(tmp_path)
    (tmp_path / "latest").symlink_to(run_dir)
    assert RunStore.open(tmp_path / "latest").run == "run"
    refuse_ways_out(tmp_path / "nothing")


def test_files_are_written_through_no_link(tmp_path: Path) -> None:
    """Links under the names that files had until now while they were written."""
    run_dir = written(tmp_path)
    store = RunStore.open(run_dir)
    own = tmp_path / "authorized_keys"
    own.write_text("mine")
    for name in ("summary.json.new", "manifest.json.new", "report.html.new"):
        (run_dir / name).symlink_to(own)
    store.write_text("summary.json", "{}")
    with pytest.raises(FileExistsError):
        new_file(run_dir / "summary.json.new")
    assert own.read_text() == "mine"
    assert (run_dir / "summary.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "nsys/../../x", "logs/../../x.log"])
def test_a_file_of_a_name_that_leads_away_is_not_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no name of a file in a run directory"):
        RunStore.open(written(tmp_path)).write_text(name, "x")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


@pytest.mark.parametrize("key", ["../../x", "/x", "tables/../../x", "a//x", "..", "logs/a\nb"])
def test_an_object_whose_key_leads_away_is_not_fetched(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = bucket(monkeypatch)
    there.put(written(tmp_path / "theirs"), "bucket/run")
    there.objects[f"bucket/run/{key}"] = b"x"
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    store = RunStore.open("s3://bucket/run")
    for fetch in (lambda: bring_home("s3://bucket/run", folder), lambda: store.folder("logs")):
        with pytest.raises(StoreError, match="an object there has a name that is no file's"):
            fetch()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["a*", "a?", "a[bc]", "**", "n=a"])
def test_a_folders_name_is_no_pattern_and_no_column(name: str, tmp_path: Path) -> None:
    import duckdb

    for folder in (name, "ab", "ac"):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"n": [folder]}), tmp_path / folder / "part-0.parquet")
    path = tmp_path / name / "part-0.parquet"
    assert duckdb.sql(f"FROM {read_parquet([path])}").fetchall() == [(name,)]
    for keeps in (None, pc.is_valid(pc.field("n"))):
        assert rows_of(path, keeps=keeps).to_pydict() == {"n": [name]}


@pytest.mark.parametrize(
    "text",
    ["1e999", "[NaN]", "-Infinity", "[" * 200_000, "9" * 5_000, b"\xff", "", "{'a': 1}"],
    ids=["beyond", "nan", "infinity", "deep", "digits", "not utf-8", "empty", "python"],
)
def test_what_is_no_json_is_told_in_a_line(text: str | bytes) -> None:
    with pytest.raises(ValueError) as found:  # noqa: PT011  # any words
        json_of(text)
    assert len(str(found.value)) < 200
