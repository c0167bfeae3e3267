"""What object storage does: a real server, and the bucket in memory that other tests take for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.analysis.storage import object_folder
from squall.analysis.storage.mirror import Mirror
from squall.analysis.storage.object_folder import ObjectFolder
from tests.bucket import bucket
from tests.object_store import BUCKET, ObjectStore, object_store


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment().items():
            patch.setenv(name, value)
        object_folder._file_system.cache_clear()
        yield started


@pytest.fixture(params=["in memory", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectFolder:
    if request.param == "server":
        request.getfixturevalue("server")
    else:
        bucket(monkeypatch)
    return ObjectFolder(f"s3://{BUCKET}/{tmp_path.name}/run")


def test_a_place_that_nothing_was_written_to_is_empty(place: ObjectFolder) -> None:
    assert place.sizes() == {}
    with pytest.raises(FileNotFoundError):
        place.open("manifest.json")


def test_files_are_read_as_they_were_written_and_listed_by_name(place: ObjectFolder) -> None:
    place.write("tables/b/part-1", b"beta")
    place.write("manifest.json", b"old")
    place.write("manifest.json", b"newer")
    assert place.sizes() == {"manifest.json": 5, "tables/b/part-1": 4}
    assert place.read("manifest.json", 5) == b"newer"
    with pytest.raises(OSError, match="it has more than"):
        place.read("manifest.json", 4)
    place.remove("manifest.json")
    assert list(place.sizes()) == ["tables/b/part-1"]
    with pytest.raises(FileNotFoundError):
        place.open("manifest.json")


def test_a_large_file_comes_back_as_it_was_sent(place: ObjectFolder, tmp_path: Path) -> None:
    content = bytes(range(256)) * 80_000
    (tmp_path / "large").write_bytes(content)
    place.send("tables/a/large", tmp_path / "large")
    place.fetch("tables/a/large", tmp_path / "back" / "large")
    assert (tmp_path / "back" / "large").read_bytes() == content
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["large"]


def test_a_mirror_is_whole_once_it_is_finished(place: ObjectFolder, tmp_path: Path) -> None:
    folder = tmp_path / "mirrored"
    (folder / "tables" / "a").mkdir(parents=True)
    for name, content in (
        ("tables/a/part-0", b"rows"),
        ("tables/a/part-1.open", b"half"),
        (".reserve", b"room"),
        ("manifest.json", b"sealed"),
    ):
        (folder / name).write_bytes(content)
    place.write("tables/a/part-7", b"dropped since")
    mirror = Mirror(folder, place)
    mirror.put("tables/a/part-0")
    mirror.put("tables/a/gone")
    mirror.put("manifest.json", b"open")
    mirror.finish("manifest.json")
    assert place.sizes() == {"manifest.json": 6, "tables/a/part-0": 4}
    (folder / "tables" / "a" / "part-0").write_bytes(b"ROWS")
    Mirror(folder, place).finish("manifest.json")
    assert place.read("tables/a/part-0", 4) == b"ROWS"
