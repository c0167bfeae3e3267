"""A run goes to the object storage that the user names, is read and taken up again from there, and what others have
there stays."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.report import derive as derive_module
from squall.analysis.report.derive import derive
from squall.analysis.sql import answered
from squall.analysis.storage.home import bring_home, home_of, send_away, sending_command
from squall.analysis.storage.mirror import Mirror
from squall.analysis.storage.object_folder import ObjectFolder
from squall.analysis.storage.query import connect
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError, StoreError
from tests.bucket import Bucket, bucket
from tests.planted_runs import Shape, plant

PART = "tables/requests/part-00000.parquet"
FAILED = OSError(5, "Input/output error")
Files = dict[str, bytes]
THERE = yaml.safe_load((Path(__file__).parent / "sending.yaml").read_text())


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


def but(name: str, of: Files) -> Files:
    return {key: content for key, content in of.items() if key != name}


def stated(manifest: bytes, places: dict[str, Any]) -> bytes:
    """A manifest with other values."""
    document = json.loads(manifest)
    for place, value in places.items():
        *way, last = (int(key) if key.isdigit() else key for key in place.split())
        held = document
        for key in way:
            held = held[key]
        held[last] = value
    return json.dumps(document).encode()


def with_address(run: RunStore, address: str) -> RunStore:
    """The run as its manifest says that it goes there."""
    path = run.run_dir / "manifest.json"
    path.write_bytes(stated(path.read_bytes(), {"copied_to": address}))
    return RunStore.open(run.run_dir)


def broken_off(patch: pytest.MonkeyPatch, how: str, failure: BaseException) -> None:
    """That part of the requests neither comes nor goes."""
    whole = getattr(ObjectFolder, how)

    def break_off(place: ObjectFolder, name: str, path: Path) -> None:
        if name == PART:
            raise failure
        whole(place, name, path)

    patch.setattr(ObjectFolder, how, break_off)


def test_what_the_manifest_says_sends_nothing_and_the_user_says_where_it_goes(
    run: RunStore, there: Bucket
) -> None:
    store = with_address(run, f"s3://theirs/{run.run}")
    here, address = but("manifest.json", files(run.run_dir)), f"s3://mine/{run.run}"
    assert send_away(store, "") == str(run.run_dir)
    assert not there.objects
    assert send_away(store, address) == address
    found = there.files(f"mine/{run.run}")
    assert (but("manifest.json", found), len(found)) == (here, len(there.objects))
    assert json.loads(found["manifest.json"])["copied_to"] == address
    assert not run.run_dir.exists()


@pytest.mark.parametrize("name", THERE)
def test_a_run_takes_the_place_of_its_own_copy_and_of_nothing_else(
    run: RunStore, there: Bucket, name: str
) -> None:
    case, under = THERE[name], f"mine/{run.run}"
    run.replace_derived("joined", TABLES["joined"].arrow().empty_table())
    for file, text in {"logs/server-0.log": "as it was", "report.html": "made"}.items():
        run.write_text(file, text)
    if "is_copy" in case:
        there.put(run.run_dir, under)
    here = files(run.run_dir)
    lies = {
        file: bytes(len(here[file])) if text is None else text.encode()
        for file, text in case.get("lies", {}).items()
    }
    if "manifest" in case:
        lies["manifest.json"] = stated(here["manifest.json"], case["manifest"])
    there.objects |= {f"{under}/{file}": content for file, content in lies.items()}
    run.write_text("summary.json", "made anew")
    here, before = files(run.run_dir), dict(there.objects)
    if "refused" in case:
        with pytest.raises(
            StoreError, match=f"^[^\n]*{case['refused']}[^\n]*name another place by --out[^\n]*$"
        ):
            send_away(run, f"s3://{under}")
        assert (there.objects, files(run.run_dir)) == (before, here)
        return
    assert send_away(run, f"s3://{under}") == f"s3://{under}"
    assert but("manifest.json", there.files(under)) == but("manifest.json", here)
    assert (
        json.loads(there.files(under)["manifest.json"])["tables"]
        == json.loads(here["manifest.json"])["tables"]
    )
    assert not run.run_dir.exists()


def test_a_users_files_in_a_run_directory_are_neither_sent_nor_removed(run: RunStore, there: Bucket) -> None:
    sent = {*files(run.run_dir)}
    names = [".hidden", "notes.txt", "sub/thesis.tex"]
    for name in names:
        (run.run_dir / name).parent.mkdir(exist_ok=True)
        (run.run_dir / name).write_text("a user's")
    (run.run_dir / ".fetched").mkdir()
    send_away(run, f"s3://mine/{run.run}")
    assert {*there.files(f"mine/{run.run}")} == sent
    assert sorted(files(run.run_dir)) == names
    assert not (run.run_dir / ".fetched").exists()


def test_what_was_broken_off_is_made_whole_and_what_else_lies_there_stays(
    run: RunStore, there: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, under = but("manifest.json", files(run.run_dir)), f"mine/{run.run}"
    with monkeypatch.context() as patch:
        broken_off(patch, "send", FAILED)
        with pytest.raises(StoreError, match="input/output error; the run is whole in"):
            send_away(run, f"s3://{under}")
    assert json.loads(there.files(under)["manifest.json"])["state"] == "open"
    there.objects[f"{under}/notes.txt"] = b"a user's"
    send_away(RunStore.open(run.run_dir), f"s3://{under}")
    found = there.files(under)
    assert json.loads(found["manifest.json"])["state"] == "sealed"
    assert but("manifest.json", found) == {**whole, "notes.txt": b"a user's"}


@pytest.mark.parametrize(
    ("make", "kind"), [(lambda path: path.symlink_to("/etc/hostname"), "a link"), (os.mkfifo, "a pipe")]
)
def test_nothing_that_leads_out_of_the_run_is_sent(
    run: RunStore, there: Bucket, make: Callable[[Path], None], kind: str
) -> None:
    make(run.run_dir / "logs" / "key.log")
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
    mirror = Mirror(run.run_dir, ObjectFolder("s3://mine/run"))
    with monkeypatch.context() as patch:
        broken_off(patch, "send", FAILED)
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
    address, empty = "s3://theirs/run", TABLES["windows"].arrow().empty_table()
    run.replace_derived("windows", empty)
    there.put(run.run_dir, "theirs/run")
    old = dict(there.objects)

    def fail(*_: object) -> None:
        raise FAILED

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "_write_manifest", fail)
        with pytest.raises(OSError, match="Input/output error"):
            RunStore.open(address).replace_derived("windows", empty)
    assert {key: there.objects[key] for key in old} == old
    assert RunStore.open(address).verify() == []
    assert RunStore.open(address).replace_derived("windows", empty) == 0
    assert there.objects["theirs/run/tables/windows/part-00000.parquet"] == b""
    assert RunStore.open(address).verify() == []
    there.objects["theirs/run/manifest.json"] = stated(
        old["theirs/run/manifest.json"], {"state": "open", "tables": {}}
    )
    with pytest.raises(StoreError, match=f"is not sealed: squall resume {address} finishes it first"):
        RunStore.open(address).replace_derived("windows", empty)


def test_what_a_killed_analysis_left_there_is_swept_by_the_next(run: RunStore, there: Bucket) -> None:
    run.replace_derived("windows", TABLES["windows"].arrow().empty_table())
    there.put(run.run_dir, "theirs/run")
    left = {
        f"theirs/run/{name}": b"left"
        for name in (".spill-0/members-00000.parquet", "tables/windows/part-00000-1.parquet")
    }
    kept = {**there.objects, "theirs/run/notes.txt": b"a user's", "theirs/run/tables/other/x": b"a user's"}
    there.objects = {**kept, **left}
    RunStore.open("s3://theirs/run").sweep()
    assert there.objects == {**kept, **dict.fromkeys(left, b"")}


def test_what_tasks_share_there_is_gone_when_they_end_or_fail(there: Bucket) -> None:
    folder = ObjectFolder("s3://theirs/run")
    for failure in (None, KeyboardInterrupt, StoreError):
        with suppress(KeyboardInterrupt, StoreError), folder.passing() as passing:
            passing.write("members-00000.parquet", b"rows")
            assert [*passing.sizes()] == ["members-00000.parquet"]
            if failure:
                raise failure
    assert folder.sizes() == {}
    assert len(there.objects) == 3


@pytest.mark.parametrize("what", ["manifest.json", "tables/windows/part-00000-*.parquet"])
def test_of_two_analyses_at_a_time_the_one_that_lost_its_files_says_so(
    run: RunStore, there: Bucket, what: str
) -> None:
    empty = TABLES["windows"].arrow().empty_table()
    run.replace_derived("windows", empty)
    there.put(run.run_dir, "theirs/run")
    store, told = RunStore.open("s3://theirs/run"), "changed by another process meanwhile: squall analyze s3"

    def lose() -> None:
        with store.replacing("windows") as new:
            new.write(0, empty)
            if what == "manifest.json":
                RunStore.open("s3://theirs/run").replace_derived("batch_costs", _EMPTY_COSTS)
            else:
                (name,) = fnmatch.filter(there.objects, f"theirs/run/{what}")
                there.objects[name] = b""

    with pytest.raises(StoreError, match=told):
        lose()
    assert RunStore.open("s3://theirs/run").verify() == []
    assert not [
        key
        for key in fnmatch.filter(there.objects, "*/part-00000-*")
        if "windows" in key and there.objects[key]
    ]


_EMPTY_COSTS = TABLES["batch_costs"].arrow().empty_table()


@pytest.mark.parametrize("name", [PART, "manifest.json"])
def test_what_is_not_there_is_one_line(run: RunStore, there: Bucket, name: str) -> None:
    there.put(run.run_dir, "theirs/run")
    there.objects[f"theirs/run/{name}"] = b""  # as none
    with pytest.raises(StoreError, match="no such file or directory") as told:
        RunStore.open("s3://theirs/run").read("requests")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("is_before", [True, False])
def test_an_object_that_vanishes_while_it_is_asked_is_one_line(
    run: RunStore, there: Bucket, is_before: bool
) -> None:
    there.put(run.run_dir, "theirs/run")
    store = RunStore.open("s3://theirs/run")
    gone = r"^cannot read s3://theirs/run: a file of it is gone: [^\n]*$"

    def lose() -> None:
        there.objects[f"theirs/run/{PART}"] = b""

    def ask() -> None:
        if is_before:
            lose()
        with connect(store, ["requests"]) as connection:
            lose()
            connection.execute("SELECT count(sent_ns) FROM requests").fetchall()

    # of one whose footer had been read it is what the store answers, or what Arrow makes of that
    with pytest.raises((StoreError, AnalysisError), match=gone if is_before else r"^[^\n]*$"):
        ask()


def test_a_query_of_a_users_is_over_runs_here_and_there(run: RunStore, there: Bucket) -> None:
    there.put(run.run_dir, "theirs/run")
    stores = [run, RunStore.open("s3://theirs/run")]
    for sql, of in (
        ("SELECT count(*) AS n FROM requests", stores),
        ("SELECT count(*) AS n FROM batches", stores[1:]),
    ):
        with answered(of, sql) as answer:
            assert [*answer.rows()] == [(sum(store.n_rows(sql.split()[-1]) for store in of),)]


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


@pytest.mark.parametrize(
    ("failure", "told"),
    [(FAILED, r"cannot bring s3://theirs/\S+ to \S+: input/output error"), (KeyboardInterrupt(), None)],
)
def test_what_was_broken_off_while_it_was_brought_is_brought_whole_from_there_alone(
    run: RunStore,
    there: Bucket,
    elsewhere: str,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    told: str | None,
) -> None:
    folder, whole, another = home_of(elsewhere), there.files(f"theirs/{run.run}"), f"another/{run.run}"
    with monkeypatch.context() as patch:
        broken_off(patch, "fetch", failure)
        with pytest.raises((StoreError, KeyboardInterrupt), match=told):
            bring_home(elsewhere, folder)
    assert not (folder / "manifest.json").exists()
    there.objects |= {f"{another}/{name}": content for name, content in whole.items()}
    with pytest.raises(StoreError, match=f"has files of something else than s3://{another}"):
        bring_home(f"s3://{another}", folder)
    assert brought(elsewhere) == whole


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
