"""`open_run`: a run directory as tables, frames and views; read, never written."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import squall
from squall.analysis.record import to_json
from squall.analysis.run import Run, open_run
from squall.analysis.schema import TABLES
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.tables.manifest import Manifest
from squall.analysis.tables.sealed import Verdict
from squall.scenarios.errors import AnalysisError, MissingTable, StoreError
from tests.synthetic_runs import SyntheticRun, synthesise


@pytest.fixture(scope="module")
def run(whole_run: RunStore) -> Run:
    return open_run(whole_run.run_dir)


@pytest.fixture(scope="module")
def with_nulls(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Its first two requests were never sent."""
    made = synthesise()
    requests = made.tables["requests"]
    for index in (0, 1):
        requests["outcome"][index] = "unsent"
        for name in ("sent_ns", "first_byte_ns", "done_ns"):
            requests[name][index] = None
    made.derived = made.seal = False
    return open_run(made.write(tmp_path_factory.mktemp("nulls")).run_dir)


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def unwritten(whole_run: RunStore) -> Iterator[None]:
    """Fails where the run directory is another one afterwards."""
    before = files_of(whole_run.run_dir)
    yield
    assert files_of(whole_run.run_dir) == before


def test_a_run_says_what_and_where_it_is(run: Run, whole_run: RunStore) -> None:
    assert (run.path, run.name, run.is_sealed) == (whole_run.run_dir, whole_run.run, True)
    assert run.tables == tuple(whole_run.tables())
    assert {"requests", "joined", "windows"} <= set(run.tables)
    assert run.manifest == whole_run.manifest
    assert open_run(str(whole_run.run_dir)).name == run.name


@pytest.mark.usefixtures("unwritten")
def test_a_table_is_that_of_the_run(run: Run, whole_run: RunStore) -> None:
    for name in run.tables:
        assert run.table(name).equals(whole_run.read(name))


def test_columns_come_as_they_are_asked_for(run: Run) -> None:
    found = run.table("requests", ["done_ns", "outcome"])
    assert found.column_names == ["done_ns", "outcome"]
    assert found.equals(run.table("requests").select(["done_ns", "outcome"]))
    assert run.table("requests", []).column_names == []


@pytest.mark.parametrize("columns", [None, ["request_id", "outcome"], ["phase"]])
def test_a_phase_is_the_rows_of_that_phase(run: Run, columns: list[str] | None) -> None:
    everything = run.table("requests")
    for phase in ("warmup", "burst", "drain", ""):
        is_in = np.array(everything.column("phase").to_pylist()) == phase
        wanted = everything.filter(pa.array(is_in)).select(columns or everything.column_names)
        assert run.table("requests", columns, phase=phase).to_pylist() == wanted.to_pylist()
    assert run.table("requests", ["request_id"], "burst").num_rows > 1000


def test_texts_stay_dictionaries_in_one_phase(run: Run) -> None:
    assert run.table("requests", phase="burst").schema.equals(TABLES["requests"].arrow())


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda run: run.table("request"), "has no table request; it has requests, "),
        (lambda run: run.table("kernels"), "has no table kernels; it has requests, "),
        (lambda run: run.pandas("kernels"), "has no table kernels; it has requests, "),
        (lambda run: run.table("requests", ["id"]), "requests has no column id; it has run, phase, "),
        (lambda run: run.table("requests", phase="bursts"), "has no phase bursts; it has warmup, burst, drain"),
    ],
)  # fmt: skip
def test_what_there_is_not_is_said_in_one_line(run: Run, ask: object, problem: str) -> None:
    with pytest.raises(AnalysisError, match=problem) as raised:
        ask(run)  # type: ignore[operator]
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, MissingTable) == ("table" in problem)


def test_a_frame_of_pandas_keeps_every_digit_where_a_column_has_nulls(with_nulls: Run) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame, table = with_nulls.pandas("requests"), with_nulls.table("requests")
    assert list(frame.columns) == table.column_names
    for name in ("request_id", "scheduled_ns", "sent_ns", "done_ns"):
        found = [None if pandas.isna(value) else int(value) for value in frame[name]]
        assert found == table.column(name).to_pylist()
    assert frame["sent_ns"].isna().sum() == 2
    assert list(frame["outcome"][:3]) == table.column("outcome").to_pylist()[:3]


def test_the_types_of_a_frame_follow_from_the_schema_not_from_the_rows(run: Run, with_nulls: Run) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    types = [one.pandas("requests").dtypes.astype(str).to_dict() for one in (run, with_nulls)]
    assert types[0] == types[1]
    assert {types[0][name] for name in ("request_id", "scheduled_ns", "sent_ns", "outcome")} == {
        "int64",
        "Int64",
        "category",
    }
    assert types[0]["request_id"] == "int64"
    assert types[0]["sent_ns"] == "Int64"


def test_a_frame_of_polars_has_the_rows_of_the_table(with_nulls: Run) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame = with_nulls.polars("requests", ["request_id", "sent_ns", "outcome"], phase="warmup")
    assert isinstance(frame, polars.DataFrame)
    wanted = with_nulls.table("requests", ["request_id", "sent_ns", "outcome"], "warmup").to_pylist()
    assert frame.to_dicts() == wanted
    assert wanted[0]["sent_ns"] is None


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named_with_the_mend(
    run: Run, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError) as raised:
        getattr(run, package)("requests")
    assert str(raised.value) == (
        f"{package} is not installed: pip install {package}, or take Run.table, which needs it not"
    )
    assert raised.value.name == package


@pytest.mark.usefixtures("unwritten")
def test_every_table_is_a_view(run: Run) -> None:
    with run.duckdb() as connection:
        views = connection.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        assert sorted(name for (name,) in views) == sorted(run.tables)
        for name in run.tables:
            (n_rows,) = connection.sql(f"SELECT count(*) FROM {name}").fetchall()[0]
            assert n_rows == run.table(name).num_rows
        served = connection.sql(
            "SELECT count(*) FROM joined JOIN requests USING (request_id) WHERE requests.outcome = 'ok'"
        ).fetchall()[0]
    assert served[0] == run.table("requests", ["outcome"]).column(0).to_pylist().count("ok")


@pytest.mark.usefixtures("unwritten")
def test_rows_of_a_view_come_in_the_order_of_the_table(run: Run) -> None:
    with run.duckdb() as connection:
        found = connection.sql("SELECT request_id FROM requests").fetchall()
    assert [one for (one,) in found] == run.table("requests", ["request_id"]).column(0).to_pylist()


@pytest.mark.usefixtures("unwritten")
def test_what_a_query_spills_lies_outside_the_run_and_goes_with_the_connection(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with run.duckdb(memory_limit_bytes=40 * 1024**2) as connection:
        connection.execute(
            "CREATE TABLE large AS SELECT *, hash(a)::VARCHAR AS text FROM range(1_500_000) AS made(a)"
        )
        assert [path.name[:13] for path in tmp_path.iterdir()] == ["squall-spill-"]
    assert list(tmp_path.iterdir()) == []


def test_the_memory_of_a_connection_is_bounded(run: Run) -> None:
    with run.duckdb(memory_limit_bytes=64 * 1024**2) as connection:
        assert connection.sql("SELECT current_setting('memory_limit')").fetchall() == [("64.0 MiB",)]
        with pytest.raises(duckdb.OutOfMemoryException):
            connection.sql("SELECT list(a) FROM range(100_000_000) AS made(a)").fetchall()


def test_two_connections_are_apart(run: Run) -> None:
    with run.duckdb() as one, run.duckdb() as other:
        one.execute("CREATE TABLE own AS SELECT 1")
        with pytest.raises(duckdb.CatalogException):
            other.execute("SELECT * FROM own")


def test_a_verdict_is_that_of_the_seal(run: Run, whole_run: RunStore) -> None:
    sealed = to_json(whole_run.manifest.verdict)
    assert run.verdict.status == sealed["status"] == "VALID"
    assert list(run.verdict.reasons) == sealed["reasons"]
    assert [(one.name, one.value, one.is_met) for one in run.verdict.checks] == [
        (one["name"], one["value"], one["is_met"]) for one in sealed["checks"]
    ]
    assert run.verdict.checks


def test_a_run_without_a_summary_says_what_makes_one(run: Run) -> None:
    with pytest.raises(StoreError, match=f"summary.json cannot be read: squall analyze {run.path}"):
        _ = run.summary


def test_a_summary_is_that_of_the_analysis(make_run: Callable[..., RunStore], plain: SyntheticRun) -> None:
    store = make_run(plain)
    text = json.dumps(summarise(store).to_json())
    store.write_text("summary.json", text)
    assert open_run(store.run_dir).summary.to_json() == json.loads(text)


def test_an_aborted_run_and_one_that_goes_on_are_readable(tmp_path: Path, plain: SyntheticRun) -> None:
    plain.seal = False
    store = plain.write(tmp_path)
    going_on = open_run(store.run_dir)
    assert (going_on.is_sealed, going_on.verdict.status, going_on.verdict.checks) == (False, "OPEN", ())
    assert going_on.table("requests").num_rows == store.read("requests").num_rows
    store.seal(Verdict(status="ABORTED", reasons=("interrupted by SIGINT",)))
    aborted = open_run(store.run_dir)
    assert (aborted.verdict.status, aborted.verdict.reasons) == ("ABORTED", ("interrupted by SIGINT",))
    assert aborted.duckdb().sql("SELECT count(*) FROM requests").fetchall() == [
        (store.read("requests").num_rows,)
    ]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_path_that_is_no_run_is_one_line(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path if is_there else tmp_path / "gone"
    with pytest.raises(squall.StoreError, match=f"{path} is not a run directory: ") as raised:
        squall.open_run(path)
    assert "\n" not in str(raised.value)


def test_a_part_that_cannot_be_read_is_one_line(tmp_path: Path, whole_run: RunStore) -> None:
    copy = Path(shutil.copytree(whole_run.run_dir, tmp_path / whole_run.run))
    for part in (copy / "tables" / "requests").iterdir():
        part.write_bytes(b"no Parquet")
    broken = open_run(copy)
    for phase in (None, "burst"):
        with pytest.raises(StoreError, match=f"cannot read requests of {copy}: "):
            broken.table("requests", phase=phase)
    with pytest.raises(AnalysisError, match=str(copy)) as raised:
        broken.duckdb()
    assert "\n" not in str(raised.value)
    assert json.loads((copy / "manifest.json").read_text())["state"] == "sealed"


def test_a_run_shows_itself_in_a_line_and_in_a_notebook(run: Run, tmp_path: Path) -> None:
    assert repr(run) == f"<run {run.name}: VALID, {len(run.tables)} tables>"
    assert run._repr_html_() == f"<p><b>{run.name}</b> VALID</p><p>{', '.join(run.tables)}</p>"
    store = RunStore.create(tmp_path, "a", 0, Manifest())
    store.seal(Verdict(status="ABORTED", reasons=("no <b>model</b> & no server",)))
    shown = open_run(store.run_dir)._repr_html_()
    assert "<ul><li>no &lt;b&gt;model&lt;/b&gt; &amp; no server</li></ul>" in shown
