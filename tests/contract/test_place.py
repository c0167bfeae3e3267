"""What every place of a run's files does: a folder here, an object store."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.analysis.storage.places import duckdb_files
from squall.analysis.storage.places.duckdb_files import read_parquet, register_places
from squall.analysis.storage.places.local_folder import LocalFolder
from squall.analysis.storage.places.mirror import Mirror
from squall.analysis.storage.places.object_folder import ObjectFolder
from squall.analysis.storage.places.place import (
    FarPart,
    Place,
    bytes_of,
    fetch,
    metadata_of,
    read_bytes,
    rows_of,
    sha256_of,
)
from tests.object_store import BUCKET, ObjectStore, object_store

TABLE = pa.table({"number": list(range(1_000)), "text": [f"row {n} of many" for n in range(1_000)]})
NAME = "tables/requests/part-00000.parquet"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment().items():
            patch.setenv(name, value)
        yield started


@pytest.fixture(params=["folder", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return LocalFolder(tmp_path / "run")
    request.getfixturevalue("server")
    return ObjectFolder(f"s3://{BUCKET}/{tmp_path.name}/run")


@pytest.fixture
def part(place: Place, tmp_path: Path) -> FarPart:
    pq.write_table(TABLE, tmp_path / "made.parquet", row_group_size=100)
    place.send(NAME, tmp_path / "made.parquet")
    return FarPart(place, NAME)


def test_a_place_that_nobody_wrote_to_is_empty(place: Place) -> None:
    assert place.sizes() == {}
    with pytest.raises(FileNotFoundError):
        place.open("manifest.json")


def test_files_are_read_as_they_were_written_and_listed_by_name(place: Place) -> None:
    place.write("tables/b/part-1", b"beta")
    place.write("manifest.json", b"old")
    place.write("manifest.json", b"newer")
    assert place.sizes() == {"manifest.json": 5, "tables/b/part-1": 4}
    assert place.sizes("tables/") == {"tables/b/part-1": 4}
    assert read_bytes(place, "manifest.json") == b"newer"
    place.remove("manifest.json")
    place.remove("manifest.json")
    assert list(place.sizes()) == ["tables/b/part-1"]


def test_it_pickles_without_a_secret(place: Place) -> None:
    place.write("a", b"1")
    pickled = pickle.dumps(place)
    assert b"of-a-test" not in pickled
    again = pickle.loads(pickled)
    assert again == place
    assert read_bytes(again, "a") == b"1"


def test_a_part_there_is_read_as_one_here(part: FarPart, tmp_path: Path) -> None:
    here = tmp_path / "made.parquet"
    assert rows_of(part).to_pylist() == TABLE.to_pylist()
    assert rows_of(part, ["text"]).column_names == ["text"]
    assert metadata_of(part).num_row_groups == 10
    assert (bytes_of(part), sha256_of(part)) == (bytes_of(here), sha256_of(here))
    fetch(part.place, part.file, tmp_path / "back" / "part.parquet")
    assert (tmp_path / "back" / "part.parquet").read_bytes() == here.read_bytes()


@pytest.fixture
def large(place: Place, tmp_path: Path) -> FarPart:
    """60,000 rows of six columns in 30 row groups."""
    rows = pa.table({name: list(range(60_000)) for name in "abcdef"})
    pq.write_table(rows, tmp_path / "large.parquet", row_group_size=2_000, use_dictionary=False)
    place.send("large.parquet", tmp_path / "large.parquet")
    return FarPart(place, "large.parquet")


def test_threads_of_a_query_do_not_disturb_one_another(large: FarPart) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET threads = 8")
        connection.execute("SET enable_external_file_cache = false")
        register_places(connection)
        register_places(connection)
        sums = ", ".join(f"sum({name})" for name in "abcdef")
        for _ in range(5):
            (found,) = connection.execute(f"SELECT {sums} FROM {read_parquet([large])}").fetchall()
            assert set(found) == {sum(range(60_000))}


def test_only_the_row_groups_and_columns_that_a_query_needs_are_fetched(
    large: FarPart, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    own = duckdb_files._SharedFile.read

    def counted(file: duckdb_files._SharedFile, n_bytes: int) -> bytes:
        read.append(n_bytes)
        return own(file, n_bytes)

    def bytes_for(query: str) -> int:
        read.clear()
        with duckdb.connect() as connection:
            connection.execute("SET enable_external_file_cache = false")
            register_places(connection)
            connection.execute(query.format(read_parquet([large]))).fetchall()
        return sum(read)

    monkeypatch.setattr(duckdb_files._SharedFile, "read", counted)
    every, size = bytes_for("SELECT sum(a + b + c + d + e + f) FROM {}"), bytes_of(large)
    assert every > 0.9 * size
    assert bytes_for("SELECT sum(a) FROM {}") < size / 3
    assert bytes_for("SELECT sum(a) FROM {} WHERE a >= 59_990") < size / 10


def test_a_mirror_is_whole_once_it_is_finished(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "mirrored"
    (folder / "tables" / "a").mkdir(parents=True)
    (folder / "tables" / "a" / "part-0").write_bytes(b"rows")
    (folder / "tables" / "a" / "part-1.open").write_bytes(b"half")
    (folder / ".reserve").write_bytes(b"room")
    (folder / "manifest.json").write_bytes(b"sealed")
    place.write("tables/a/part-7", b"dropped since")
    mirror = Mirror(folder, place)
    mirror.put("tables/a/part-0")
    mirror.put("tables/a/gone")
    mirror.put("manifest.json", b"open")
    mirror.finish("manifest.json")
    assert place.sizes() == {"manifest.json": 6, "tables/a/part-0": 4}
    (folder / "tables" / "a" / "part-0").write_bytes(b"ROWS")
    Mirror(folder, place).finish("manifest.json")
    assert read_bytes(place, "tables/a/part-0") == b"ROWS"
