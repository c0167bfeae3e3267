"""A run goes to the object storage that the user names, and what others have there stays."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from squall.analysis.schema import TABLES
from squall.analysis.storage import home, store
from squall.analysis.storage.home import send_away, sending_command
from squall.analysis.storage.places.local_folder import LocalFolder
from squall.analysis.storage.places.place import Place
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import StoreError
from tests.planted_runs import Shape, plant


@dataclass(frozen=True)
class Bucket(LocalFolder):
    """A folder that stands for one of object storage."""

    @property
    def address(self) -> str:
        return f"s3://{self.path.parent.name}/{self.path.name}"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunStore:
    """Sealed and whole. `s3://A/B` is the folder `there/A/B`."""

    def place_at(address: str) -> Place | None:
        scheme, _, path = address.partition("s3://")
        return None if scheme else Bucket(tmp_path / "there" / path)

    monkeypatch.setattr(store, "place_at", place_at)
    monkeypatch.setattr(home, "place_at", place_at)
    return plant(Shape(seed=5, n_requests=30)).write(tmp_path / "runs")


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def with_address(run: RunStore, address: str) -> RunStore:
    """The run as its manifest says that it goes there."""
    path = run.run_dir / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "copied_to": address}))
    return RunStore.open(run.run_dir)


def test_what_the_manifest_says_sends_nothing(run: RunStore, tmp_path: Path) -> None:
    store = with_address(run, f"s3://theirs/{run.run}")
    assert send_away(store, "") == str(run.run_dir)
    assert not (tmp_path / "there").exists()
    assert run.run_dir.is_dir()


def test_it_goes_where_the_user_says_and_states_that(run: RunStore, tmp_path: Path) -> None:
    store = with_address(run, f"s3://theirs/{run.run}")
    address = f"s3://mine/{run.run}"
    tables = {name: content for name, content in files(run.run_dir).items() if name.startswith("tables/")}
    assert send_away(store, address) == address
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine"]
    there = files(tmp_path / "there" / "mine" / run.run)
    assert {name: content for name, content in there.items() if name.startswith("tables/")} == tables
    assert json.loads(there["manifest.json"])["copied_to"] == address
    assert not run.run_dir.exists()


def of_another_run(there: Path, manifest: dict[str, object]) -> None:
    (there / "manifest.json").write_text(json.dumps({**manifest, "run": "another"}))


def begun_at_another_time(there: Path, manifest: dict[str, object]) -> None:
    (there / "manifest.json").write_text(json.dumps({**manifest, "started_ns": 1}))


def no_run(there: Path, _: dict[str, object]) -> None:
    (there / "letters.txt").write_text("mine")


@pytest.mark.parametrize("has", [of_another_run, begun_at_another_time, no_run])
def test_what_lies_there_already_is_not_overwritten(
    run: RunStore, tmp_path: Path, has: Callable[[Path, dict[str, object]], None]
) -> None:
    there = tmp_path / "there" / "mine" / run.run
    there.mkdir(parents=True)
    has(there, json.loads((run.run_dir / "manifest.json").read_text()))
    before, here = files(there), files(run.run_dir)
    with pytest.raises(StoreError, match="has something else: remove that, or name another place") as raised:
        send_away(run, f"s3://mine/{run.run}")
    assert len(str(raised.value).splitlines()) == 1
    assert (files(there), files(run.run_dir)) == (before, here)


@pytest.mark.parametrize("name", ["index.html", "report.html", "logs/server-0.log"])
def test_what_lies_there_without_a_manifest_stays_whatever_the_run_directory_has(
    run: RunStore, tmp_path: Path, name: str
) -> None:
    there = tmp_path / "there" / "mine" / run.run
    for folder, text in ((there, "mine"), (run.run_dir, "planted")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with pytest.raises(StoreError, match="has something else: remove that, or name another place"):
        send_away(run, f"s3://mine/{run.run}")
    assert files(there) == {name: b"mine"}


def put_log(folder: Path) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "server-0.log").write_text("as it was")


def state_another_part(there: Path) -> None:
    document = json.loads((there / "manifest.json").read_text())
    document["tables"]["requests"]["files"][0]["sha256"] = "0" * 64
    (there / "manifest.json").write_text(json.dumps(document))


def have_another_log(there: Path) -> None:
    (there / "logs" / "server-0.log").write_text("it is not")


def have_another_log_and_report(there: Path) -> None:
    (there / "logs" / "server-0.log").write_text("it is not")
    (there / "report.html").write_text("of the user's run")


def have_one_more_log(there: Path) -> None:
    (there / "logs" / "server-1.log").write_text("only there")


@pytest.mark.parametrize(
    "differ",
    [state_another_part, have_another_log, have_another_log_and_report, have_one_more_log],
)
def test_a_sealed_run_there_is_not_replaced_by_an_altered_copy(
    run: RunStore, tmp_path: Path, differ: Callable[[Path], None]
) -> None:
    put_log(run.run_dir)
    run.write_text("report.html", "of the altered copy")
    there = tmp_path / "there" / "mine" / run.run
    shutil.copytree(run.run_dir, there)
    differ(there)
    before, here = files(there), files(run.run_dir)
    told = "has this run with other records or logs, and stays as it is: name another place by --out"
    with pytest.raises(StoreError, match=told):
        send_away(run, f"s3://mine/{run.run}")
    assert (files(there), files(run.run_dir)) == (before, here)


def test_a_sealed_run_that_lies_there_already_and_is_equal_is_sent(run: RunStore, tmp_path: Path) -> None:
    put_log(run.run_dir)
    run.write_text("report.html", "the report")
    there = tmp_path / "there" / "mine" / run.run
    shutil.copytree(run.run_dir, there)
    before = files(there)
    assert send_away(run, f"s3://mine/{run.run}") == f"s3://mine/{run.run}"
    assert {**files(there), "manifest.json": b""} == {**before, "manifest.json": b""}
    assert not run.run_dir.exists()


@pytest.mark.parametrize("has_report", [False, True])
def test_what_is_derived_there_is_replaced_by_what_is_made_anew_here(
    run: RunStore, tmp_path: Path, has_report: bool
) -> None:
    """As a process leaves it there that was killed while it derived, or an older squall that made other figures."""
    run.replace_derived("joined", TABLES["joined"].arrow().empty_table())
    there = tmp_path / "there" / "mine" / run.run
    shutil.copytree(run.run_dir, there)
    (there / "summary.json").write_text("{}")
    (there / "tables" / "joined" / "part-00000.parquet").write_text("not as it was sealed")
    if has_report:
        (there / "report.html").write_text("of before")
    run.replace_derived("windows", TABLES["windows"].arrow().empty_table())
    run.write_text("summary.json", "made anew")
    run.write_text("report.html", "made anew")
    here = files(run.run_dir)
    send_away(run, f"s3://mine/{run.run}")
    assert {**files(there), "manifest.json": b""} == {**here, "manifest.json": b""}
    assert "windows" in json.loads(files(there)["manifest.json"])["tables"]


def test_a_users_files_in_a_run_directory_are_neither_sent_nor_removed(run: RunStore, tmp_path: Path) -> None:
    there = tmp_path / "there" / "mine" / run.run
    for name in ("notes.txt", "sub/thesis.tex", ".hidden"):
        (run.run_dir / name).parent.mkdir(exist_ok=True)
        (run.run_dir / name).write_text("a user's")
    (run.run_dir / ".fetched").mkdir()
    run_dir = run.run_dir
    sent = {name for name in files(run_dir) if name.startswith("tables/")}
    send_away(run, f"s3://mine/{run.run}")
    assert set(files(there)) == {"manifest.json", *sent}
    assert sorted(files(run_dir)) == [".hidden", "notes.txt", "sub/thesis.tex"]
    assert not (run_dir / ".fetched").exists()


def test_what_was_broken_off_is_made_whole_and_what_else_lies_there_stays(
    run: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there" / "mine" / run.run
    whole = {name: content for name, content in files(run.run_dir).items() if name.startswith("tables/")}
    send = LocalFolder.send

    def break_off(place: Bucket, name: str, path: Path) -> None:
        if name == "tables/requests/part-00000.parquet":
            raise OSError(5, "Input/output error")
        send(place, name, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "send", break_off)
        with pytest.raises(StoreError, match="input/output error; the run is whole in"):
            send_away(run, f"s3://mine/{run.run}")
    assert json.loads(files(there)["manifest.json"])["state"] == "open"
    (there / "notes.txt").write_text("a user's")
    send_away(RunStore.open(run.run_dir), f"s3://mine/{run.run}")
    assert {name: files(there)[name] for name in whole} == whole
    assert json.loads(files(there)["manifest.json"])["state"] == "sealed"
    assert files(there)["notes.txt"] == b"a user's"


@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_nothing_that_leads_out_of_the_run_is_sent(run: RunStore, tmp_path: Path, kind: str) -> None:
    (tmp_path / "key").write_text("secret")
    if kind == "a link":
        (run.run_dir / "logs" / "key.log").parent.mkdir(exist_ok=True)
        (run.run_dir / "logs" / "key.log").symlink_to(tmp_path / "key")
    else:
        os.mkfifo(run.run_dir / "pipe")
    with pytest.raises(StoreError, match=f"is {kind}, which squall leaves in no folder"):
        send_away(run, f"s3://mine/{run.run}")
    assert not (tmp_path / "there").exists()
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
def test_the_command_that_sends_is_safe_to_be_typed(
    run: RunStore, copied_to: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    store = with_address(run, copied_to.replace("RUN", run.run))
    assert sending_command(store) == f"squall resume {run.run_dir} --out {shown}"
    store.run_dir = Path("/tmp/it's mine")
    assert sending_command(store).startswith("squall resume '/tmp/it'\"'\"'s mine' --out ")


def test_a_run_of_the_same_name_here_is_not_sent_in_the_place_of_one_there(
    run: RunStore, tmp_path: Path
) -> None:
    there = tmp_path / "there" / "theirs" / run.run
    there.mkdir(parents=True)
    address = f"s3://theirs/{run.run}"
    manifest = (run.run_dir / "manifest.json").read_text()
    (there / "manifest.json").write_text(manifest)
    with pytest.raises(StoreError, match=f"has another run than {address}: move it away"):
        home.bring_home(address, run.run_dir)
    own = with_address(run, address)
    home.bring_home(address, run.run_dir)
    assert own.manifest == replace(run.manifest, copied_to=address)


@pytest.fixture
def elsewhere(run: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the run, which is in object storage alone; `runs` is the working folder's."""
    monkeypatch.chdir(tmp_path)
    address = f"s3://theirs/{run.run}"
    with_address(run, address)
    shutil.copytree(run.run_dir, tmp_path / "there" / "theirs" / run.run)
    shutil.rmtree(run.run_dir)
    return address


def test_a_run_of_a_bucket_takes_no_folder_that_has_files_and_no_manifest(
    run: RunStore, tmp_path: Path, elsewhere: str
) -> None:
    folder = tmp_path / "runs" / run.run
    (folder / "sub").mkdir(parents=True)
    (folder / "summary.json").write_text("of a decision")
    (folder / "sub" / "thesis.tex").write_text("a user's")
    before = files(folder)
    with pytest.raises(
        StoreError, match=f"{run.run} has files of something else than {elsewhere}: move it away"
    ):
        home.bring_home(elsewhere, home.home_of(elsewhere))
    assert files(folder) == before


def test_a_run_is_brought_without_what_squall_does_not_write(
    run: RunStore, tmp_path: Path, elsewhere: str
) -> None:
    there = tmp_path / "there" / "theirs" / run.run
    whole = files(there)
    (there / ".resumed-..").mkdir()
    (there / ".resumed-.." / "x").write_text("planted")
    (there / "notes.txt").write_text("a user's")
    folder = home.home_of(elsewhere)
    home.bring_home(elsewhere, folder)
    assert files(folder) == whole


def test_a_run_that_is_broken_off_while_it_is_brought_leaves_nothing(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_place: Place, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half of it")
        if name.startswith("tables/"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(home, "fetch", fetch)
    folder = home.home_of(elsewhere)
    with pytest.raises(StoreError, match=f"cannot bring {elsewhere} to .*: input/output error"):
        home.bring_home(elsewhere, folder)
    assert list(folder.iterdir()) == []


def test_a_run_is_brought_where_a_killed_process_left_a_part_of_it(
    run: RunStore, tmp_path: Path, elsewhere: str
) -> None:
    left = tmp_path / "runs" / run.run / ".scratch-dead"
    (left / "tables").mkdir(parents=True)
    (left / "manifest.json").write_text("half of it")
    folder = home.home_of(elsewhere)
    home.bring_home(elsewhere, folder)
    assert files(folder) == files(tmp_path / "there" / "theirs" / run.run)
    assert not (folder / ".scratch-dead").exists()


@pytest.fixture
def moved_in_part(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run whose process was ended when it had put two things of it there."""
    rename, folder = Path.rename, home.home_of(elsewhere)

    def break_off(path: Path, target: Path) -> None:
        rename(path, target)
        if len([one for one in folder.iterdir() if not one.name.startswith(".")]) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", break_off)
        with pytest.raises(KeyboardInterrupt):
            home.bring_home(elsewhere, folder)
    return folder


def test_a_run_whose_move_into_its_folder_was_broken_off_is_moved_whole(
    run: RunStore, tmp_path: Path, elsewhere: str, moved_in_part: Path
) -> None:
    assert not (moved_in_part / "manifest.json").exists()
    home.bring_home(elsewhere, moved_in_part)
    assert files(moved_in_part) == files(tmp_path / "there" / "theirs" / run.run)


@pytest.mark.usefixtures("elsewhere")
def test_a_run_that_was_brought_is_gone_on_with_whatever_address_its_manifest_says(
    run: RunStore, tmp_path: Path
) -> None:
    (tmp_path / "there" / "theirs").rename(tmp_path / "there" / "copy")
    address = f"s3://copy/{run.run}"
    folder = home.home_of(address)
    home.bring_home(address, folder)
    home.bring_home(address, folder)
    assert send_away(RunStore.open(folder), address) == address
    assert not folder.exists()


def test_a_run_of_another_address_is_not_put_to_what_was_broken_off(
    run: RunStore, tmp_path: Path, moved_in_part: Path
) -> None:
    (tmp_path / "there" / "theirs").rename(tmp_path / "there" / "another")
    with pytest.raises(StoreError, match=f"has files of something else than s3://another/{run.run}"):
        home.bring_home(f"s3://another/{run.run}", moved_in_part)
