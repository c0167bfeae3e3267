"""`open_run`: a run directory as tables, frames and views; read, never written."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import squall
from squall.analysis.report.summary import summarise
from squall.analysis.run import Run, open_run
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
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


@pytest.mark.usefixtures("unwritten")
def test_a_run_says_what_it_is_and_has_every_table_of_the_run(run: Run, whole_run: RunStore) -> None:
    assert (run.path, run.name, run.is_sealed) == (whole_run.run_dir, whole_run.run, True)
    assert run.manifest == whole_run.manifest
    assert run.verdict == whole_run.manifest.verdict
    assert run.tables == tuple(whole_run.tables())
    for name in run.tables:
        assert run.table(name).equals(whole_run.read(name))


@pytest.mark.parametrize("columns", [None, ["done_ns", "outcome"], ["phase"]])
@pytest.mark.parametrize("phase", [None, "warmup", "burst", "drain", ""])
def test_columns_come_as_they_are_asked_for_of_all_phases_or_one(
    run: Run, columns: list[str] | None, phase: str | None
) -> None:
    schema = TABLES["requests"].arrow()
    names = schema.names if columns is None else columns
    rows = [row for row in run.table("requests").to_pylist() if phase is None or row["phase"] == phase]
    found = run.table("requests", columns, phase)
    assert found.to_pylist() == [{name: row[name] for name in names} for row in rows]
    assert found.schema.equals(pa.schema([schema.field(name) for name in names]))


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


def test_a_frame_of_pandas_keeps_every_digit_and_has_the_types_of_the_schema(
    run: Run, with_nulls: Run
) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame, table = with_nulls.pandas("requests"), with_nulls.table("requests")
    assert list(frame.columns) == table.column_names
    for name in ("request_id", "scheduled_ns", "sent_ns", "outcome"):
        assert [None if pandas.isna(value) else value for value in frame[name]] == table.column(
            name
        ).to_pylist()
    assert frame["sent_ns"].isna().sum() == 2
    types = {name: str(type_) for name, type_ in frame.dtypes.items()}
    assert types == {name: str(type_) for name, type_ in run.pandas("requests").dtypes.items()}
    assert (types["request_id"], types["sent_ns"], types["outcome"]) == ("int64", "Int64", "category")


def test_a_frame_of_polars_has_the_rows_of_the_table(with_nulls: Run) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    asked = ("requests", ["request_id", "sent_ns", "outcome"], "warmup")
    frame = with_nulls.polars(*asked)
    assert isinstance(frame, polars.DataFrame)
    assert frame.to_dicts() == with_nulls.table(*asked).to_pylist()


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
def test_every_table_is_a_view_whose_rows_come_in_its_order(run: Run) -> None:
    with run.duckdb() as connection:
        views = connection.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
        assert sorted(name for (name,) in views) == sorted(run.tables)
        for name in run.tables:
            assert connection.sql(f"SELECT count(*) FROM {name}").fetchall() == [(run.table(name).num_rows,)]
        ids = connection.sql("SELECT request_id FROM requests").fetchall()
    assert [number for (number,) in ids] == run.table("requests", ["request_id"]).column(0).to_pylist()


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
    n_rows = store.read("requests").num_rows
    aborted = Verdict(status="ABORTED", reasons=("interrupted by SIGINT",))
    for verdict in (Verdict(status="OPEN"), aborted):
        if verdict is aborted:
            store.seal(verdict)
        found = open_run(store.run_dir)
        assert (found.is_sealed, found.verdict) == (verdict is aborted, verdict)
        assert found.table("requests").num_rows == n_rows
        assert found.duckdb().sql("SELECT count(*) FROM requests").fetchall() == [(n_rows,)]


def test_a_path_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(squall.StoreError, match=f"^{tmp_path}/gone is not a run directory: [^\n]+$"):
        squall.open_run(tmp_path / "gone")


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
