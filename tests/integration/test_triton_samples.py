"""Statistics and metrics of a real Triton that serves several models, against what was sent to them."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from squall.actors.net.triton_control import Control, ControlError
from squall.actors.sampling.triton_metrics import parse_metrics
from squall.actors.sampling.triton_source import TritonSource
from squall.actors.sampling.triton_trace import TraceSwitch, trace_files, trace_options
from squall.analysis.requests.rejections import FULL_QUEUE, QUEUE_TIMEOUT
from squall.analysis.storage.schema import arrow_schema
from squall.cluster.node.server import Ports, free_ports
from squall.cluster.node.server_environment import server_environment
from squall.cluster.node.triton_home import find_triton
from squall.scenarios.config.servers import ServerConfig
from tests.integration.live_runs import wait_until

pytestmark = pytest.mark.beside

SLEEP_S = 0.1
MODEL = '''
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Gives its input back, after a sleep per batch; a first value of -1 is answered with an error, -2 raises."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self._sleep_s = float(parameters["sleep_s"]["string_value"])

    def execute(self, requests):
        time.sleep(self._sleep_s)
        return [self._answer(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]

    def _answer(self, values):
        if values[0, 0] == -1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("asked for"))
        if values[0, 0] == -2:
            raise RuntimeError("asked for")
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", np.array(values))])
'''
CONFIG = """
backend: "python"
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }]
instance_group [{ kind: KIND_CPU count: 1 }]
version_policy: { all { } }
"""
MODELS = {
    "quick": (0.0, (1, 2), ""),
    "narrow": (SLEEP_S, (1,), "default_queue_policy { max_queue_size: 2 }"),
    "hasty": (SLEEP_S, (1,), "default_queue_policy { default_timeout_microseconds: 20000 }"),
}
"""Name -> seconds a batch, versions, queue policy: a short queue; a short wait."""


@dataclass
class Triton:
    """A server of this test. `url` and `metrics_url` as `TritonSource` takes them."""

    ports: Ports
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports.http}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.metrics}"

    def source(self, *models: str) -> TritonSource:
        """A source that has its baseline; all models where none is named."""
        source = TritonSource(self.url, self.metrics_url, models or None)
        assert source.sample(time.monotonic_ns()) == []
        return source

    def infer(self, model: str, version: int = 1, rows: int = 1, value: float = 1.0) -> str:
        """Status and error of one request, empty if it succeeded."""
        tensor = {"name": "IN", "datatype": "FP32", "shape": [rows, 4], "data": [value] * (4 * rows)}
        with closing(http.client.HTTPConnection("127.0.0.1", self.ports.http, timeout=20)) as connection:
            path = f"/v2/models/{urllib.parse.quote(model)}/versions/{version}/infer"
            connection.request("POST", path, json.dumps({"inputs": [tensor]}))
            reply = connection.getresponse()
            answer = reply.read()
        return "" if reply.status == http.client.OK else f"{reply.status} {json.loads(answer)['error']}"

    def flood(self, model: str, n: int) -> Counter[str]:
        """Answers to n requests at once."""
        answers: Counter[str] = Counter()
        threads = [
            threading.Thread(target=lambda: answers.update([self.infer(model)]), daemon=True)
            for _ in range(n)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert answers.total() == n
        return answers

    def ask(self, path: str) -> None:
        """Posts to `path`: to load a model on a busy host may take longer than `Control` waits."""
        request = urllib.request.Request(self.url + path, b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=60):
            pass


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Triton]:
    home = find_triton()
    for name, (sleep_s, versions, policy) in MODELS.items():
        for version in versions:
            (folder / "models" / name / str(version)).mkdir(parents=True)
            (folder / "models" / name / str(version) / "model.py").write_text(MODEL)
        parameter = f'parameters {{ key: "sleep_s" value: {{ string_value: "{sleep_s}" }} }}\n'
        batching = f"dynamic_batching {{ {policy} }}\n"
        (folder / "models" / name / "config.pbtxt").write_text(f'name: "{name}"{CONFIG}{parameter}{batching}')
    ports = free_ports(ServerConfig())
    backends = ["--backend-directory", str(home.backends)] if home.backends else []
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(home.binary), *backends, "--model-repository", str(folder / "models"),
                "--model-control-mode=explicit", *(f"--load-model={name}" for name in MODELS),
                "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1",
                f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}",
                "--allow-gpu-metrics=false", "--allow-cpu-metrics=false", *options,
            ],
            stdout=log, stderr=log,
            env=server_environment(folder, home),
        )  # fmt: skip
    server = Triton(ports, folder)
    try:
        wait_until(lambda: is_ready(server) or process.poll() is not None, 60, "Triton is ready")
        assert process.poll() is None, (folder / "log").read_text()
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_ready(server: Triton) -> bool:
    with closing(Control(server.url)) as control:
        try:
            control.ask("/v2/health/ready")
        except ControlError:
            return False
    return True


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Triton]:
    """Its trace API is set up and never switched on: this version would crash."""
    folder = tmp_path_factory.mktemp("triton")
    with running(folder, *trace_options(folder / "trace.json")) as server:
        yield server


def total(rows: list[dict[str, Any]], column: str) -> int:
    return sum(row[column] or 0 for row in rows)


def failures(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Failures by reason, from the metrics."""
    reasons = ("rejected", "backend", "canceled", "other")
    return {reason: total(rows, f"failure_{reason}_count") for reason in reasons}


def settled(
    source: TritonSource, n_ended: int, before: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Rows until they and those `before` have `n_ended` requests: Triton counts some after it has answered."""
    rows: list[dict[str, Any]] = []

    def has_all() -> bool:
        rows.extend(source.sample(time.monotonic_ns()))
        n = sum(total([*before, *rows], name) for name in ("request_count", "failure_count"))
        assert n <= n_ended
        return n == n_ended

    wait_until(has_all, 30, f"{n_ended} requests are counted")
    return rows


def test_deltas_add_up_to_what_was_sent_to_each_version_of_each_model(triton: Triton) -> None:
    sent = {("quick", "1"): [1, 2, 8], ("quick", "2"): [3], ("narrow", "1"): [4]}
    rows: list[dict[str, Any]] = []
    with closing(triton.source()) as source:
        for (model, version), batches in sent.items():
            for size in batches:
                assert triton.infer(model, int(version), size) == ""
                rows += source.sample(time.monotonic_ns())
        rows += settled(source, 5, rows)
    assert {(row["model"], row["version"]) for row in rows} == {*sent, ("hasty", "1")}
    for (model, version), batches in sent.items():
        own = [row for row in rows if (row["model"], row["version"]) == (model, version)]
        assert total(own, "request_count") == len(batches)
        assert total(own, "inference_count") == sum(batches)
        assert total(own, "execution_count") == len(batches)
        counts = Counter[int]()
        for row in own:
            counts.update(dict(zip(row["batch_sizes"], row["batch_counts"], strict=True)))
            assert row["queue_ns"] + row["compute_infer_ns"] <= row["success_ns"]
        assert counts == Counter(batches)
        assert 0 < total(own, "success_ns") <= total(own, "interval_ns")
    assert not any(row["is_reset"] for row in rows)
    assert set(rows[0]) == set(arrow_schema("triton_samples").names) - {"run", "phase", "node", "server"}


@pytest.mark.parametrize(("value", "n_ok", "n_failed"), [(-1.0, 1, 0), (-2.0, 0, 1)])
def test_a_batch_that_raises_is_a_failure_of_the_backend_and_an_error_in_a_reply_counts_as_success(
    triton: Triton, value: float, n_ok: int, n_failed: int
) -> None:
    with closing(triton.source("quick")) as source:
        assert triton.infer("quick", 1, 1, value).startswith("500")
        rows = [row for row in settled(source, 1) if row["version"] == "1"]
        rows += [row for row in source.sample(time.monotonic_ns()) if row["version"] == "1"]
    assert (total(rows, "request_count"), total(rows, "failure_count")) == (n_ok, n_failed)
    assert failures(rows) == {"rejected": 0, "backend": n_failed, "canceled": 0, "other": 0}


def test_a_full_queue_is_known_to_the_clients_alone(triton: Triton) -> None:
    with closing(triton.source("narrow")) as source:
        answers = triton.flood("narrow", 24)
        n_refused = sum(n for answer, n in answers.items() if FULL_QUEUE in answer)
        rows = settled(source, 24 - n_refused)
    assert n_refused > 0
    assert total(rows, "request_count") == answers[""] == 24 - n_refused
    assert total(rows, "failure_count") == 0
    assert set(failures(rows).values()) == {0}


def test_a_queue_timeout_is_in_the_statistics_and_in_the_metrics_as_rejected(triton: Triton) -> None:
    with closing(triton.source("hasty")) as source:
        answers = triton.flood("hasty", 24)
        rows = settled(source, 24)
    n_expired = sum(n for answer, n in answers.items() if QUEUE_TIMEOUT in answer)
    assert n_expired == 24 - answers[""] > 0
    assert total(rows, "failure_count") == n_expired
    assert failures(rows) == {"rejected": n_expired, "backend": 0, "canceled": 0, "other": 0}


def test_pending_requests_are_those_that_wait_for_their_batch(triton: Triton) -> None:
    with closing(triton.source("narrow")) as source:
        threads = [threading.Thread(target=triton.infer, args=("narrow", 1, 8)) for _ in range(2)]
        for thread in threads:
            thread.start()

        def pending() -> list[int]:
            return [row["pending_count"] for row in source.sample(time.monotonic_ns())]

        wait_until(lambda: pending() == [1], 5, "one batch waits while the other runs")
        for thread in threads:
            thread.join()
        assert pending() == [0]


def test_a_model_that_was_unloaded_and_loaded_again_is_a_reset(triton: Triton) -> None:
    with closing(triton.source("quick", "hasty")) as source:
        for _ in range(2):
            assert triton.infer("quick", 2) == ""
        settled(source, 2)
        triton.ask("/v2/repository/models/quick/unload")
        (row,) = source.sample(time.monotonic_ns())
        assert (row["model"], row["is_reset"]) == ("hasty", False)
        triton.ask("/v2/repository/models/quick/load")
        for _ in range(9):
            assert triton.infer("quick", 2) == ""
        rows = settled(source, 9)
        first = {(row["model"], row["version"]): row["is_reset"] for row in rows[:3]}
        assert first == {("quick", "1"): True, ("quick", "2"): True, ("hasty", "1"): False}
        counts = Counter({(row["model"], row["version"]): 0 for row in rows})
        for row in rows:
            counts[row["model"], row["version"]] += row["request_count"]
        assert counts == {("quick", "1"): 0, ("quick", "2"): 9, ("hasty", "1"): 0}
        assert not any(row["is_reset"] for row in source.sample(time.monotonic_ns()))
        assert source.losses() == []


def test_the_metrics_of_this_server_are_read_whole(triton: Triton) -> None:
    with closing(Control(triton.metrics_url)) as control:
        text = control.ask("/metrics").decode()
    n_series = sum(not line.startswith("#") for line in text.splitlines())
    assert len(list(parse_metrics(text))) == n_series > 50


def test_the_trace_options_are_understood_and_nothing_is_traced_before_the_switch(triton: Triton) -> None:
    with closing(Control(triton.url)) as control:
        setting = control.ask_json("/v2/trace/setting")
    file = triton.folder / "trace.json"
    assert setting["trace_level"] == ["OFF"]
    assert (setting["trace_rate"], setting["log_frequency"], setting["trace_mode"]) == ("1", "1000", "triton")
    assert setting["trace_file"] == str(file)
    with closing(TraceSwitch(triton.url)) as switch:
        switch.turn_off()
    assert triton.infer("quick") == ""
    assert trace_files(file) == []
