"""Runs whose tables contradict themselves, lack something or hold nonsense: one line that says what is wrong, or a
result that says what is missing. Never a traceback, never a figure that is silently wrong."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.compute as pc
import pytest

from squall.analysis import derive as derive_module
from squall.analysis.derive import derive
from squall.analysis.record import to_json
from squall.analysis.storage.beneath import new_file
from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.query import in_turn
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
from squall.scenarios.errors import AnalysisError, SquallError, StoreError
from tests.known import known
from tests.planted_runs import START_NS, Planted, Row, Shape, plant

MS, HOUR_NS = 1_000_000, 3600 * 10**9
SHAPE = Shape(seed=3, n_requests=16, servers=("traced",), features=frozenset({"blocks", "streams"}))
EVENTS = ("kernels", "memcpys", "memsets", "syncs", "cuda_api", "osrt", "nvtx", "clock_marks")
TIMES = ("t_ns", "interval_ns")
DERIVED = ("batch_costs", "joined", "windows")


@pytest.fixture(scope="module", autouse=True)
def no_page() -> Iterator[None]:
    """The report is drawn of the summary alone, and takes as long as all the rest."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(derive_module, "write_report", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A sealed run with all that is derived of it."""
    store = planted().write(tmp_path_factory.mktemp("derived"))
    derive(store)
    return store


def planted(change: Callable[[Planted], Any] | None = None, shape: Shape = SHAPE) -> Planted:
    run = plant(shape)
    if change is not None:
        change(run)
    return run


def each(table: str, change: Callable[[int, Row], Any]) -> Callable[[Planted], None]:
    """Changes every row of `table`."""

    def all_rows(run: Planted) -> None:
        for number, row in enumerate(run.rows[table]):
            change(number, row)

    return all_rows


def without(*tables: str) -> Callable[[Planted], None]:
    def drop(run: Planted) -> None:
        for table in tables:
            run.rows.pop(table, None)

    return drop


def unmet(summary: Summary) -> set[str]:
    return {check.name for check in summary.self_checks if check.status == "unmet"}


def refusal(store: RunStore) -> str:
    with pytest.raises(SquallError) as refused:
        derive(store)
    assert isinstance(refused.value, AnalysisError | StoreError)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def two_nodes_one_name(run: Planted) -> None:
    run.rows["batches"] += [{**row, "node": "node-9"} for row in run.rows["batches"]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (two_nodes_one_name, "two servers are named server-0"),
        (lambda run: run.rows["batches"].append(dict(run.rows["batches"][0])), "is twice in the table batches"),
    ],
)  # fmt: skip
def test_tables_that_contradict_themselves_are_refused(
    tmp_path: Path, change: Callable[[Planted], Any], said: str
) -> None:
    assert said in refusal(planted(change).write(tmp_path))


def spoil_events(run: Planted) -> None:
    """Some events end before they start, some are of a server that nobody knows; ids repeat in the load and batches."""
    for row in run.rows["kernels"][:5]:
        row["start_ns"], row["end_ns"] = row["end_ns"] + 7, row["start_ns"]
    run.rows["kernels"] += [{**row, "server": "server-7"} for row in run.rows["kernels"][-3:]]
    run.rows["requests"] += [dict(row) for row in run.rows["requests"][:2]]
    ids = run.rows["batches"][0]["request_ids"]
    run.rows["batches"][-1]["request_ids"] = [*run.rows["batches"][-1]["request_ids"], *ids, ids[0], 10**6]


def spoil_samples(run: Planted) -> None:
    """No float of a GPU's samples is a number."""
    for number, row in enumerate(run.rows["gpu_samples"]):
        spoilt = math.nan if number % 2 else math.inf
        row.update({name: spoilt for name, value in row.items() if isinstance(value, float)})


def test_folders_above_a_run_that_are_named_as_columns_change_nothing(
    derived: RunStore, tmp_path: Path
) -> None:
    folder = tmp_path / "model=x" / "outcome=error" / "part=0"
    folder.mkdir(parents=True)
    store = planted().write(folder)
    derive(store)
    for table in DERIVED:
        rows, same = (run.read(table).drop_columns(["run"]).to_pylist() for run in (store, derived))
        assert repr(rows) == repr(same), table


@dataclass(frozen=True)
class Spoilt:
    run: Planted
    store: RunStore
    summary: Summary


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Spoilt:
    """A run with spoilt events and spoilt samples, which have nothing to do with one another, and what is derived."""
    run = planted(spoil_events)
    spoil_samples(run)
    store = run.write(tmp_path_factory.mktemp("spoilt"))
    return Spoilt(run, store, derive(store))


def test_events_that_cannot_be_are_left_out_and_counted_and_each_kernel_counts_once(spoilt: Spoilt) -> None:
    run, store, summary = spoilt.run, spoilt.store, spoilt.summary
    assert unmet(summary) >= {"broken events", "operations tied"}
    join = known(summary.join)
    assert join.n_repeated_rows == 2
    assert join.n_duplicate_ids == len(run.rows["batches"][0]["request_ids"])
    assert join.n_foreign >= 1
    costs, joined = store.read("batch_costs"), store.read("joined")
    assert joined.num_rows == len(run.rows["requests"])
    assert pc.sum(joined["kernel_share_ns"]).as_py() == pc.sum(costs["kernel_ns"]).as_py()
    kernels = [
        row for row in run.rows["kernels"] if row["end_ns"] >= row["start_ns"] and row["server"] == "server-0"
    ]
    assert pc.sum(costs["kernel_ns"]).as_py() <= sum(row["end_ns"] - row["start_ns"] for row in kernels)
    parts = ("kernel_busy_ns", "copy_exposed_ns", "sync_wait_ns", "launch_idle_ns", "head_ns", "tail_ns")
    for row in costs.to_pylist():
        if row["tie"] != "none":
            assert sum(row[part] for part in parts) == row["end_ns"] - row["start_ns"]


@pytest.mark.slow
def test_batches_that_overlap_on_an_instance_are_said(tmp_path: Path) -> None:
    def overlap(number: int, row: Row) -> None:
        row.update(start_ns=START_NS + number * MS, end_ns=START_NS + (number + 50) * MS)

    store = planted(each("batches", overlap)).write(tmp_path)
    assert unmet(derive(store)) >= {"sent before batch", "batch before reply"}
    gaps = [gap for gap in store.read("batch_costs")["gap_before_ns"].to_pylist() if gap is not None]
    assert set(gaps) == {0}


def findings(summary: Summary) -> str:
    return json.dumps(to_json(summary.findings))


def test_a_report_without_cuda_joins_and_says_that_nothing_of_the_gpu_is_known(tmp_path: Path) -> None:
    store = planted(without("kernels", "memcpys", "memsets", "syncs", "cuda_api")).write(tmp_path)
    summary = derive(store)
    assert set(store.read("joined")["join_level"].to_pylist()) == {"exact"}
    costs = store.read("batch_costs")
    assert not [n for n in costs["n_kernels"].to_pylist() if n]
    assert "not assessed" in findings(summary)
    assert "GPU-bound" not in [finding.rule for finding in summary.findings]


@pytest.mark.slow
def test_a_run_of_nothing_but_unsent_requests_has_no_quantile_and_no_finding(tmp_path: Path) -> None:
    def unsent(_: int, row: Row) -> None:
        row.update(outcome="unsent", sent_ns=None, first_byte_ns=None, done_ns=None)

    def nothing_else(run: Planted) -> None:
        each("requests", unsent)(run)
        without("batches", "triton_traces", "triton_samples", "gpu_samples", *EVENTS)(run)

    store = planted(nothing_else).write(tmp_path)
    derive(store)
    joined = store.read("joined")
    assert set(joined["join_level"].to_pylist()) == {"none"}
    assert joined["response_ns"].null_count == joined.num_rows


def test_a_sample_that_is_no_number_is_named_and_spoils_no_json(spoilt: Spoilt) -> None:
    figures = spoilt.summary.to_json()
    json.dumps(figures, allow_nan=False)
    written = (spoilt.store.run_dir / "summary.json").read_text()
    assert json.loads(written, parse_constant=pytest.fail) == figures
    assert any("gpu" in where for where in spoilt.summary.not_finite)


def rewrite_manifest(store: RunStore, change: Callable[[dict[str, Any]], dict[str, Any]]) -> RunStore:
    path = store.run_dir / "manifest.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return RunStore.open(store.run_dir)


@pytest.mark.slow
def test_an_open_run_whose_manifest_says_nothing_gives_a_result_all_the_same(done: RunStore) -> None:
    """As one whose process was killed leaves it."""
    own = ("run", "state", "schema_version")
    store = rewrite_manifest(done, lambda said: {**{name: said[name] for name in own}, "state": "open"})
    summary = derive(store)
    assert summary.state == "open"
    assert summary.verdict.status in ("VALID", "INVALID")


def test_an_aborted_run_stays_aborted(done: RunStore) -> None:
    verdict = {"status": "ABORTED", "reasons": ["interrupted by SIGINT"]}
    store = rewrite_manifest(done, lambda said: {**said, "verdict": verdict})
    require_intact(store)
    assert summarise(store).verdict.status == "ABORTED"


def content(store: RunStore) -> dict[str, bytes]:
    """Of all that is derived, and whatever else lies in the run directory."""
    files = (path for path in store.run_dir.rglob("*") if path.is_file())
    return {str(path.relative_to(store.run_dir)): path.read_bytes() for path in files}


@pytest.fixture
def done(derived: RunStore, tmp_path: Path) -> RunStore:
    return RunStore.open(Path(shutil.copytree(derived.run_dir, tmp_path / derived.run)))


@pytest.mark.parametrize("table", DERIVED)
def test_a_disk_that_is_full_costs_nothing_that_was_there(done: RunStore, table: str) -> None:
    def full(path: Path) -> BinaryIO:
        if f".new-{table}" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return new_file(path)

    raw = {name: content for name, content in content(done).items() if not name.startswith(_REMADE)}
    assert "no space left on device" in refusal(RunStore.open(done.run_dir, full)).lower()
    after = content(done)
    assert {name: text for name, text in after.items() if not name.startswith(_REMADE)} == raw
    assert RunStore.open(done.run_dir).verify() == []
    assert [
        name for name in after if name.startswith((".new", ".old", ".spill")) or name.endswith(".open")
    ] == []


_REMADE = ("manifest.json", "summary.json", "report.html", *(f"tables/{table}/" for table in DERIVED))


@pytest.mark.parametrize("table", DERIVED[:2])
def test_ctrl_c_in_the_middle_leaves_the_run_as_it_was(done: RunStore, table: str) -> None:
    before, n_calls = content(done), {"left": DERIVED.index(table)}

    def interrupted(function: Callable[[Any], Any], partitions: Sequence[Any], /) -> list[Any]:
        if n_calls["left"]:
            n_calls["left"] -= 1
            return in_turn(function, partitions)
        in_turn(function, partitions[:1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        derive(RunStore.open(done.run_dir), spread=interrupted)
    after = content(done)
    assert set(after) == set(before)
    assert after[f"tables/{table}/part-00000.parquet"] == before[f"tables/{table}/part-00000.parquet"]
    assert RunStore.open(done.run_dir).verify() == []


def negative(first: str, last: str) -> Callable[[int, Row], Any]:
    return lambda _, row: row.update({first: row[last], last: row[first]})


def lacking(field: str) -> Callable[[Planted], Any]:
    return lambda run: run.manifest.pop(field)


ODD: dict[str, Callable[[Planted], Any]] = {
    **{f"without {table}": without(table) for table in (
        "requests", "batches", "triton_traces", "triton_samples", "gpu_samples", *EVENTS)},
    **{f"manifest without {field}": lacking(field) for field in (
        "scenario", "plan", "phases", "nodes", "servers", "workers", "collectors", "profiled_phases", "start_ns")},
    "batches backwards": each("batches", negative("start_ns", "end_ns")),
    "requests backwards": each("requests", negative("sent_ns", "done_ns")),
    "kernels backwards": each("kernels", negative("start_ns", "end_ns")),
    "calls backwards": each("cuda_api", negative("start_ns", "end_ns")),
    "traces backwards": each("triton_traces", negative("queue_start_ns", "compute_end_ns")),
    "traces without instants": each(
        "triton_traces", lambda _, row: row.update({name: None for name in row if name.endswith("_ns")})),
    "kernels before the run": each("kernels", lambda _, row: row.update(
        start_ns=row["start_ns"] - HOUR_NS, end_ns=row["end_ns"] - HOUR_NS)),
    "node unknown to the manifest": each("requests", lambda _, row: row.update(node="node-77")),
    "server unknown to the manifest": each("batches", lambda _, row: row.update(server="other")),
    "phase unknown to the manifest": each("requests", lambda _, row: row.update(phase="other")),
    "no phase": each("requests", lambda _, row: row.update(phase="")),
    "outcome unknown": each("requests", lambda _, row: row.update(outcome="other")),
    "ok without an end": each("requests", lambda _, row: row.update(done_ns=None)),
    "all fail": each("requests", lambda _, row: row.update(outcome="timeout")),
    "batches of no rows": each("batches", lambda _, row: row.update(rows=0)),
    "batches of less than no rows": each("batches", lambda _, row: row.update(rows=-4)),
    "requests of no rows": each("requests", lambda _, row: row.update(rows=0)),
    "batches of no requests": each("batches", lambda _, row: row.update(request_ids=[], n_requests=0)),
    "every batch names the same": each("batches", lambda _, row: row.update(request_ids=[0, 1, 0])),
    "statistics of less than nothing": each("triton_samples", lambda _, row: row.update(
        {name: -value for name, value in row.items() if isinstance(value, int) and name not in TIMES})),
    "copies of less than nothing": each("memcpys", lambda _, row: row.update(bytes=-7)),
    "grids of nothing": each("kernels", lambda _, row: row.update(grid_x=0, block_x=0, registers_per_thread=0)),
    "occupancy is no number": each("kernels", lambda _, row: row.update(theoretical_occupancy=math.nan)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "oddity", [pytest.param(name, marks=pytest.mark.long if n % 4 else ()) for n, name in enumerate(ODD)]
)
def test_whatever_is_odd_ends_in_a_result(tmp_path: Path, oddity: str) -> None:
    store = planted(ODD[oddity]).write(tmp_path)
    summary = derive(store)
    json.dumps(summary.to_json(), allow_nan=False)
    joined = store.read("joined")
    assert joined.num_rows == store.read("requests").num_rows
    if store.has("batch_costs"):
        costs = store.read("batch_costs")
        total = pc.sum(costs["kernel_ns"]).as_py() or 0
        shares = joined["kernel_share_ns"].drop_null().to_pylist()
        assert sum(shares) <= total
        assert store.verify() == []
