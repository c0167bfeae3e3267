"""Commands on a run directory that squall did not write: a fault of it is one line, and no internal error."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from squall.analysis.compare.run_row import read_row
from squall.analysis.report import derive as derive_module
from squall.analysis.storage.store import RunStore
from squall.cluster.cli import app
from squall.scenarios.errors import SquallError
from tests.overhead_runs import write_run

LOCUST = {"version": "2", "file": "f.py", "file_sha256": "", "node": "node-0"}
ENTRY = {"method": "GET", "name": "a", "n_requests": 1, "n_failures": 0, "total_ms": 1.0}
ODD: dict[str, dict[str, Any]] = {
    "models that are a number": {"scenario": {"models": 5}},
    "a model that is a text": {"scenario": {"model": "head"}},
    "clients that are a list": {"scenario": {"clients": [1]}},
    "expectations that are a text": {"scenario": {"expect": "much"}},
    "promises that are numbers": {"scenario": {"promises": {"response": [5, None]}}},
    "a load without users": {"scenario": {"load": {"locust": 3}}, "locust": LOCUST},
    "a quantile of no number": {"locust": {**LOCUST, "entries": [{**ENTRY, "quantiles_ms": {"half": 1.0}}]}},
    "a rate of nothing": {
        "locust": {**LOCUST, "asked": [{"t_ns": 0, "n_users": 1, "spawn_rate_hz": 1e-320}]}
    },
}
ALIKE = {"models that are a number", "expectations that are a text", "promises that are numbers"}
"""Those that what reads a section of the scenario meets as it does another."""
OUTSIDE: dict[str, tuple[dict[str, Any], str]] = {
    "infinite": (
        {"locust": {**LOCUST, "entries": [{**ENTRY, "total_ms": float("inf")}]}},
        "manifest.json is not JSON",
    ),
    "huge": ({"locust": {**LOCUST, "late_ns": 2**64}}, "locust.late_ns: is not within 64 bits"),
    "huge as a number": (
        {"locust": {**LOCUST, "entries": [{**ENTRY, "total_ms": 10**30}]}},
        "is not within 64 bits",
    ),
    "null": ({"locust": {**LOCUST, "late_ns": None}}, "locust.late_ns: "),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("made")).run_dir


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / made.name))


def reading(run: Path, tmp_path: Path) -> list[tuple[object, ...]]:
    """The commands that read a run."""
    query = ("sql", run, "SELECT count(*) FROM requests")
    return [("analyze", run), ("report", run), ("trace", "from-run", run, tmp_path / "out.csv"), query]


def stated(run: Path, fields: dict[str, Any]) -> Path:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, **fields}))
    return run


def fault_of(*words: object) -> str:
    """What the command says; empty where it found no fault."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SquallError | SystemExit), (
        result.exception
    )
    return str(result.exception or "")


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[pytest.mark.slow] if what in ALIKE else []) for what in ODD],
)
def test_a_scenario_or_facts_of_odd_shapes_are_no_internal_error(
    run: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derive_module, "write_report", lambda *_: None)  # `squall report` draws the same page
    stated(run, ODD[what])
    for said in (
        fault_of("analyze", run), fault_of("report", run), fault_of("trace", "from-run", run, tmp_path / "out.csv"),
        read_row(run).problem,
    ):  # fmt: skip
        assert "\n" not in said


def test_what_squall_did_not_write_is_said_in_one_line(run: Path) -> None:
    said = fault_of("report", stated(run, ODD["models that are a number"]))
    assert said.startswith(f"{run} has something in it that squall did not write: TypeError: ")


@pytest.mark.parametrize("what", OUTSIDE)
def test_numbers_that_no_run_has_are_refused(run: Path, what: str) -> None:
    fields, said = OUTSIDE[what]
    assert said in fault_of("report", stated(run, fields))


def test_a_seed_may_have_more_bits(run: Path, tmp_path: Path) -> None:
    assert fault_of("trace", "from-run", stated(run, {"seed": 2**127}), tmp_path / "out.csv") == ""


@pytest.mark.parametrize("name", ["manifest.json", "summary.json", "tables/requests/part-00000.parquet"])
def test_a_pipe_in_a_run_is_not_waited_for(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    for words in reading(run, tmp_path):
        assert f"{name} is a pipe, which squall leaves in no folder: remove it" in fault_of(*words)
    assert "is a pipe" in read_row(run).problem


def test_every_command_looks_at_the_parts_first(run: Path, tmp_path: Path) -> None:
    part = run / "tables" / "requests" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    for words in reading(run, tmp_path):
        assert "requests/part-00000.parquet has changed since the seal" in fault_of(*words)
    assert "has changed since the seal" in read_row(run).problem


@pytest.mark.parametrize(
    "arrivals",
    [
        "3", "[]", "{}", "{kind: [1]}", "{kind: {a: 1}}", "{kind: null}", "{kind: poisson}",
        "{kind: poisson, rate: [1]}", "{kind: poisson, rate: .inf}", "{kind: poisson, rate: 1e999}",
        "{kind: superpose, parts: 3}", "{kind: superpose, parts: [[]]}", "{1: 2}",
        "{kind: poisson, rate: 1/s, more: {}}", "{kind: trace, file: /proc/self/mem}", "{kind: trace, file: [1]}",
    ],
)  # fmt: skip
def test_arrivals_of_odd_shapes_are_one_line(tmp_path: Path, arrivals: str) -> None:
    file = tmp_path / "arrivals.yaml"
    file.write_text(f"arrivals: {arrivals}\n")
    said = fault_of("trace", "synth", file, tmp_path / "out.csv", "--duration", "1s")
    assert said
    assert "\n" not in said


def test_arrivals_without_end_or_bottom_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "arrivals.yaml"
    file.write_text("arrivals: " + "[" * 5_000)
    assert "\n" not in fault_of("trace", "synth", file, tmp_path / "out.csv", "--duration", "1s")


def test_a_run_that_is_whole_is_no_fault(run: Path, tmp_path: Path) -> None:
    assert fault_of("trace", "from-run", run, tmp_path / "out.csv") == ""
    assert read_row(run).problem == ""


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_a_signal_ends_a_command_while_a_run_is_opened(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def opened(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("the signal waits")

    monkeypatch.setattr(RunStore, "open", opened)
    result = CliRunner().invoke(app, [command, "RUN"])
    assert (result.exit_code, result.stderr) == (1, "squall: interrupted by SIGTERM\n")
