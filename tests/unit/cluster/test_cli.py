"""The command's own options, without any of its work."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from squall.cluster import cli


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_that_of_the_package(option: str) -> None:
    done = CliRunner().invoke(cli.app, [option])
    assert (done.exit_code, done.output) == (0, f"squall {version('squall')}\n")


SCENARIO = """
name: held
seed: 1
model: {name: linear_head}
server: {url: "http://127.0.0.1:9"}
promises: {response: "p(50)<1s"}
phases:
  - {name: main, kind: measure, duration: 2s, arrivals: {kind: poisson, rate: 50/s}}
"""
EXPERIMENT = """
name: cells
scenario: a.yaml
matrix: {phases.main.arrivals.rate: [10/s, 20/s]}
repeats: 1
"""


ADDRESSES = ("s3:/bucket/runs", "s3:bucket/runs", "S3:/bucket/runs", "s3a://bucket/runs")
TAKES_AN_ADDRESS = (
    "run a.yaml --out",
    "run a.yaml --measure-overhead --out",
    "run a.yaml --dry-run --out",
    "demo --out",
    "check a.yaml --out",
    "capacity a.yaml --out",
    "compare a.yaml b.yaml --out",
    "compare runs-a runs-b --out",
    "sweep cells.yaml --out",
    "sweep cells.yaml --dry-run --out",
    "reproduce e2 --small --out",
    "reproduce e5 --small --out",
    "perf -m linear_head -u http://127.0.0.1:9 --out",
    "init --server http://127.0.0.1:9 --out",
    "models build linear_head --out",
    "resume",
    "analyze",
    "report",
    "sql --tables",
)


@pytest.mark.parametrize(
    ("words", "address"),
    [
        pytest.param(words, address, marks=[] if (number + place) % 4 == 0 else pytest.mark.slow)
        for number, words in enumerate(TAKES_AN_ADDRESS)
        for place, address in enumerate(ADDRESSES)
    ],
)
def test_an_address_with_a_slash_too_few_is_refused_before_anything_is_asked_or_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    address: str,
) -> None:
    for name, text in (("a.yaml", SCENARIO), ("b.yaml", SCENARIO), ("cells.yaml", EXPERIMENT)):
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["squall", *words.split(), address])
    monkeypatch.setattr(cli, "leave", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("squall: ")
    assert "s3://BUCKET/PREFIX" in line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "words", [["run", "a", "\x1b]0;x\x07"], ["--\x1b]0;x\x07"], ["perf", "--\x1b]0;x\x07"]]
)
def test_what_is_wrong_with_arguments_is_said_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["squall", *words])
    monkeypatch.setattr(cli, "leave", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (2, 3)
    told = capsys.readouterr().err
    assert "\\x1b]0;x\\x07" in told
    assert "\x1b" not in told
