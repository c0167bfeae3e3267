"""Faults of a scenario: each is one line with the key, what stands there and the way out (`faults.yaml`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from squall.cluster.cli import app
from squall.scenarios.config.client import ClientConfig
from squall.scenarios.config.loader import make_scenario, scenario_from_mapping, scenario_of_run
from squall.scenarios.config.profile import needed_pause_ns
from squall.scenarios.errors import ScenarioError
from squall.scenarios.units import NS_PER_S
from tests.unit.scenarios.config.given import FAULTS, changed

CASES = [(place, value, said) for place, cases in FAULTS["faults"].items() for value, said in cases]


def fault_of(mapping: dict[str, Any]) -> str:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_mapping(mapping, "s.yaml")
    text = str(caught.value)
    assert text.startswith("s.yaml: ")
    assert "\n" not in text
    return text.removeprefix("s.yaml: ")


@pytest.mark.parametrize(("place", "value", "said"), CASES)
def test_a_fault_is_one_line_that_says_where_what_and_what_is_allowed(
    place: str, value: Any, said: str
) -> None:
    assert fault_of(changed(place, value)).startswith(said)


def test_each_key_of_the_clients_is_either_of_locust_or_refused_by_name() -> None:
    of_squall, of_locust = FAULTS["clients_of_squall"], FAULTS["clients_of_locust"]
    assert {*ClientConfig.file_keys().values()} == of_squall.keys() | of_locust.keys()
    load = {"locust": {"file": "locustfile.py", "run_time": "5s"}}
    for key, value in of_squall.items():
        text = fault_of(changed("scenario", {"load": load, "clients": {key: value}}))
        assert text == f"clients.{key}: is of squall's own client, and load.locust has Locust's; leave it out"
    for key, value in of_locust.items():
        scenario_from_mapping(changed("scenario", {"load": load, "clients": {key: value}}), "s.yaml")


URL = "http://127.0.0.1:9"


def attached(**changes: Any) -> dict[str, Any]:
    return changed("scenario", {"server": {"url": URL}, "model": {"name": "m"}, **changes})


@pytest.mark.parametrize("own", [{"server": {"url": URL}}, {"model": {"name": "m", "repository": "/models"}}])
def test_a_key_that_configures_what_squall_does_not_is_refused_though_it_states_the_default(
    own: dict[str, Any],
) -> None:
    for key, value in FAULTS["written_by_squall"].items():
        mapping = changed("scenario", {"model": {"name": "m"}, **own})
        mapping["model"] = {**mapping["model"], key: value}
        said = fault_of(mapping)
        assert said.startswith(f"model.{key}: has no effect")
        assert "server.control.load.m." in said
        make_scenario(FAULTS["base"], {f"model.{key}": value})  # which squall starts
    said = "is for a server that squall starts, the one at url runs already"
    for key, value in FAULTS["started_by_squall"].items():
        assert fault_of(attached(server={"url": URL, key: value})).startswith(f"server.{key}: {said}")
        of_all = attached(servers=[{"url": URL}], server={key: value})
        assert fault_of(of_all).startswith(f"servers[0].{key}: {said}")
        make_scenario(FAULTS["base"], {f"server.{key}": value})


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


def test_the_command_line_refuses_it_and_sends_nothing(tmp_path: Path) -> None:
    file, experiment, sizes = (tmp_path / name for name in ("mine.yaml", "sweep.yaml", "sizes.yaml"))
    phases = [{**FAULTS["base"]["phases"][0], "name": "warm", "kind": "warmup"}, *FAULTS["base"]["phases"]]
    file.write_text(yaml.safe_dump(attached(phases=phases, promises={"response": "p(95)<1s"})))
    for path, key in ((experiment, "model.instances"), (sizes, "model.max_batch_size")):
        path.write_text(yaml.safe_dump({"scenario": "mine.yaml", "matrix": {key: [1, 2]}}))
    delay, size = "model.queue_delay=5ms", "model.max_batch_size="
    for command in (
        ["run", file, "--set", delay],
        ["run", file, "--set", delay, "--dry-run"],
        ["check", file, "--set", delay],
        ["capacity", file, "--set", delay],
        ["compare", file, "--set-b", delay],
        ["compare", file, "--set-a", delay],
        ["compare", file, f"--set-a={size}32", f"--set-b={size}4"],
        ["sweep", experiment, "--dry-run"],
        ["sweep", experiment],
        ["sweep", sizes, "--dry-run"],
    ):
        done = CliRunner().invoke(app, [str(word) for word in command])
        assert done.exit_code != 0, command
        assert "server.control.load.m." in f"{done.output}{done.exception}", command


def recorded(lengths: list[tuple[str, str | None]], nsys: str = "required", **changes: Any) -> dict[str, Any]:
    """Phases of these kinds and lengths, recorded by nsys; without those that have no length."""
    arrivals = {"kind": "poisson", "rate": "5/s"}
    phases = [
        {"name": f"p{n}", "kind": kind, "duration": length, "arrivals": None if kind == "drain" else arrivals}
        for n, (kind, length) in enumerate([*lengths, ("drain", "1s")])
        if length is not None
    ]
    profile = {"nsys": nsys, **changes.get("profile", {})}
    return changed("scenario", {"model": {"name": "m"}, "phases": phases, **changes, "profile": profile})


@pytest.mark.parametrize(("changes", "needed_s"), FAULTS["pauses"])
def test_two_phases_that_nsys_cannot_both_record_are_refused_with_the_least_pause(
    changes: dict[str, Any], needed_s: int
) -> None:
    def measured_twice(pause: str | None) -> dict[str, Any]:
        return recorded(
            [("warmup", "3s"), ("measure", "6s"), ("warmup", pause), ("measure", "6s")], **changes
        )

    scenario_from_mapping(measured_twice(f"{needed_s}s" if needed_s else None), "s.yaml")
    for pause in (None, f"{needed_s * 10**9 - 1}ns") if needed_s else ():
        said = fault_of(measured_twice(pause))
        assert said.startswith("phases: nsys would miss the beginning of phase ")
        assert f" lie between it and 'p1', whose recording takes up to {needed_s}s to end" in said


def test_several_warmups_make_one_pause_which_on_a_gpu_grows_with_what_was_recorded() -> None:
    several: list[tuple[str, str | None]] = [
        ("measure", "1s"),
        ("warmup", "3s"),
        ("warmup", "2s"),
        ("measure", "1s"),
    ]
    scenario_from_mapping(recorded(several), "s.yaml")
    said = fault_of(recorded([*several, ("warmup", "1s"), ("measure", "1s")]))
    assert "phase 'p5' or all of it: 1s lie between it and 'p3'" in said
    # 9.0 s of stop for 6 s of recording on an H200 (docs/results.md), a second to notice it, 0.25 s to start
    assert needed_pause_ns(6 * NS_PER_S, may_use_gpu=True) >= (9.0 + 1 + 0.25) * NS_PER_S
    needed = [
        needed_pause_ns(length * NS_PER_S, is_gpu) for length, is_gpu in ((60, True), (1, True), (1, False))
    ]
    assert needed == [93 * NS_PER_S, 5 * NS_PER_S, 5 * NS_PER_S]
