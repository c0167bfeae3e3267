"""Folders of decisions that another program may have made: each fault is one line, and nothing outside is read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squall.analysis.studies.capacity_rows import Row, read_rows, rows_bytes, schema
from squall.analysis.studies.sweep_rows import SweepRow, row_from_json
from squall.cluster.commands.decisions.capacity_search import resumed_rows
from squall.cluster.commands.decisions.compared_folders import made_with, sides_of
from squall.cluster.commands.decisions.reproduced_folder import FILE as REPRODUCTION
from squall.cluster.commands.decisions.reproduced_folder import _figures, take_up
from squall.cluster.commands.decisions.sweep_journal import FILE as JOURNAL
from squall.cluster.commands.decisions.sweep_journal import Plan, State, read_state
from squall.cluster.commands.decisions.sweep_plans import choosing_plans
from squall.cluster.driver import resume
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import gather_broken_off, write_text
from squall.cluster.progress import Screen
from squall.scenarios.errors import AnalysisError, ScenarioError, SquallError, StoreError
from squall.scenarios.published.experiment import load_published
from tests.overhead_runs import write_run
from tests.sweep_runs import FakeRuns, load, sweep
from tests.unit.cluster.commands.test_capacity import scenario, settings
from tests.unit.scenarios.test_published import write

NAMES = ["../run", "/tmp/run", "..", "a/b", "a\x1b[2J", "x" * 256]
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that has ended."""
    folder = tmp_path_factory.mktemp("swept")
    return sweep(load(folder), folder, FakeRuns())[0]


@pytest.fixture
def swept(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / made.name))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any], state: str) -> int:
    """Changes the first line of that state; its number."""
    lines = lines_of(folder)
    at = next(place for place, line in enumerate(lines) if line["state"] == state)
    change(lines[at])
    (folder / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return at + 1


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_a_run_that_lies_elsewhere_is_damage(swept: Path, name: str) -> None:
    number = rewrite(swept, lambda line: line["row"].update(run=name), "done")
    with pytest.raises(ScenarioError, match=f"line {number} is damaged: run: is no name of a folder"):
        read_state(swept)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cell", 4, "its row is of another run"),
        ("cell", None, "cell: Input should be a valid integer"),
        ("site", "elsewhere", "its row is of another run"),
        ("outcome", "failed", "its row is of another run"),
        ("figures", {"p95_ns": "fast"}, "figures.p95_ns: Input should be a valid number"),
        ("figures", {"infinite": 3}, "figures.infinite: Input should be"),
        ("seed", [], "seed: Input should be a valid integer"),
        ("wall_s", {}, "wall_s: Input should be a valid number"),
    ],
)
def test_a_row_of_other_types_is_damage(swept: Path, key: str, value: object, said: str) -> None:
    rewrite(swept, lambda line: line["row"].update({key: value}), "done")
    with pytest.raises(ScenarioError, match=f"is damaged: {said}"):
        read_state(swept)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cell", 4, "there is no cell 4"),
        ("cell", -1, "there is no cell -1"),
        ("position", "x", "position: Input"),
    ],
)
def test_a_plan_of_no_cell_is_damage(swept: Path, key: str, value: object, said: str) -> None:
    rewrite(swept, lambda line: line.update({key: value}), "planned")
    with pytest.raises(ScenarioError, match=f"line 2 is damaged: {said}"):
        read_state(swept)


@pytest.mark.parametrize(
    "line", [DEEP, "[]", "3", '{"state": "done", "key": []}', '{"state": NaN}', '"\udcff"']
)
def test_a_line_that_is_none_is_damage(swept: Path, line: str) -> None:
    with open(swept / JOURNAL, "ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(ScenarioError, match=r"line \d+ is damaged: ") as told:
        read_state(swept)
    assert len(str(told.value)) < 400


def test_traces_of_an_experiment_that_are_no_mapping_have_changed(tmp_path: Path, swept: Path) -> None:
    rewrite(swept, lambda line: line["experiment"].update(traces=[1]), "begun")
    assert sweep(load(tmp_path), tmp_path, FakeRuns(), resume=swept)[0] == swept


def test_a_row_is_read_as_it_was_written(swept: Path) -> None:
    row = next(line["row"] for line in lines_of(swept) if line["state"] == "done")
    assert row_from_json(row).figures.p95_ns == row["figures"]["p95_ns"]
    with pytest.raises(AnalysisError):
        row_from_json([])


def links_and_pipes(folder: Path) -> list[Callable[[], object]]:
    """Each makes something in the folder that leads out of it."""
    return [lambda: os.mkfifo(folder / "a pipe"), lambda: (folder / "a link").symlink_to("/etc/passwd")]


@pytest.mark.parametrize("which", [0, 1])
def test_a_folder_that_is_gone_on_with_has_no_way_out(tmp_path: Path, swept: Path, which: int) -> None:
    links_and_pipes(swept)[which]()
    for goes_on in (
        lambda: sweep(load(tmp_path), tmp_path, FakeRuns(), resume=swept),
        lambda: resumed_rows(swept, settings(scenario())),
        lambda: take_up(load_published(write(tmp_path)), swept),
        lambda: sides_of(swept, None),
    ):
        with pytest.raises(StoreError, match="which squall leaves in no folder: remove it"):
            goes_on()


def test_a_journal_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / JOURNAL)
    with pytest.raises(ScenarioError, match=r"sweep\.jsonl: it is no file"):
        read_state(tmp_path)


def test_a_journal_that_is_gone_on_with_is_not_held_whatever_its_size(tmp_path: Path, swept: Path) -> None:
    os.truncate(swept / JOURNAL, 2**40)
    with pytest.raises(ScenarioError, match=r"sweep\.jsonl: it has more than 256 MiB"):
        sweep(load(tmp_path), tmp_path, FakeRuns(), resume=swept)


class CountedPlans(dict[str, Plan]):
    """How often all plans are gone through."""

    n_passes = 0

    def items(self) -> Any:
        self.n_passes += 1
        return super().items()


def test_plans_of_many_sites_are_gone_through_once(tmp_path: Path) -> None:
    plans = CountedPlans(
        {str(site): Plan(str(site), 0, str(site), "cell", 0, 0, 1, 0) for site in range(2_000)}
    )
    assert len(choosing_plans(load(tmp_path), State(plans=plans), "here", False)) == 8
    assert plans.n_passes == 1


ROW = Row(
    variant="all", purpose="bracket", seed=1, rate_hz=50.0, factor="1/2", digest="d", run="run", status="VALID",
    is_replaced=False, seconds=1.0, verdict="kept", margin=-0.1, binding="b", figure=1.0, limit=2.0,
    is_saturated=False, reason="", cause="", bottleneck="", n_servers=1, n=1, n_ok=1, n_unanswered=0,
    offered_hz=1.0, throughput_hz=1.0, good_hz=1.0, response_mean_ns=1.0, response_p50_ns=1.0, response_p95_ns=1.0,
    response_p99_ns=1.0, in_flight_mean_count=1.0, backlog_growth_ratio=0.0, peak_1s_hz=1.0, peak_100ms_hz=1.0,
    n_bursts=1, n_busy_periods=1, queue_delay_ns=None,
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        *({"run": name} for name in ["", *NAMES]),
        {"verdict": "good"}, {"rate_hz": 0.0}, {"rate_hz": float("inf")}, {"margin": 1e6}, {"margin": float("nan")},
        {"seed": None}, {"variant": None},
    ],
)  # fmt: skip
def test_a_probe_that_no_search_made_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "probes.parquet"
    path.write_bytes(rows_bytes([replace(ROW, margin=None)]))
    assert read_rows(str(path)) == [replace(ROW, margin=None)]
    path.write_bytes(rows_bytes([ROW, replace(ROW, **change)]))
    with pytest.raises(StoreError, match=r"probes\.parquet is not the probes of a search: "):
        read_rows(str(path))


def other_tables() -> list[pa.Table]:
    plain = pa.table({"variant": ["all"]})
    whole = pa.Table.from_pylist([asdict(ROW)], schema=schema())
    place = whole.schema.get_field_index("rate_hz")
    return [
        plain,
        whole.set_column(place, "rate_hz", pa.array(["fast"])),
        whole.set_column(place, "rate_hz", pa.array([{"a": 1}])),
        whole.append_column("more", pa.array([1])),
    ]


@pytest.mark.parametrize("which", range(4))
def test_probes_of_other_columns_are_refused(tmp_path: Path, which: int) -> None:
    path = tmp_path / "probes.parquet"
    pq.write_table(other_tables()[which], path)
    with pytest.raises(StoreError, match="is not the probes of a search: its columns are others"):
        read_rows(str(path))


def test_probes_of_before_lack_a_column(tmp_path: Path) -> None:
    path = tmp_path / "probes.parquet"
    table = pa.Table.from_pylist([asdict(ROW)], schema=schema())
    pq.write_table(table.drop_columns(["queue_delay_ns"]), path)
    assert read_rows(str(path)) == [ROW]


def test_many_probes_are_refused_by_what_the_file_states(tmp_path: Path) -> None:
    path = tmp_path / "probes.parquet"
    pq.write_table(pa.table({"x": pa.nulls(100_001, pa.int64())}), path)
    with pytest.raises(StoreError, match="it states 100001 rows"):
        read_rows(str(path))


@pytest.mark.parametrize(
    ("n_bytes", "packed", "said"),
    [
        (10_000_000, {}, "its texts have 10,000,027,000 bytes"),
        (10_000_000, {"compression": "zstd"}, "it is packed otherwise"),
        (10_000_000, {"row_group_size": 500}, "it is packed otherwise"),
        (100, {"use_dictionary": False, "column_encoding": {"reason": "DELTA_BYTE_ARRAY"}}, ""),
    ],
)
def test_a_text_of_many_probes_is_not_held_once_a_row(
    tmp_path: Path, n_bytes: int, packed: dict[str, Any], said: str
) -> None:
    path = tmp_path / "probes.parquet"
    rows = pa.Table.from_pylist([asdict(ROW)], schema=schema()).take(pa.array([0] * 1_000))
    reason = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), ["x" * n_bytes])
    table = rows.set_column(rows.schema.get_field_index("reason"), "reason", reason)
    pq.write_table(table, path, store_schema=False, **packed)
    assert path.stat().st_size < 2_000_000
    with pytest.raises(StoreError, match=f"is not the probes of a search: {said}"):
        read_rows(str(path))


@pytest.mark.parametrize(
    "content", [DEEP, "[]", '"settings"', '{"settings": []}', '{"settings": {"scale": NaN}}']
)
def test_a_search_that_is_none_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "capacity.json").write_text(content)
    with pytest.raises(ScenarioError, match=r"capacity\.json is not that of a search"):
        resumed_rows(tmp_path, settings(scenario()))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"margin_ratio": 7, "n_looks": 1}', "its margin_ratio or n_looks is none"),
        ('{"margin_ratio": -0.1, "n_looks": 1}', "its margin_ratio or n_looks is none"),
        ('{"margin_ratio": 0.1, "n_looks": 1000000000}', "its margin_ratio or n_looks is none"),
        ('{"margin_ratio": NaN, "n_looks": 1}', "it has no margin_ratio and n_looks"),
        ('{"margin_ratio": null, "n_looks": 1}', "it has no margin_ratio and n_looks"),
        ("[]", "it has no margin_ratio and n_looks"),
        (DEEP, "it has no margin_ratio and n_looks"),
    ],
)
def test_a_comparison_out_of_range_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "compare.json").write_text(content)
    with pytest.raises(
        ScenarioError, match=f"compare.json cannot be read: {said}; state --margin and --looks"
    ):
        made_with(tmp_path)


def test_a_comparison_that_is_a_pipe_or_a_link_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    os.mkfifo(path)
    with pytest.raises(ScenarioError, match="cannot be read: it is no file"):
        made_with(tmp_path)
    path.unlink()
    path.symlink_to("elsewhere")
    with pytest.raises(ScenarioError, match=r"compare\.json cannot be read: it is a link"):
        made_with(tmp_path)


@pytest.mark.parametrize(
    "content", [DEEP, "[]", "{}", '{"name": "own", "digest": "d", "is_small": false, "date": "\\u001b[2J"}']
)
def test_a_reproduction_that_is_none_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / REPRODUCTION).write_text(content)
    with pytest.raises(SquallError, match="is damaged; begin anew without --resume"):
        take_up(load_published(write(tmp_path)), tmp_path)


def test_a_file_of_a_decision_is_written_through_no_link(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.write_text("mine")
    folder.mkdir()
    for name in ("compare.json", "compare.json.new"):
        (folder / name).symlink_to(elsewhere)
    write_text(folder / "compare.json", "new")
    assert elsewhere.read_text() == "mine"
    assert not (folder / "compare.json").is_symlink()
    assert (folder / "compare.json").read_text() == "new"


def test_what_stays_of_a_run_in_a_folder_is_gathered_without_an_internal_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_run(tmp_path, status=None)

    def broken(*_: object) -> None:
        raise KeyError("phase")

    monkeypatch.setattr(resume, "resume_run", broken)
    gather_broken_off(tmp_path, Screen(), Interrupts())
    said = "has something in it that squall did not write: KeyError"
    assert f"{store.run}: {store.run} {said}" in capsys.readouterr().err


FIGURES = "own-0.figures.json"


@pytest.mark.parametrize(
    "content",
    [DEEP, "[]", '{"figures": 3, "under": ""}', '{"figures": {"n": []}, "under": ""}', '{"figures": {}}'],
)
def test_kept_figures_of_other_types_are_a_run_that_is_lost(tmp_path: Path, content: str) -> None:
    row = SweepRow("k", 0, 0, "cell", 0, "one", 1, 1, "done", "VALID", "", "own-0", "s", "h", 1.0)
    (tmp_path / FIGURES).write_text(content)
    found = _figures(tmp_path, "latency", row)
    assert (found.status, dict(found.figures)) == ("LOST", {})
    assert found.reason.startswith("own-0 cannot be read any more: ")


def test_kept_figures_are_read(tmp_path: Path) -> None:
    row = SweepRow("k", 0, 0, "cell", 0, "one", 1, 1, "done", "VALID", "", "own-0", "s", "h", 1.0)
    (tmp_path / FIGURES).write_text(
        '{"figures": {"p95_ns": 5, "p99_ns": 7.5, "regime": "none"}, "under": "nsys"}'
    )
    found = _figures(tmp_path, "latency", row)
    assert (found.status, found.under) == ("VALID", "nsys")
    assert json.dumps(dict(found.figures)) == '{"p95_ns": 5, "p99_ns": 7.5, "regime": "none"}'
