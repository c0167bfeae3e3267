"""`squall sql`: what a query answers, how it is printed, and that nothing but the tables is within its reach."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from squall.analysis import sql
from squall.analysis.sql import answered
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.store import RunStore
from squall.cluster.cli import app
from squall.cluster.remote.patience import PATIENCE
from tests.overhead_runs import N, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder whose name DuckDB would take for a pattern."""
    return write_run(tmp_path_factory.mktemp("model=x [a]*"), n_failed=3).run_dir


def asked(*words: object) -> Result:
    return CliRunner().invoke(app, ["sql", *map(str, words)])


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


ANSWERS = [
    ("SELECT outcome, count(*) AS n FROM requests GROUP BY outcome ORDER BY n", f"outcome,n\ntimeout,3\nok,{N - 3}\n"),
    ("FROM Requests SELECT count(*) AS n;", f"n\n{N}\n"),
    ("WITH a AS (SELECT 1 AS x) SELECT x FROM a UNION ALL (WITH b AS (SELECT 2) FROM b)", "x\n1\n2\n"),
    ("WITH RECURSIVE a AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM a WHERE x < 3) SELECT sum(x) AS s FROM a",
     "s\n6\n"),
    ("SELECT ok FROM (SELECT outcome FROM requests) PIVOT (count(*) FOR outcome IN ('ok'))", f"ok\n{N - 3}\n"),
    (f"SELECT {'+'.join(['1'] * 300)} AS n", "n\n300\n"),
    ("SELECT 1 AS a, 2 AS a, 3 AS a_1", "a,a_1,a_1_1\n1,2,3\n"),
    ("SELECT '\"query_node\":{\"type\":\"COPY_QUERY_NODE\"' AS a",
     'a\n"""query_node"":{""type"":""COPY_QUERY_NODE"""\n'),
    ("SELECT '=1+1' AS a, chr(27) || 'x' AS b, 'n'::VARCHAR AS \"-c\", NULL AS d, true AS e, [1, 2] AS f, 1e300 AS g",
     "a,b,'-c,d,e,f,g\n'=1+1,\\x1bx,n,,true,\"[1, 2]\",1e+300\n"),
    ("SELECT current_setting('memory_limit') AS m", "m\n2.0 GiB\n"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "printed"), ANSWERS)
def test_an_answer_as_csv(run: Path, query: str, printed: str) -> None:
    done = asked(run, query, "--csv")
    assert (done.exit_code, done.stdout) == (0, printed), done.exception


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT sum(rows)::HUGEINT AS n, 1.50::DECIMAL(5, 2) AS d, 'nan'::DOUBLE AS x, {'a': [DATE '2020-01-01']} AS s"
         " FROM requests WHERE outcome = 'timeout'", [{"n": 3, "d": 1.5, "x": None, "s": {"a": ["2020-01-01"]}}]),
        ("SELECT 1 WHERE false", []),
        ("SELECT range AS i FROM range(30000) ORDER BY i", [{"i": i} for i in range(30_000)]),
        ("SELECT chr(27) AS a, true AS a", [{"a": "\x1b", "a_1": True}]),
    ],
)  # fmt: skip
def test_an_answer_as_json(run: Path, query: str, rows: list[object]) -> None:
    done = asked(run, query, "--json")
    assert json.loads(done.stdout) == rows
    assert "\x1b" not in done.stdout


def test_the_screen_has_what_has_room_and_says_how_much_more_there_is(run: Path) -> None:
    shown = asked(run, "FROM requests").stdout
    assert f"{N - 200} more rows: --csv or --json prints all" in shown
    assert " more columns, without room here: " in shown
    assert len(shown.splitlines()) < 210
    assert max(map(len, shown.splitlines())) <= 80
    query = (
        "SELECT 1795250252000000001 AS t_ns, 1234567.8 AS a, 0.000123456 AS b, chr(27) || 'x' AS c, NULL AS d"
    )
    few = asked(run, query)
    assert few.stdout.splitlines()[2].split() == [
        "1795250252000000001",
        "1234568",
        "0.0001235",
        "\\x1bx",
        "null",
    ]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", "query: line 1, column 1: syntax error"),
        ("SELECT 'é',\n  outcom FROM requests", "query: line 2, column 3: Referenced column \"outcom\" not found"),
        ("SELECT 'a'::INT", "query: line 1, column 11: Could not convert string 'a'"),
        ("SELECT (CASE WHEN range > 20000 THEN 'a' ELSE '1' END)::INT FROM range(30000)", "Could not convert"),
        ("SELECT * FROM request", "query: line 1, column 15: there is no table request; there are requests, "),
        ("SELECT * FROM kernels", "there is no table kernels; there are requests, "),
        ("SELECT * FROM stores", "there is no table stores; "),
        ("SELECT $1", "query: Values were not provided"),
        ("SELECT error('a\nb\x1b')", "query: a"),
        *((query, "one SELECT is taken") for query in (
            "", "/* nothing */", "SELECT 1; SELECT 2", "COPY requests TO 'PART' (FORMAT parquet)",
            "EXPLAIN ANALYZE COPY (SELECT 1) TO 'PART'",
            "WITH a AS (COPY (SELECT 1 AS x) TO 'PART' (FORMAT parquet, USE_TMP_FILE false)) FROM a",
            "WITH a AS (COPY (SELECT 1 AS x) TO 'NEW') FROM a",
            "WITH b AS (WITH a AS (COPY (SELECT 1 AS x) TO 'PART' (FORMAT parquet, USE_TMP_FILE false)) FROM a) FROM b",
            "SELECT (WITH a AS (COPY (SELECT 1 AS x) TO 'PART' (FORMAT parquet, USE_TMP_FILE false)) FROM a)",
            "ATTACH 'NEW'", "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true",
            "RESET lock_configuration",
            "PRAGMA enable_profiling", "CREATE TABLE a AS SELECT 1", "CALL enable_logging(storage = 'stdout')",
            "EXPORT DATABASE 'NEW'",
        )),
        *((query, "") for query in (
            "FROM query('WITH a AS (COPY (SELECT 1 AS x) TO ''PART'' (FORMAT parquet, USE_TMP_FILE false)) FROM a')",
            "FROM read_text('OTHER')", "FROM read_csv('OTHER')", "FROM read_blob('/etc/hostname')", "FROM 'OTHER'",
            "FROM glob('/*')",
            "FROM sniff_csv('OTHER')", "FROM read_parquet('FOLDER/*')",
            "FROM read_parquet('https://127.0.0.1:9/x.parquet')",
            "FROM read_parquet('s3://a/b.parquet')",
            "FROM enable_logging(storage = 'file', storage_config = {'path': 'NEW'})",
            "FROM enable_profiling(format = 'json', save_location = 'NEW')",
        )),
    ],
)  # fmt: skip
def test_what_is_no_query_over_the_tables_is_refused_in_one_line_and_does_nothing(
    run: Path, query: str, said: str
) -> None:
    (part,) = (run / "tables" / "requests").iterdir()
    places = {"PART": part, "FOLDER": part.parent, "NEW": run / "new", "OTHER": run / "manifest.json"}
    before = files_of(run)
    for name, path in places.items():
        query = query.replace(name, str(path).replace("'", "''"))
    done = asked(run, query)
    assert done.exit_code == 1
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.stdout == ""
    assert files_of(run) == before


@pytest.mark.parametrize(
    "words", [(), ("SELECT 1", "--tables"), ("SELECT 1", "--csv", "--json"), ("--tables", "--csv")]
)
def test_what_is_asked_is_one_thing(run: Path, words: tuple[str, ...]) -> None:
    assert str(asked(run, *words).exception).startswith("sql: give a query")


def test_tables_are_listed_with_units_and_meaning(run: Path) -> None:
    listed = json.loads(asked(run, "--tables", "--json").stdout)
    assert [one["name"] for one in listed] == RunStore.open(run).tables()
    for one in listed:
        columns = [(column.name, column.unit, column.meaning) for column in TABLES[one["name"]].columns]
        assert [(own["name"], own["unit"], own["meaning"]) for own in one["columns"]] == columns
        assert one["made_in"] == ""
    assert asked(run, "--tables").stdout.startswith("requests: one row per scheduled arrival")


def test_a_folder_of_runs_is_one_table_and_a_run_that_cannot_be_read_is_left_out(
    run: Path, tmp_path: Path
) -> None:
    other = write_run(tmp_path).run_dir
    for name in ("same", "damaged"):
        shutil.copytree(run, tmp_path / name)
    (part,) = (tmp_path / "damaged" / "tables" / "requests").iterdir()
    part.write_bytes(part.read_bytes()[:-9])
    done = asked(tmp_path, "SELECT run, count(*) AS n FROM requests GROUP BY run ORDER BY run", "--json")
    assert json.loads(done.stdout) == [{"run": name, "n": N} for name in sorted((other.name, run.name))]
    assert done.stderr.startswith(f"left out: {tmp_path}/damaged")
    assert "has no run in it" in str(asked(tmp_path / "same" / "tables", "SELECT 1").exception)


def test_rows_come_as_they_are_made(run: Path) -> None:
    with answered([RunStore.open(run)], "SELECT range AS i FROM range(1000000000000)") as answer:
        assert next(answer.rows()) == (0,)


@pytest.mark.parametrize(
    "query",
    ["SELECT count(*) FROM range(1000000000000) WHERE range % 7 = 9",
     "SELECT range FROM range(1000000000000) WHERE range < 5 OR range % 1000000000000 = 9"],
)  # fmt: skip
def test_a_signal_ends_a_query(run: Path, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    begun = sql._interruptibly

    def watched(*given: Any) -> Any:
        if timer.ident is None:
            timer.start()  # once signals are handled
        return begun(*given)

    monkeypatch.setattr(sql, "_interruptibly", watched)
    try:
        done = asked(run, query, "--csv")
    finally:
        timer.join()
        PATIENCE.restore()  # as what is asked next finds it
    assert (done.exit_code, done.stderr) == (1, "squall: interrupted by SIGINT\n")
