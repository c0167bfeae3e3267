"""A database that is used again has nothing of its last use."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import duckdb
import pytest

from squall.analysis.storage import query as databases
from squall.analysis.storage.query import database

NAMES = "SELECT view_name FROM duckdb_views() WHERE NOT internal UNION SELECT table_name FROM duckdb_tables()"
Rows = list[tuple[object, ...]]


@pytest.fixture(autouse=True)
def _no_database_is_idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(databases, "_idle", {})
    yield
    for one in (one for some in databases._idle.values() for one in some):
        one.close()


def n_idle() -> int:
    return sum(map(len, databases._idle.values()))


def asked(connection: duckdb.DuckDBPyConnection, query: str) -> Rows:
    found: Rows = connection.execute(query).fetchall()
    return found


def fill(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE TABLE a AS SELECT 1")
    connection.execute("CREATE TEMP TABLE b AS SELECT 1")
    connection.execute("CREATE VIEW c AS SELECT 1")
    connection.sql("SELECT 1").create_view("d")


def test_the_next_user_gets_the_same_database_empty_with_a_place_of_its_own(tmp_path: Path) -> None:
    with database(str(tmp_path / "a")) as connection:
        fill(connection)
        assert len(asked(connection, NAMES)) == 4
    assert n_idle() == 1
    with database(str(tmp_path / "b")) as connection:
        assert n_idle() == 0
        assert asked(connection, NAMES) == []
        assert asked(connection, "SELECT current_setting('temp_directory')") == [(str(tmp_path / "b"),)]
        fill(connection)


def test_users_at_one_time_do_not_share(tmp_path: Path) -> None:
    both = Barrier(2, timeout=60)

    def names(name: str) -> Rows:
        with database(str(tmp_path / name)) as connection:
            connection.execute(f"CREATE TABLE {name} AS SELECT 1")
            both.wait()
            found = asked(connection, NAMES)
            both.wait()
            return found

    for _ in range(2):
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(names, ("a", "b"))) == [[("a",)], [("b",)]]
    assert n_idle() == 2


def test_a_database_that_an_error_left_is_not_used_again(tmp_path: Path) -> None:
    with pytest.raises(duckdb.Error), database(str(tmp_path)) as connection:
        connection.execute("SELECT nothing")
    with pytest.raises(KeyboardInterrupt), database(str(tmp_path)):
        raise KeyboardInterrupt
    assert n_idle() == 0


def test_a_database_that_has_spilled_is_not_used_again(tmp_path: Path) -> None:
    with database(str(tmp_path)) as connection:
        connection.execute("SET threads = 1")
        connection.execute("SET memory_limit = '16MiB'")
        connection.execute(
            "CREATE TABLE a AS SELECT hash(range) AS b, hash(range + 1) AS c FROM range(2_000_000)"
        )
        assert asked(connection, "SELECT count(*) > 0 FROM duckdb_temporary_files()") == [(True,)]
    assert n_idle() == 0


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    found = []
    for value in range(3):
        duckdb.sql(f"SELECT {value} AS a").write_parquet(str(path))
        with database(str(tmp_path)) as connection:
            found += asked(connection, f"SELECT a FROM '{path}'")
    assert found == [(0,), (1,), (2,)]


def test_a_fork_does_not_use_the_databases_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database(str(tmp_path)):
        pass
    parents = next(iter(databases._idle.values()))
    monkeypatch.setattr("squall.analysis.storage.query.os.getpid", lambda: -1)
    with database(str(tmp_path)):
        assert len(parents) == 1
    assert {pid: len(some) for pid, some in databases._idle.items() if pid == -1} == {-1: 1}
