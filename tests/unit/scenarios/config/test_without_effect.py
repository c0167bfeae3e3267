"""Keys that configure a server, or a model there, that squall does not configure: refused wherever they are stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from squall.cluster.cli import app
from squall.scenarios.config.loader import (
    load_scenario,
)

URL = "http://127.0.0.1:9"
PHASES = [
    {"name": "w", "kind": "warmup", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
    {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
    {"name": "end", "kind": "drain", "duration": "1s"},
]
"""Every key of a model whose configuration squall writes, most of them with its default."""
"""Keys that the clients use, whoever serves."""


def whole(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "seed": 1, "model": {"name": "m"}, "phases": PHASES, **changes}


def attached(**model: Any) -> dict[str, Any]:
    return whole(server={"url": URL}, model={"name": "m", **model})


def test_the_command_line_refuses_it_and_sends_nothing(tmp_path: Path) -> None:
    file, experiment = tmp_path / "mine.yaml", tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({**attached(), "promises": {"response": "p(95)<1s"}}))
    matrix: dict[str, Any] = {"scenario": "mine.yaml", "matrix": {"model.instances": [1, 2]}}
    experiment.write_text(yaml.safe_dump(matrix))
    delay = "model.queue_delay=5ms"
    for command in (
        ["run", str(file), "--set", delay],
        ["run", str(file), "--set", delay, "--dry-run"],
        ["check", str(file), "--set", delay],
        ["capacity", str(file), "--set", delay],
        ["compare", str(file), "--set-b", delay],
        ["compare", str(file), "--set-a", delay],
        ["sweep", str(experiment), "--dry-run"],
        ["sweep", str(experiment)],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code != 0, command
        assert "server.control.load.m." in f"{done.output}{done.exception}", command


@pytest.mark.parametrize("sizes", [[1, 8], [32, 4]])
def test_sizes_of_batches_are_no_factor_where_they_stay_as_they_are(tmp_path: Path, sizes: list[int]) -> None:
    file, experiment = tmp_path / "mine.yaml", tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(attached()))
    there = "server.control.load.m.config.max_batch_size"
    experiment.write_text(
        yaml.safe_dump({"scenario": "mine.yaml", "matrix": {"model.max_batch_size": sizes}})
    )
    options = [f"--set-{side}=model.max_batch_size={size}" for side, size in zip("ab", sizes, strict=True)]
    for command in (["sweep", str(experiment), "--dry-run"], ["compare", str(file), *options]):
        done = CliRunner().invoke(app, command)
        assert there in f"{done.output}{done.exception}", command
    loaded = load_scenario(file, [f"{there}=4"]).server.control
    assert loaded is not None
    assert loaded.load["m"].config == {"max_batch_size": 4}
