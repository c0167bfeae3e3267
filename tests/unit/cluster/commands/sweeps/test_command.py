"""`squall sweep` as typed: exit codes, `--json`, `--dry-run`, one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from squall.cluster import cli
from squall.cluster.commands.decisions import sweeper
from tests.sweep_runs import FakeRuns, write_experiment


def typed(monkeypatch: pytest.MonkeyPatch, runs: FakeRuns, *words: str | Path) -> Any:
    monkeypatch.setattr(sweeper, "Surroundings", runs.around)
    return CliRunner().invoke(cli.app, ["sweep", *map(str, words)])


def test_a_sweep_ends_with_the_answer_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_experiment(tmp_path)
    done = typed(monkeypatch, FakeRuns(), path, "--out", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert "".join(done.stdout.split()).endswith(str(folder))
    assert "best by p95: max_batch_size=1, queue_delay=0s" in " ".join(done.stdout.split())
    assert "No reference cell: what the machine drifted by is not known." in " ".join(done.stdout.split())
    found = typed(monkeypatch, FakeRuns(), path, "--resume", folder, "--json")
    assert json.loads(found.stdout) == json.loads((folder / "sweep.json").read_text())


def test_a_cell_without_a_valid_run_ends_it_with_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_experiment(tmp_path, repeats=1)
    invalid = FakeRuns(statuses={0: "INVALID", 1: "INVALID"})
    assert typed(monkeypatch, invalid, path, "--out", tmp_path / "runs").exit_code == 3


def test_a_dry_run_runs_nothing_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = FakeRuns()
    path = write_experiment(tmp_path)
    done = typed(monkeypatch, runs, path, "--dry-run", "--json", "--out", tmp_path / "runs")
    assert (done.exit_code, runs.digests, (tmp_path / "runs").exists()) == (0, [], False)
    found = json.loads(done.stdout)
    assert (len(found["cells"]), len(found["runs"])) == (4, 8)
    assert typed(monkeypatch, runs, path, "--dry-run").stdout.startswith("4 cells\n")


@pytest.mark.parametrize(
    ("changes", "options", "line"),
    [
        ({"matrix": {}}, (), "matrix: {} has too few entries, the least are 1"),
        ({}, ("--resume", "nowhere"), "nowhere: holds no sweep: sweep.jsonl: no such file or directory"),
        (
            {},
            ("--out", "s3://bucket/prefix"),
            "--out: name a place on this disk: object storage, s3://BUCKET/PREFIX, takes runs of squall run alone",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: Any,
    options: Any,
    line: str,
) -> None:
    path = write_experiment(tmp_path, **changes)
    monkeypatch.setattr("sys.argv", ["squall", "sweep", str(path), *options])
    monkeypatch.setattr(cli, "leave", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("squall: ")
    assert told.endswith(line)
