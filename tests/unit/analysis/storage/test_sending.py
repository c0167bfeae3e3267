"""A run goes to the object storage that the user names, is read and taken up again from there, and what others have
there stays."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from squall.analysis import derive as derive_module
from squall.analysis.derive import derive
from squall.analysis.schema import TABLES
from squall.analysis.storage.home import bring_home, home_of, send_away, sending_command
from squall.analysis.storage.mirror import Mirror
from squall.analysis.storage.object_folder import ObjectFolder
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import StoreError
from tests.bucket import Bucket, bucket
from tests.planted_runs import Shape, plant

PART = "tables/requests/part-00000.parquet"
Files = dict[str, bytes]


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    return bucket(monkeypatch)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """Sealed and whole; `runs` is the working folder's."""
    monkeypatch.chdir(tmp_path)
    return plant(Shape(seed=5, n_requests=30)).write(tmp_path / "runs")


def files(folder: Path) -> Files:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def tables(of: Files) -> Files:
    return {name: content for name, content in of.items() if name.startswith("tables/")}


def with_address(run: RunStore, address: str) -> RunStore:
    """The run as its manifest says that it goes there."""
    path = run.run_dir / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "copied_to": address}))
    return RunStore.open(run.run_dir)


def stated(of: Files, **fields: Any) -> bytes:
    """A manifest with other fields."""
    return json.dumps({**json.loads(of["manifest.json"]), **fields}).encode()


def test_what_the_manifest_says_sends_nothing(run: RunStore, there: Bucket) -> None:
    store = with_address(run, f"s3://theirs/{run.run}")
    assert send_away(store, "") == str(run.run_dir)
    assert not there.objects
    assert run.run_dir.is_dir()


def test_it_goes_where_the_user_says_and_states_that(run: RunStore, there: Bucket) -> None:
    store = with_address(run, f"s3://theirs/{run.run}")
    address, here = f"s3://mine/{run.run}", tables(files(run.run_dir))
    assert send_away(store, address) == address
    found = there.files(f"mine/{run.run}")
    assert (tables(found), len(found)) == (here, len(there.objects))
    assert json.loads(found["manifest.json"])["copied_to"] == address
    assert not run.run_dir.exists()


@pytest.mark.parametrize(
    "lies",
    [
        lambda here: {"manifest.json": stated(here, run="another")},
        lambda here: {"manifest.json": stated(here, started_ns=1)},
        lambda _: {"letters.txt": b"mine"},
        lambda _: {"report.html": b"mine"},
        lambda _: {"logs/server-0.log": b"mine"},
    ],
)
def test_what_lies_there_already_is_not_overwritten(
    run: RunStore, there: Bucket, lies: Callable[[Files], Files]
) -> None:
    run.write_text("report.html", "planted")
    here = files(run.run_dir)
    there.objects = before = {f"mine/{run.run}/{name}": content for name, content in lies(here).items()}
    with pytest.raises(StoreError, match="has something else: remove that, or name another place") as raised:
        send_away(run, f"s3://mine/{run.run}")
    assert len(str(raised.value).splitlines()) == 1
    assert (there.objects, files(run.run_dir)) == (before, here)


def another_part(found: Files) -> bytes:
    of_tables = json.loads(found["manifest.json"])["tables"]
    of_tables["requests"]["files"][0]["sha256"] = "0" * 64
    return stated(found, tables=of_tables)


@pytest.mark.parametrize(
    "differ",
    [
        lambda found: {"manifest.json": another_part(found)},
        lambda _: {"logs/server-0.log": b"it is not"},
        lambda _: {"logs/server-0.log": b"it is not", "report.html": b"of the user's run"},
        lambda _: {"logs/server-1.log": b"only there"},
        lambda found: {PART: bytes(len(found[PART]))},
    ],
)
def test_a_sealed_run_there_is_not_replaced_by_an_altered_copy(
    run: RunStore, there: Bucket, differ: Callable[[Files], Files]
) -> None:
    run.write_text("logs/server-0.log", "as it was")
    run.write_text("report.html", "of the altered copy")
    there.put(run.run_dir, f"mine/{run.run}")
    here = files(run.run_dir)
    there.objects |= {f"mine/{run.run}/{name}": of for name, of in differ(here).items()}
    before = dict(there.objects)
    told = "has this run with other records or logs, and stays as it is: name another place by --out"
    with pytest.raises(StoreError, match=told):
        send_away(run, f"s3://mine/{run.run}")
    assert (there.objects, files(run.run_dir)) == (before, here)


def without_manifest(of: Files) -> Files:
    return {**of, "manifest.json": b""}


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_sealed_run_that_lies_there_already_is_sent_and_what_is_derived_there_is_replaced(
    run: RunStore, there: Bucket, is_alike: bool
) -> None:
    """As a process leaves it there that was killed while it derived, or an older squall that made other figures."""
    run.write_text("logs/server-0.log", "as it was")
    run.replace_derived("joined", TABLES["joined"].arrow().empty_table())
    run.write_text("report.html", "made")
    under = f"mine/{run.run}"
    there.put(run.run_dir, under)
    if not is_alike:
        joined = f"{under}/tables/joined/part-00000.parquet"
        there.objects |= {f"{under}/summary.json": b"{}", joined: b"x", f"{under}/report.html": b"of before"}
        run.replace_derived("windows", TABLES["windows"].arrow().empty_table())
        run.write_text("summary.json", "made anew")
    here = files(run.run_dir)
    assert send_away(run, f"s3://mine/{run.run}") == f"s3://mine/{run.run}"
    found = there.files(under)
    assert without_manifest(found) == without_manifest(here)
    assert ("windows" in json.loads(found["manifest.json"])["tables"]) is not is_alike
    assert not run.run_dir.exists()


def test_a_users_files_in_a_run_directory_are_neither_sent_nor_removed(run: RunStore, there: Bucket) -> None:
    for name in ("notes.txt", "sub/thesis.tex", ".hidden"):
        (run.run_dir / name).parent.mkdir(exist_ok=True)
        (run.run_dir / name).write_text("a user's")
    (run.run_dir / ".fetched").mkdir()
    sent = tables(files(run.run_dir))
    send_away(run, f"s3://mine/{run.run}")
    assert set(there.files(f"mine/{run.run}")) == {"manifest.json", *sent}
    assert sorted(files(run.run_dir)) == [".hidden", "notes.txt", "sub/thesis.tex"]
    assert not (run.run_dir / ".fetched").exists()


def test_what_was_broken_off_is_made_whole_and_what_else_lies_there_stays(
    run: RunStore, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, send, under = tables(files(run.run_dir)), ObjectFolder.send, f"mine/{run.run}"

    def break_off(place: ObjectFolder, name: str, path: Path) -> None:
        if name == PART:
            raise OSError(5, "Input/output error")
        send(place, name, path)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "send", break_off)
        with pytest.raises(StoreError, match="input/output error; the run is whole in"):
            send_away(run, f"s3://{under}")
    assert json.loads(there.files(under)["manifest.json"])["state"] == "open"
    there.objects[f"{under}/notes.txt"] = b"a user's"
    send_away(RunStore.open(run.run_dir), f"s3://{under}")
    found = there.files(under)
    assert tables(found) == whole
    assert json.loads(found["manifest.json"])["state"] == "sealed"
    assert found["notes.txt"] == b"a user's"


@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_nothing_that_leads_out_of_the_run_is_sent(
    run: RunStore, there: Bucket, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "key").write_text("secret")
    if kind == "a link":
        (run.run_dir / "logs").mkdir(exist_ok=True)
        (run.run_dir / "logs" / "key.log").symlink_to(tmp_path / "key")
    else:
        os.mkfifo(run.run_dir / "pipe")
    with pytest.raises(StoreError, match=f"is {kind}, which squall leaves in no folder"):
        send_away(run, f"s3://mine/{run.run}")
    assert not there.objects
    assert run.run_dir.is_dir()


@pytest.mark.parametrize(
    ("copied_to", "shown"),
    [
        ("s3://bucket/some/runs/RUN", "s3://bucket/some/runs"),
        ("s3://bucket/runs/another", "s3://BUCKET/PREFIX"),
        ("ftp://bucket/RUN", "s3://BUCKET/PREFIX"),
        ("/etc/RUN", "s3://BUCKET/PREFIX"),
        ("s3://bucket/$(date)/RUN", "'s3://bucket/$(date)'"),
        ("s3://bucket/a\x1b[2J/RUN", "'s3://bucket/a\\x1b[2J'"),
    ],
)
def test_the_command_that_sends_is_safe_to_be_typed(run: RunStore, copied_to: str, shown: str) -> None:
    store = with_address(run, copied_to.replace("RUN", run.run))
    assert sending_command(store) == f"squall resume {run.run_dir} --out {shown}"
    store.run_dir = Path("/tmp/it's mine")
    assert sending_command(store).startswith("squall resume '/tmp/it'\"'\"'s mine' --out ")


def test_a_mirror_that_failed_states_nothing_that_it_has_not(
    run: RunStore, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    mirror = Mirror(run.run_dir, ObjectFolder("s3://mine/run"))
    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "send", fail)
        mirror.put(PART)
        mirror.put("manifest.json", b"sealed")
        mirror._waiting.join()
    assert not there.objects
    mirror.finish("manifest.json")
    assert there.files("mine/run") == files(run.run_dir)


def test_a_run_there_is_analysed_as_one_here(
    run: RunStore, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the drawing of its page: where that goes is what counts here."""
    drawn = lambda store, _: store.write_text("report.html", "drawn")  # noqa: E731
    monkeypatch.setattr(derive_module, "write_report", drawn)
    there.put(run.run_dir, "theirs/run")
    address = "s3://theirs/run"
    ours, theirs = derive(run).to_json(), derive(RunStore.open(address)).to_json()
    assert theirs == ours
    store = RunStore.open(address)
    assert [store.has_file(name) for name in ("report.html", "summary.json", "other")] == [True, True, False]
    assert json.loads(store.read_text("summary.json")) == ours
    assert store.tables() == run.tables()
    for name in run.tables():
        assert store.read(name).equals(run.read(name)), name
    assert store.verify() == []


def test_a_table_made_anew_there_counts_from_when_the_manifest_names_it(
    run: RunStore, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = TABLES["windows"].arrow().empty_table()
    run.replace_derived("windows", empty)
    there.put(run.run_dir, "theirs/run")
    old = dict(there.objects)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    store = RunStore.open("s3://theirs/run")
    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "_write_manifest", fail)
        with pytest.raises(OSError, match="Input/output error"):
            store.replace_derived("windows", empty)
    assert {key: there.objects[key] for key in old} == old
    assert RunStore.open("s3://theirs/run").verify() == []
    assert RunStore.open("s3://theirs/run").replace_derived("windows", empty) == 0
    assert there.objects["theirs/run/tables/windows/part-00000.parquet"] == b""
    assert RunStore.open("s3://theirs/run").verify() == []
    there.objects["theirs/run/manifest.json"] = stated(there.files("theirs/run"), state="open", tables={})
    with pytest.raises(StoreError, match="is not sealed: squall resume s3://theirs/run finishes it first"):
        RunStore.open("s3://theirs/run").replace_derived("windows", empty)


@pytest.mark.parametrize("name", [PART, "manifest.json"])
def test_what_is_not_there_is_one_line(run: RunStore, there: Bucket, name: str) -> None:
    there.put(run.run_dir, "theirs/run")
    there.objects[f"theirs/run/{name}"] = b""  # as none
    with pytest.raises(StoreError, match="no such file or directory") as told:
        RunStore.open("s3://theirs/run").read("requests")
    assert "\n" not in str(told.value)


def test_a_run_of_the_same_name_here_is_not_sent_in_the_place_of_one_there(
    run: RunStore, there: Bucket
) -> None:
    there.objects[f"theirs/{run.run}/manifest.json"] = files(run.run_dir)["manifest.json"]
    address = f"s3://theirs/{run.run}"
    with pytest.raises(StoreError, match=f"has another run than {address}: move it away"):
        bring_home(address, run.run_dir)
    own = with_address(run, address)
    bring_home(address, run.run_dir)
    assert own.manifest == replace(run.manifest, copied_to=address)


@pytest.fixture
def elsewhere(run: RunStore, there: Bucket) -> str:
    """The address of the run, which is in object storage alone."""
    address = f"s3://theirs/{run.run}"
    with_address(run, address)
    there.put(run.run_dir, f"theirs/{run.run}")
    shutil.rmtree(run.run_dir)
    return address


def test_a_run_of_a_bucket_takes_no_folder_that_has_files_and_no_manifest(
    run: RunStore, elsewhere: str
) -> None:
    folder = run.run_dir
    (folder / "sub").mkdir(parents=True)
    (folder / "summary.json").write_text("of a decision")
    (folder / "sub" / "thesis.tex").write_text("a user's")
    before = files(folder)
    told = f"{run.run} has files of something else than {elsewhere}: move it away"
    with pytest.raises(StoreError, match=told):
        bring_home(elsewhere, home_of(elsewhere))
    assert files(folder) == before


def brought(elsewhere: str) -> Files:
    """The run in its folder here, without what says whose it is."""
    folder = home_of(elsewhere)
    bring_home(elsewhere, folder)
    found = files(folder)
    assert found.pop(".brought") == elsewhere.encode()
    return found


def test_a_run_is_brought_without_what_squall_does_not_write(
    run: RunStore, there: Bucket, elsewhere: str
) -> None:
    whole = there.files(f"theirs/{run.run}")
    for name in (".resumed/x", ".brought", "notes.txt"):
        there.objects[f"theirs/{run.run}/{name}"] = b"planted"
    assert brought(elsewhere) == whole


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_what_was_broken_off_while_it_was_brought_is_brought_whole_from_there_alone(
    run: RunStore, there: Bucket, elsewhere: str, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    fetch = ObjectFolder.fetch

    def break_off(place: ObjectFolder, name: str, path: Path) -> None:
        if name == PART:
            raise failure
        fetch(place, name, path)

    folder = home_of(elsewhere)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "fetch", break_off)
        told = f"cannot bring {elsewhere} to .*: input/output error"
        with pytest.raises(
            (StoreError, KeyboardInterrupt), match=told if isinstance(failure, OSError) else None
        ):
            bring_home(elsewhere, folder)
    assert not (folder / "manifest.json").exists()
    there.objects |= {
        f"another/{run.run}/{name}": of for name, of in there.files(f"theirs/{run.run}").items()
    }
    with pytest.raises(StoreError, match=f"has files of something else than s3://another/{run.run}"):
        bring_home(f"s3://another/{run.run}", folder)
    assert brought(elsewhere) == there.files(f"theirs/{run.run}")


@pytest.mark.usefixtures("elsewhere")
def test_a_run_that_was_brought_is_gone_on_with_whatever_address_its_manifest_says(
    run: RunStore, there: Bucket
) -> None:
    there.objects = {key.replace("theirs/", "copy/"): content for key, content in there.objects.items()}
    address = f"s3://copy/{run.run}"
    folder = home_of(address)
    bring_home(address, folder)
    bring_home(address, folder)
    assert send_away(RunStore.open(folder), address) == address
    assert not folder.exists()
