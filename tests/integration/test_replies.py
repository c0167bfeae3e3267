"""Value checks and shared memory with a real server: right values, wrong ones, and nothing left behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from squall.actors.load.shared_memory import FOLDER, SharedMemorySettings, unregister_all
from squall.actors.load.worker import ModelRequests
from squall.actors.messages.value_check import Tally, ValueRule
from squall.actors.net.access import PLAIN
from squall.actors.net.triton_control import Control
from squall.analysis.record import to_json
from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.server import TritonServer
from squall.models.reference import answers_to, made_requests
from squall.scenarios.config.loader import scenario_from_mapping
from tests.golden.driving import MS, S, column, numbers, plan_of, run_worker, settings_of, toward
from tests.integration.live_runs import Bench, scenario_mapping
from tests.integration.test_losses import _holder_of, _spill_file

pytestmark = pytest.mark.beside

KINDS = [(1, 0)]  # of a plan of `driving`
SETTINGS: dict[str, int] = scenario_mapping()["model"]["settings"]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A Triton that serves the light scenario's model."""
    scenario = scenario_from_mapping(scenario_mapping(), "test")
    folder = tmp_path_factory.mktemp("triton")
    server = TritonServer([scenario.models[0].model], scenario.server, folder, None, has_gpu=False)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.mark.parametrize(("weights_seed", "n_wrong"), [(1, 0), (2, 10)])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_served_values_are_those_of_the_weights_and_of_no_others(
    endpoint: Endpoint, tmp_path: Path, protocol: str, weights_seed: int, n_wrong: int
) -> None:
    port = endpoint.port if protocol == "http" else endpoint.grpc_port
    settings = settings_of(tmp_path, port, spec=endpoint.models[0].spec, protocol=protocol)
    settings = replace(settings, models=(ModelRequests(check=ValueRule(3, 1e-3, 1e-5)),))
    plan = plan_of([i * MS for i in range(30)], 10 * S)
    sizes = SETTINGS | {"weights_seed": weights_seed}
    answers = answers_to(
        endpoint.models[0].spec, sizes, made_requests(endpoint.models[0].spec, KINDS, settings.seed)
    )
    tallies: list[Tally] = []
    rows = run_worker(settings, plan, answers=answers, after=lambda worker: tallies.append(worker.tally()))
    assert tallies == [Tally(10, n_wrong)]
    wrong = [i for i, outcome in enumerate(column(rows, "outcome")) if outcome == "bad_reply"]
    assert wrong == (list(range(0, 30, 3)) if n_wrong else [])
    assert column(rows, "outcome").count("ok") == 30 - n_wrong
    assert all(str(column(rows, "detail")[i]).startswith("output OUTPUT is ") for i in wrong)


@pytest.mark.slow
def test_a_server_of_other_weights_ends_in_bad_replies(joined: Bench, endpoint: Endpoint) -> None:
    mapping = scenario_mapping()
    mapping["model"]["settings"]["weights_seed"] = 2
    mapping["clients"] |= {"check": {"share": 0.5}, "protocol": "grpc"}
    mapping["server"] = {"grpc_port": endpoint.grpc_port}
    mapping["phases"][1]["duration"] = "1s"
    live = joined.start_run(mapping, "--server", endpoint.url, "--json")
    assert live.end() in (0, 3, 99), live.lines
    store = joined.store()
    checks = store.manifest.value_checks
    assert checks is not None
    assert checks.every == 1  # two workers take ids in turn: of every other one all would be one worker's
    outcomes = column(store.read("requests"), "outcome")
    assert outcomes.count("bad_reply") == checks.n_wrong == checks.n_checked == len(outcomes) > 100
    joined.wait_until_gone()


def _left(run: str) -> list[Path]:
    return list(FOLDER.glob(f"squall-shm-{run}-*"))


def _registered(url: str) -> list[str]:
    control = Control(url)
    try:
        return [region["name"] for region in control.ask_json("/v2/systemsharedmemory/status")]
    finally:
        control.close()


@pytest.mark.parametrize(("inputs", "outputs"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_real_server_reads_and_writes_the_regions(
    endpoint: Endpoint, tmp_path: Path, protocol: str, inputs: bool, outputs: bool
) -> None:
    port = endpoint.port if protocol == "http" else endpoint.grpc_port
    run = f"{protocol}-{inputs}-{outputs}"
    settings = replace(
        toward(
            settings_of(tmp_path, port, spec=endpoint.models[0].spec, protocol=protocol),
            shared_memory=SharedMemorySettings(inputs, outputs, endpoint.url),
        ),
        run=run, models=(ModelRequests(check=ValueRule(3, 1e-3, 1e-5)),),
    )  # fmt: skip
    answers = answers_to(
        endpoint.models[0].spec, SETTINGS, made_requests(endpoint.models[0].spec, KINDS, settings.seed)
    )
    tallies: list[Tally] = []
    rows = run_worker(
        settings,
        plan_of([i * MS for i in range(30)], 10 * S),
        answers=answers,
        after=lambda worker: tallies.append(worker.tally()),
    )
    assert column(rows, "outcome") == ["ok"] * 30, set(column(rows, "detail"))
    assert tallies == [Tally(10, 0)]
    assert _left(run) == []
    assert _registered(endpoint.url) == [f"squall-shm-{run}-0-0"]
    assert unregister_all(run, endpoint.url, PLAIN) == []
    assert _registered(endpoint.url) == []


@pytest.mark.slow
def test_a_run_with_checks_in_shared_memory_counts_them_and_leaves_the_server_as_it_was(
    joined: Bench, endpoint: Endpoint
) -> None:
    kinds = [(rows, variant) for rows in range(1, 5) for variant in range(4)]
    answers = answers_to(
        endpoint.models[0].spec,
        SETTINGS,
        made_requests(endpoint.models[0].spec, kinds, scenario_mapping()["seed"]),
    )
    named = {f"OUTPUT/{kind[0]}/{kind[1]}": outputs["OUTPUT"] for kind, outputs in answers.items()}
    reference = joined.folder / "right.npz"
    np.savez(reference, allow_pickle=False, **named)
    mapping = scenario_mapping()
    mapping["clients"] |= {
        "shared_memory": True,
        "check": {"share": 0.1, "reference": str(reference)},
        "protocol": "grpc",
    }
    mapping["server"] = {"grpc_port": endpoint.grpc_port}
    mapping["phases"][1]["duration"] = "1s"
    live = joined.start_run(mapping, "--server", endpoint.url, "--json")
    assert live.end() in (0, 3, 99), live.lines
    store = joined.store()
    requests = store.read("requests")
    assert column(requests, "outcome").count("ok") == requests.num_rows > 100
    sha256 = hashlib.sha256(reference.read_bytes()).hexdigest()
    n_checked = (numbers(requests, "request_id") % 9 == 0).sum()  # 10 and two workers have a common factor
    expected = {
        "every": 9,
        "rtol": 1e-3,
        "atol": 1e-5,
        "n_checked": n_checked,
        "n_wrong": 0,
        "reference_sha256": sha256,
    }
    assert to_json(store.manifest.value_checks) == expected
    assert json.loads(joined.stdout())["value_checks"] == expected
    assert set(numbers(requests, "response_bytes")) < set(range(1, 200))
    assert _left(store.run) == []
    assert _registered(endpoint.url) == []
    joined.wait_until_gone()


@pytest.mark.slow
def test_a_killed_worker_leaves_no_shared_memory(joined: Bench) -> None:
    mapping = scenario_mapping()
    mapping["clients"]["shared_memory"] = True
    live = joined.start_run(mapping, "--json")
    live.wait_for("2 workers on 1 node(s) are connected")
    run = next(iter(joined.out.iterdir())).name
    assert len(_left(run)) == 2
    assert joined.ray_tmp is not None
    _holder_of(_spill_file(joined.ray_tmp, 1)).kill()
    assert live.end() == 3, live.lines
    joined.wait_until_gone()
    assert _left(run) == []


@pytest.mark.parametrize(
    ("answers", "says"),
    [([500, 500, 200], []), ([400], ["keeps the shared memory region"]), ([200], [])],
    ids=["a request has not let go yet", "refused for good", "at once"],
)
def test_a_region_that_an_answered_request_still_holds_is_let_go_a_little_later(
    answers: list[int], says: list[str]
) -> None:
    left, name = list(answers), "squall-shm-run-3-0"

    class Triton(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, json.dumps([{"name": name}, {"name": "squall-shm-other-3-0"}]).encode())

        def do_POST(self) -> None:
            assert self.path == f"/v2/systemsharedmemory/region/{name}/unregister"
            self._say(left.pop(0), b"{}")

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Triton) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        notes = unregister_all("run", f"http://127.0.0.1:{server.server_address[1]}", PLAIN)
        server.shutdown()
    assert left == []
    assert [words in note for words, note in zip(says, notes, strict=True)] == [True] * len(says)
