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
    make_scenario,
    scenario_from_mapping,
    scenario_of_run,
)
from squall.scenarios.config.models.model import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import ScenarioError

URL = "http://127.0.0.1:9"
PHASES = [
    {"name": "w", "kind": "warmup", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
    {"name": "m", "kind": "measure", "duration": "1s", "arrivals": {"kind": "poisson", "rate": "9/s"}},
    {"name": "end", "kind": "drain", "duration": "1s"},
]
WRITTEN = {
    "instances": 1, "preferred_batch_sizes": [4], "queue_delay": "0s", "queue": {"max_size": 4},
    "preserve_ordering": False, "framework": "numpy", "device": "cpu", "precision": "fp32", "cuda_graphs": False,
    "pinned": True, "compile": False,
}  # fmt: skip
"""Every key of a model whose configuration squall writes, most of them with its default."""
ALWAYS = {"name", "version", "settings", "max_batch_size", "shapes"}
"""Keys that the clients use, whoever serves."""
STARTED = {"nice": 0, "stop_timeout": "10s", "start_timeout": "60s"}


def whole(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "seed": 1, "model": {"name": "m"}, "phases": PHASES, **changes}


def attached(**model: Any) -> dict[str, Any]:
    return whole(server={"url": URL}, model={"name": "m", **model})


def test_every_key_of_a_model_is_one_of_the_clients_or_of_who_serves_it() -> None:
    keys = {one.alias or name for name, one in ModelConfig.model_fields.items()}
    assert keys == {*ALWAYS, *WRITTEN, "repository", "weights"}
    of_server = {one.alias or name for name, one in ServerConfig.model_fields.items()}
    beside_url = {"url", "grpc_port", "metrics_port", "control"}
    refused_beside_url = {"image", "runtime", "http_port", "listen"}  # by the section itself
    assert of_server == beside_url | refused_beside_url | STARTED.keys()


@pytest.mark.parametrize("key", WRITTEN)
@pytest.mark.parametrize("own", ["url", "repository"])
def test_a_key_of_a_model_that_squall_does_not_configure_is_refused_though_it_states_the_default(
    key: str, own: str
) -> None:
    mapping = attached() if own == "url" else whole(model={"name": "m", "repository": "/models"})
    with pytest.raises(
        ScenarioError, match=rf"^scenario: model\.{key}: has no effect.*server\.control\.load\.m\."
    ):
        make_scenario(mapping, {f"model.{key}": WRITTEN[key]})
    make_scenario(whole(model={"name": "linear_head", key: WRITTEN[key]}))  # which squall starts


@pytest.mark.parametrize("key", STARTED)
def test_a_key_of_a_server_that_squall_does_not_start_is_refused(key: str) -> None:
    with pytest.raises(ScenarioError, match=rf"server\.{key}: is for a server that squall starts"):
        make_scenario(attached(), {f"server.{key}": STARTED[key]})
    with pytest.raises(ScenarioError, match=rf"servers\[0\]\.{key}: is for a server that squall starts"):
        make_scenario(whole(servers=[{"url": URL}], server={key: STARTED[key]}))
    make_scenario(whole(server={key: STARTED[key]}))


def test_a_load_call_waits_for_start_timeout() -> None:
    make_scenario(whole(server={"url": URL, "start_timeout": "5s", "control": {}}))


def test_weights_and_repository_are_refused_where_nothing_reads_them() -> None:
    for key in ("weights", "repository"):
        with pytest.raises(ScenarioError, match=rf"model\.{key}: "):
            make_scenario(attached(**{key: "/there"}))
    make_scenario({**attached(weights="/there"), "clients": {"check": {}}})


def test_of_several_models_the_one_is_named() -> None:
    models = [{"name": "a"}, {"name": "b", "instances": 2, "queue_delay": "1ms"}]
    mapping = {**whole(servers=[{"url": URL}], models=models), "model": None}
    with pytest.raises(
        ScenarioError, match=r"models\[1\]\.instances: has no effect.*\(likewise queue_delay\)$"
    ):
        scenario_from_mapping(mapping, "test")


def test_a_scenario_without_such_keys_loads_back_as_it_is_and_leaves_a_stated_size() -> None:
    for one in (make_scenario(attached()), make_scenario(attached(max_batch_size=32))):
        again = scenario_from_mapping(one.to_mapping(), "again")
        assert again == one
        assert again.digest() == one.digest()
        assert again.model.model_fields_set >= one.model.model_fields_set
    assert "max_batch_size" not in make_scenario(attached()).to_mapping()["model"]


def test_the_scenario_of_a_run_of_an_earlier_version_is_read() -> None:
    assert scenario_of_run(attached(queue_delay="2ms"), "manifest").model.queue_delay_ns == 2_000_000
    struck = {"clients": {"lease": "5s", "timeout": "3s"}, "records": {"keep": "gathered", "fetch": "after"}}
    read = scenario_of_run(attached() | struck, "manifest")
    assert (read.clients.timeout_ns, read.records.fetch) == (3_000_000_000, "after")
    assert read.digest() == scenario_from_mapping(read.to_mapping(), "again").digest()
    with pytest.raises(ScenarioError, match=r"records\.keep"):
        scenario_of_run(attached() | {"records": {"keep": "on-nodes"}}, "manifest")


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
