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
import yaml

from squall.analysis.record import to_json
from squall.analysis.report import derive as derive_module
from squall.analysis.report.derive import derive
from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.beneath import new_file
from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.query import in_turn
from squall.analysis.storage.store import RunStore
from squall.scenarios.errors import AnalysisError, SquallError, StoreError
from tests.known import known
from tests.planted_runs import START_NS, Planted, Row, Shape, plant

MS = 1_000_000
SHAPE = Shape(seed=3, n_requests=16, servers=("traced",), features=frozenset({"blocks", "streams"}))
DERIVED = ("batch_costs", "joined", "windows")
CASES = yaml.safe_load((Path(__file__).parent / "odd_runs.yaml").read_text())
ODD = CASES["runs"]


@pytest.fixture(scope="module", autouse=True)
def no_page() -> Iterator[None]:
    """The report is drawn of the summary alone, and takes as long as all the rest."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(derive_module, "write_report", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A sealed run with all that is derived of it."""
    store = plant(SHAPE).write(tmp_path_factory.mktemp("derived"))
    derive(store)
    return store


@pytest.fixture
def run() -> Planted:
    return plant(SHAPE)


def checked(parent: Path, odd: dict[str, Any]) -> Summary:
    """What is derived of a run that is odd so, whose rows have what every run's have."""
    run = plant(SHAPE)
    for table in odd.get("without", ()):
        run.rows.pop(table, None)
    for key in odd.get("unsaid", ()):
        run.manifest.pop(key)
    for table, (first, last) in odd.get("swapped", {}).items():
        for row in run.rows[table]:
            row[first], row[last] = row[last], row[first]
    for table, values in odd.get("set", {}).items():
        for row in run.rows[table]:
            row |= values
    store = run.write(parent)
    summary = derive(store)
    json.dumps(summary.to_json(), allow_nan=False)
    joined = store.read("joined")
    assert joined.num_rows == store.read("requests").num_rows
    levels = pc.unique(joined["join_level"]).to_pylist()
    assert levels == odd.get("joined", levels)
    assert joined.filter(pc.is_null(joined["done_ns"]))["response_ns"].drop_null().to_pylist() == []
    if store.has("batch_costs"):
        total = pc.sum(store.read("batch_costs")["kernel_ns"]).as_py() or 0
        assert sum(joined["kernel_share_ns"].drop_null().to_pylist()) <= total
    assert store.verify() == []
    return summary


def unmet(summary: Summary) -> set[str]:
    return {check.name for check in summary.self_checks if check.status == "unmet"}


def refusal(store: RunStore) -> str:
    with pytest.raises(SquallError) as refused:
        derive(store)
    assert isinstance(refused.value, AnalysisError | StoreError)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda rows: [{**row, "node": "node-9"} for row in rows], "two servers are named server-0"),
        (lambda rows: [dict(rows[0])], "is twice in the table batches"),
    ],
)
def test_tables_that_contradict_themselves_are_refused(
    run: Planted, tmp_path: Path, more: Callable[[list[Row]], list[Row]], said: str
) -> None:
    run.rows["batches"] += more(run.rows["batches"])
    assert said in refusal(run.write(tmp_path))


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


@dataclass(frozen=True)
class Spoilt:
    run: Planted
    store: RunStore
    summary: Summary


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Spoilt:
    """A run with spoilt events and spoilt samples, which have nothing to do with one another, and what is derived."""
    run = plant(SHAPE)
    spoil_events(run)
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
def test_batches_that_overlap_on_an_instance_are_said(run: Planted, tmp_path: Path) -> None:
    for number, row in enumerate(run.rows["batches"]):
        row.update(start_ns=START_NS + number * MS, end_ns=START_NS + (number + 50) * MS)
    store = run.write(tmp_path)
    assert unmet(derive(store)) >= {"sent before batch", "batch before reply"}
    assert {*store.read("batch_costs")["gap_before_ns"].drop_null().to_pylist()} == {0}


def test_a_report_without_cuda_joins_and_says_that_nothing_of_the_gpu_is_known(tmp_path: Path) -> None:
    summary = checked(tmp_path, CASES["without_cuda"])
    assert "not assessed" in json.dumps(to_json(summary.findings))
    assert "GPU-bound" not in [finding.rule for finding in summary.findings]


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


REMADE = (
    "manifest.json",
    "summary.json",
    "run.parquet",
    "report.html",
    *(f"tables/{table}/part" for table in DERIVED),
)


def content(store: RunStore, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Of all that lies in the run directory, in folders that are not empty, but for names that begin so."""
    files = {
        str(path.relative_to(store.run_dir)): path for path in store.run_dir.rglob("*") if path.is_file()
    }
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(but)}


@pytest.fixture
def done(derived: RunStore, tmp_path: Path) -> RunStore:
    return RunStore.open(Path(shutil.copytree(derived.run_dir, tmp_path / derived.run)))


@pytest.mark.parametrize("table", DERIVED)
def test_a_disk_that_is_full_costs_nothing_that_was_there(done: RunStore, table: str) -> None:
    def full(path: Path) -> BinaryIO:
        if f".new-{table}" in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        return new_file(path)

    before = content(done, REMADE)
    assert "no space left on device" in refusal(RunStore.open(done.run_dir, full)).lower()
    assert content(done, REMADE) == before
    assert RunStore.open(done.run_dir).verify() == []


@pytest.mark.parametrize("n_whole", [0, 1])
def test_ctrl_c_in_the_middle_leaves_the_run_as_it_was(done: RunStore, n_whole: int) -> None:
    before, calls = content(done), list[Any]()

    def interrupted(function: Callable[[Any], Any], partitions: Sequence[Any], /) -> list[Any]:
        calls.append(function)
        if len(calls) <= n_whole:
            return in_turn(function, partitions)
        in_turn(function, partitions[:1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        derive(RunStore.open(done.run_dir), spread=interrupted)
    after, part = content(done), f"tables/{DERIVED[n_whole]}/part-00000.parquet"
    assert (after.keys(), after[part]) == (before.keys(), before[part])
    assert RunStore.open(done.run_dir).verify() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "oddity", [pytest.param(name, marks=pytest.mark.long if n % 4 else ()) for n, name in enumerate(ODD)]
)
def test_whatever_is_odd_ends_in_a_result(tmp_path: Path, oddity: str) -> None:
    checked(tmp_path, ODD[oddity])
