"""`squall trace` where the output cannot be written or the numbers are beyond what memory holds."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from squall.cluster.cli import app
from squall.scenarios.errors import ScenarioError


def squall(*words: object) -> Result:
    return CliRunner().invoke(app, ["trace", *map(str, words)], env={"COLUMNS": "80"}, catch_exceptions=True)


def fault_of(*words: object) -> str:
    result = squall(*words)
    assert isinstance(result.exception, ScenarioError), (result.output, result.exception)
    return str(result.exception)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,tokens\n" + "".join(f"{n},{n % 7}\n" for n in range(200)))
    return path


@pytest.mark.parametrize("name", ["p.png", "p.html"])
def test_a_plot_that_cannot_be_written_is_one_line(trace: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "missing" / name
    assert fault_of("info", trace, "--plot", path) == f"{path}: cannot be written: No such file or directory"
    os.mkfifo(tmp_path / name)
    assert "it is a folder, a device or a pipe" in fault_of("info", trace, "--plot", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "trace.csv"])


def test_the_ending_of_a_plot_is_looked_at_first(tmp_path: Path) -> None:
    text = fault_of("info", tmp_path / "missing.csv", "--plot", "p.gif")
    assert text == "--plot p.gif: must end in .png, .svg or .html"


def test_a_trace_longer_than_memory_is_not_made(tmp_path: Path) -> None:
    arrivals = tmp_path / "arrivals.yaml"
    arrivals.write_text("arrivals: {kind: poisson, rate: 1e9/s}\n")
    text = fault_of("synth", arrivals, tmp_path / "out.csv", "--duration", "100s")
    assert text.startswith("--duration 100s: 100,000,000,000 arrivals are more than a plan takes")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.slow
def test_two_arrivals_half_a_lifetime_apart_are_described(tmp_path: Path) -> None:
    """The bootstrap of 32 years in blocks of 300 s took 11 GB."""
    (tmp_path / "far.csv").write_text("timestamp\n0\n1000000000\n")
    result = squall("info", tmp_path / "far.csv", "--json")
    assert result.exit_code == 0, result.exception


def test_a_command_leaves_the_signals_as_they_were(trace: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert squall("info", trace).exit_code == 0
    assert signal.getsignal(signal.SIGTERM) == before
