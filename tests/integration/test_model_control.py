"""Models of a real Triton that are loaded for a run and put back after it, however the run ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.net.triton_control import Control, ControlError
from squall.analysis.storage.store import RunStore
from squall.cluster.control.repository import Repository
from squall.cluster.node.endpoint import READY, Endpoint, attach
from squall.cluster.node.server import TritonServer
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import TargetError
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping, wait_until
from tests.integration.serving import serving

pytestmark = [pytest.mark.slow, pytest.mark.beside]
BROKEN = "raise RuntimeError('broken on purpose')"
MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Doubles its input."""

    def execute(self, requests):
        answers = []
        for request in requests:
            n = np.from_dlpack(pb_utils.get_input_tensor_by_name(request, "N"))
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", (n * 2).astype(np.int32))]))
        return answers
'''
CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 4
input [ {{ name: "N", data_type: TYPE_INT32, dims: [ 1 ] }} ]
output [ {{ name: "OUT", data_type: TYPE_INT32, dims: [ 1 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
"""


def repository_in(folder: Path) -> str:
    for name in ("resident", "sleeper", "broken"):
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL if name != "broken" else BROKEN)
        (version.parent / "config.pbtxt").write_text(CONFIG.format(name=name))
    return str(folder / "models")


class Watched:
    """A server in explicit mode that has `resident` ready, and nothing else."""

    def __init__(self, endpoint: Endpoint, control: Control, models: Path) -> None:
        self.url = endpoint.url
        self.models = models
        self._repository = Repository(control, endpoint.url, 30.0)

    def state(self) -> dict[str, Any]:
        """What is ready, and how it is configured."""
        return {
            name: (found, self._repository.config(name)) for name, found in self._repository.ready().items()
        }

    def is_in(self, state: dict[str, Any]) -> bool:
        """Whether it is so; not while a model comes or goes, whose configuration is not told."""
        try:
            return self.state() == state
        except TargetError:
            return False

    def load(self, name: str) -> None:
        self._repository.load(name)

    def unload(self, name: str) -> None:
        self._repository.unload(name)
        self._repository.settle([name])

    def n_instances(self, name: str) -> int:
        return sum(one["count"] for one in self._repository.config(name)["instance_group"])

    def scenario(self, model: str, control: dict[str, Any], seconds: int = 2) -> dict[str, Any]:
        return scenario_mapping(
            model={"name": model, "max_batch_size": 4},
            server={"url": self.url, "control": control},
            clients={"workers_per_node": 1},
            phases=[
                {"name": "main", "kind": "measure", "duration": f"{seconds}s",
                 "arrivals": {"kind": "poisson", "rate": "40/s"}},
                {"name": "drain", "kind": "drain", "duration": "5s"},
            ],
        )  # fmt: skip


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("control")
    settings = {"name": "resident", "repository": repository_in(folder), "max_batch_size": 4}
    with (
        serving(folder, **settings) as (_, endpoint),
        closing(Control(endpoint.url, timeout_s=30.0)) as control,
    ):
        yield Watched(endpoint, control, folder / "models")


def test_a_server_is_loaded_also_after_another_model_of_it_did_not_load(watched: Watched) -> None:
    """From then on it calls itself not ready; the tests below have it so."""
    with pytest.raises(TargetError, match="broken on purpose"):
        watched.load("broken")
    server = ServerConfig(url=watched.url)
    with closing(Control(watched.url)) as control, pytest.raises(ControlError, match=r"^status 400$"):
        control.ask(READY)
    assert attach([ModelConfig(name="resident")], server).models[0].spec.name == "resident"
    with pytest.raises(TargetError, match=r"^model 'broken' is not ready at .*broken on purpose"):
        attach([ModelConfig(name="broken")], server)


def test_a_run_that_is_broken_off_leaves_the_models_as_they_were(alone: Bench, watched: Watched) -> None:
    before = watched.state()
    assert list(before) == ["resident"]
    control = {"load": {"sleeper": {"instances": 2}}, "unload": ["resident"]}
    live = alone.start_run(watched.scenario("sleeper", control, seconds=60))
    alone.wait_for_phase("main", 0.5)
    assert list(watched.state()) == ["sleeper"]
    assert watched.n_instances("sleeper") == 2
    live.interrupt()
    assert live.end() != 0
    assert watched.state() == before
    facts = alone.aborted().manifest.servers["server-0"].control
    assert facts is not None
    assert (list(facts.loading_ns), facts.configured, facts.unloaded) == (
        ["sleeper"],
        ("sleeper",),
        ("resident",),
    )
    assert facts.loading_ns["sleeper"] > 0
    assert (facts.is_restored, facts.left) == (True, ())
    assert any(line.startswith("squall loaded sleeper in ") for line in live.lines)


@pytest.mark.long
def test_a_model_that_was_ready_has_its_own_configuration_again(alone: Bench, watched: Watched) -> None:
    before = watched.state()
    changed = {"max_batch_size": 2, "dynamic_batching": {"max_queue_delay_microseconds": 100}}
    live = alone.start_run(watched.scenario("resident", {"load": {"resident": {"config": changed}}}))
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    assert set(planned_rows(store)["outcome"]) == {"ok"}
    facts = store.manifest.servers["server-0"].control
    assert facts is not None
    assert (facts.configured, facts.is_restored) == (("resident",), True)
    serving = store.manifest.servers["server-0"].serving["resident"]
    assert (serving.max_batch_size, serving.queue_delay_ns, serving.n_instances) == (2, 100_000, 1)
    assert any("max_batch_size of resident is 2 at the server" in line for line in live.lines)
    assert watched.state() == before


@pytest.mark.long
def test_what_is_kept_is_there_for_the_next_run_which_has_nothing_to_load(
    alone: Bench, watched: Watched
) -> None:
    before = watched.state()
    live = alone.start_run(watched.scenario("sleeper", {"after": "keep"}))
    assert live.end() in (0, 3), live.lines
    facts = alone.store().manifest.servers["server-0"].control
    assert facts is not None
    assert (list(facts.loading_ns), facts.is_restored) == (["sleeper"], None)
    assert sorted(watched.state()) == ["resident", "sleeper"]
    watched.unload("sleeper")
    assert watched.state() == before


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_the_models_as_they_were(alone: Bench, watched: Watched) -> None:
    before = watched.state()
    live = alone.start_run(watched.scenario("sleeper", {"unload": ["resident"]}, seconds=60))
    alone.wait_for_phase("main", 0.5)
    os.kill(live.process.pid, signal.SIGKILL)
    live.end()
    wait_until(lambda: watched.is_in(before), 30.0, "the models are put back")
    (run_dir,) = alone.out.iterdir()
    log = run_dir / "logs" / "control-server-0.log"
    told = "the driver was killed; the server's models were put back as they were before the run"
    wait_until(log.exists, 10.0, "what came of it is told")
    wait_until(lambda: log.read_text().strip() == told, 5.0, "it is told whole")
    alone.start("resume", run_dir).end()
    alone.wait_until_gone()
    assert f"server-0: {told}" in alone.store().manifest.notes


@pytest.mark.long
def test_what_cannot_be_put_back_is_said_in_the_sealed_run(alone: Bench, watched: Watched) -> None:
    before = watched.state()
    live = alone.start_run(watched.scenario("sleeper", {"unload": ["resident"]}, seconds=5))
    alone.wait_for_phase("main", 0.5)
    model = watched.models / "resident" / "1" / "model.py"
    model.write_text(BROKEN)
    try:
        assert live.end() in (0, 3), live.lines
    finally:
        model.write_text(MODEL)
    manifest = alone.store().manifest
    facts = manifest.servers["server-0"].control
    assert facts is not None
    assert facts.is_restored is False
    assert facts.left[-1] == "model resident had version 1 ready before and has no version ready now"
    assert all(f"server-0: {one}" in manifest.notes for one in facts.left)
    assert any("does not load 'resident': " in one and "broken on purpose" in one for one in facts.left)
    assert any("does not load 'resident': " in line for line in live.lines)
    assert watched.state() == {}
    watched.load("resident")
    assert watched.state() == before


@pytest.mark.long
def test_a_dry_run_loads_nothing(alone: Bench, watched: Watched) -> None:
    before = watched.state()
    live = alone.start_run(watched.scenario("sleeper", {"unload": ["resident"]}), "--dry-run")
    assert live.end() == 0, live.lines
    assert "clients " in alone.stdout()
    assert watched.state() == before


@pytest.mark.long
def test_a_model_that_does_not_load_ends_the_run_with_its_reason_and_the_others_are_put_back(
    alone: Bench, watched: Watched
) -> None:
    before = watched.state()
    control = {"load": ["sleeper", "broken"], "unload": ["resident"]}
    live = alone.start_run(watched.scenario("sleeper", control))
    assert live.end() == 1
    assert "does not load 'broken': " in live.error_line()
    assert "broken on purpose" in live.error_line()
    assert watched.state() == before


class _Unmanaged(TritonServer):
    """In Triton's default mode, in which nothing is loaded or unloaded."""

    def _options(self, *arguments: Any) -> list[str]:
        given = super()._options(*arguments)
        return [one for one in given if "--model-control-mode" not in one and "--load-model" not in one]


@pytest.mark.long
def test_a_server_that_is_not_in_explicit_mode_refuses_before_ray_is_started(
    with_own_ray: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.integration.serving.TritonServer", _Unmanaged)
    folder = repository_in(tmp_path)
    (tmp_path / "models" / "broken").rename(tmp_path / "aside")
    with serving(tmp_path, name="resident", repository=folder, max_batch_size=4) as (_, endpoint):
        mapping = scenario_mapping(model={"name": "resident"}, server={"url": endpoint.url, "control": {}})
        live = with_own_ray.start_run(mapping)
        assert live.end() == 1
    assert live.error_line().endswith(
        f"{endpoint.url} does not let models be loaded and unloaded: start it with --model-control-mode=explicit"
    )
    assert not any("starting Ray" in line for line in live.lines)


@pytest.mark.long
def test_a_server_of_squalls_own_loads_others_beside_the_model_under_load(
    alone: Bench, tmp_path: Path
) -> None:
    begin = time.monotonic_ns()
    mapping = scenario_mapping(
        model={"name": "resident", "repository": repository_in(tmp_path), "max_batch_size": 4},
        server={"control": {"load": {"sleeper": {}, "resident": {"instances": 2}}}},
        clients={"workers_per_node": 1},
    )
    live = alone.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    facts = alone.store().manifest.servers["server-0"].control
    assert facts is not None
    assert (sorted(facts.loading_ns), facts.configured) == (["resident", "sleeper"], ("resident",))
    assert facts.is_restored is None
    assert 0 < max(facts.loading_ns.values()) < time.monotonic_ns() - begin
    assert any(line.startswith("squall loaded sleeper in ") for line in live.lines)


@pytest.mark.long
def test_a_delay_that_b_gives_the_batcher_of_a_running_server_takes_effect(
    alone: Bench, watched: Watched
) -> None:
    """At 40/s a batch of 4 takes 100 ms to fill: each of B's first requests waits for the delay."""
    before = watched.state()
    delay_ns = 30_000_000
    key = "server.control.load.resident.config.dynamic_batching.max_queue_delay_microseconds"
    path = alone.write(watched.scenario("resident", {"load": {"resident": {}}}))
    live = alone.start(
        "compare", path, "--pairs", "2", "--set-b", f"{key}={delay_ns // 1_000}", "--out", alone.out
    )
    live.end()  # of two short pairs it may decide nothing
    stores = [RunStore.open(each.parent) for each in sorted(alone.out.rglob("manifest.json"))]
    delays = [one.manifest.servers["server-0"].serving["resident"].queue_delay_ns or 0 for one in stores]
    assert {*delays} == {0, delay_ns}, live.lines
    rows = [planned_rows(store) for store in stores]
    medians_ns = [
        float(np.nanmedian(np.array(one["done_ns"], float) - np.array(one["sent_ns"], float))) for one in rows
    ]
    slow = [ns for ns, delay in zip(medians_ns, delays, strict=True) if delay]
    # requests that come while the first waits wait less, 22 ms in the mean; load and noise only add to that
    assert min(slow) > 0.4 * delay_ns, medians_ns
    assert watched.state() == before
