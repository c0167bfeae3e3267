"""Faults of a scenario: each is one line with the key, what stands there and the way out (`faults.yaml`)."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.config.clients.client import ClientConfig
from squall.scenarios.config.loader import make_scenario, scenario_from_mapping, scenario_of_run
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import ScenarioError
from squall.scenarios.fields import Section

TABLE = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text())
FAULTS = [(place, value, said) for place, cases in TABLE["faults"].items() for value, said in cases]
INSTEAD = {"models": "model", "load": "phases"}


def changed(place: str, value: Any) -> dict[str, Any]:
    """The base with `value` at a place; under `scenario` with these keys, or without those that are null."""
    mapping: dict[str, Any] = deepcopy(TABLE["base"])
    if place == "scenario":
        left_out = [INSTEAD[key] for key in value if key in INSTEAD]
        kept = {key: one for key, one in mapping.items() if key not in left_out} | value
        return {key: one for key, one in kept.items() if one is not None}
    *above, last = place.split(".")
    here: Any = mapping
    for step in above:
        here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
    here[int(last) if isinstance(here, list) else last] = value
    return mapping


def fault_of(mapping: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_mapping(mapping, "s.yaml")
    text = str(caught.value)
    assert text.startswith("s.yaml: ")
    assert "\n" not in text
    return text.removeprefix("s.yaml: ")


@pytest.mark.parametrize(("place", "value", "said"), FAULTS)
def test_a_fault_is_one_line_that_says_where_what_and_what_is_allowed(
    place: str, value: Any, said: str
) -> None:
    assert fault_of(changed(place, value)).startswith(said)


OF_LOCUST: dict[str, Any] = {
    "workers_per_node": 4, "on_client_loss": "stop", "inputs": {"X": {"low": 0, "high": 1}}, "payload_variants": 3,
    "request": {"parameters": {"a": 1}}, "headers": {"A": "b"}, "timeout": "1s", "largest_reply": "1 MiB",
}  # fmt: skip
OF_OWN_CLIENT: dict[str, Any] = {
    "priority": "normal", "cores": 1, "protocol": "grpc", "tls": {"ca": "ca.pem"}, "unix": "/run/t.sock", "spin": "1ms",
    "try_first": False, "max_in_flight": 3, "connections": 3, "deal": "hash", "routing": {"kind": "random"},
    "rows": {"kind": "constant", "value": 2}, "check": {"function": "right.py:answers"}, "data": {"path": "x.npy"},
    "shared_memory": {}, "stream": {}, "sequences": {"length": {"kind": "constant", "value": 2}},
}  # fmt: skip


def keys_of(section: type[Section]) -> set[str]:
    return {field.alias or name for name, field in section.model_fields.items()}


def test_each_key_of_the_clients_is_either_of_locust_or_refused_by_name() -> None:
    assert keys_of(ClientConfig) == OF_OWN_CLIENT.keys() | OF_LOCUST.keys()
    load = {"locust": {"file": "locustfile.py", "run_time": "5s"}}
    for key, value in OF_OWN_CLIENT.items():
        text = fault_of(changed("scenario", {"load": load, "clients": {key: value}}))
        assert text == f"clients.{key}: is of squall's own client, and load.locust has Locust's; leave it out"
    for key, value in OF_LOCUST.items():
        scenario_from_mapping(changed("scenario", {"load": load, "clients": {key: value}}), "s.yaml")


URL = "http://127.0.0.1:9"
WRITTEN: dict[str, Any] = {
    "instances": 1, "preferred_batch_sizes": [4], "queue_delay": "0s", "queue": {"max_size": 4},
    "preserve_ordering": False, "framework": "numpy", "device": "cpu", "precision": "fp32", "cuda_graphs": False,
    "pinned": True, "compile": False,
}  # fmt: skip
"""Every key of a model whose configuration squall writes, most of them with its default."""
ALWAYS = {"name", "version", "settings", "max_batch_size", "shapes"}
"""Keys that the clients use, whoever serves."""
STARTED = {"nice": 0, "stop_timeout": "10s", "start_timeout": "60s"}


def attached(**changes: Any) -> dict[str, Any]:
    return changed("scenario", {"server": {"url": URL}, "model": {"name": "m"}, **changes})


def test_every_key_of_a_model_and_a_server_is_used_by_someone() -> None:
    assert keys_of(ModelConfig) == {*ALWAYS, *WRITTEN, "repository", "weights"}
    beside_url = {"url", "grpc_port", "metrics_port", "control"}
    refused_by_the_section = {"image", "runtime", "http_port", "listen"}
    assert keys_of(ServerConfig) == beside_url | refused_by_the_section | STARTED.keys()


@pytest.mark.parametrize("key", WRITTEN)
@pytest.mark.parametrize("own", [{"server": {"url": URL}}, {"model": {"name": "m", "repository": "/models"}}])
def test_a_key_of_a_model_that_squall_does_not_configure_is_refused_though_it_states_the_default(
    key: str, own: dict[str, Any]
) -> None:
    mapping = changed("scenario", {"model": {"name": "m"}, **own})
    with pytest.raises(
        ScenarioError, match=rf"^scenario: model\.{key}: has no effect.*server\.control\.load\.m\."
    ):
        make_scenario(mapping, {f"model.{key}": WRITTEN[key]})
    make_scenario(TABLE["base"], {f"model.{key}": WRITTEN[key]})  # which squall starts


@pytest.mark.parametrize("key", STARTED)
def test_a_key_of_a_server_that_squall_does_not_start_is_refused(key: str) -> None:
    said = "is for a server that squall starts, the one at url runs already"
    server = {key: STARTED[key]}
    assert fault_of(attached(server={"url": URL, **server})).startswith(f"server.{key}: {said}")
    assert fault_of(attached(servers=[{"url": URL}], server=server)).startswith(f"servers[0].{key}: {said}")
    make_scenario(TABLE["base"], {f"server.{key}": STARTED[key]})


def test_weights_and_repository_are_refused_where_nothing_reads_them() -> None:
    for key in ("weights", "repository"):
        assert fault_of(attached(model={"name": "m", key: "/there"})).startswith(f"model.{key}: ")
    make_scenario(attached(model={"name": "m", "weights": "/there"}, clients={"check": {}}))
    make_scenario(attached(server={"url": URL, "start_timeout": "5s", "control": {}}))  # a load call waits
    models = [{"name": "a"}, {"name": "b", "instances": 2}]
    assert fault_of(attached(models=models, model=None)).startswith("models[1].instances: has no effect")


def test_a_scenario_without_such_keys_loads_back_as_it_is_and_leaves_a_stated_size() -> None:
    for given in (attached(), attached(model={"name": "m", "max_batch_size": 32})):
        one = make_scenario(given)
        again = scenario_from_mapping(one.to_mapping(), "again")
        assert again == one
        assert again.digest() == one.digest()
        assert again.models[0].model.model_fields_set >= one.models[0].model.model_fields_set
    assert "max_batch_size" not in make_scenario(attached()).to_mapping()["model"]


def test_the_scenario_of_a_run_of_an_earlier_version_is_read() -> None:
    struck = {"clients": {"lease": "5s", "timeout": "3s"}, "records": {"keep": "gathered", "fetch": "after"}}
    before = attached(model={"name": "m", "queue_delay": "2ms"}, **struck)
    read = scenario_of_run(before, "manifest")
    assert read.models[0].model.queue_delay_ns == 2_000_000
    assert (read.clients.timeout_ns, read.records.fetch) == (3_000_000_000, "after")
    assert read.digest() == scenario_from_mapping(read.to_mapping(), "again").digest()
    with pytest.raises(ScenarioError, match=r"records\.keep"):
        scenario_of_run(attached(records={"keep": "on-nodes"}), "manifest")
