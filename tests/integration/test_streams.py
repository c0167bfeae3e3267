"""Models that answer a request with many responses, over a real Triton."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.analysis.storage.schema import HUNG_UP
from squall.models.payload import LEAST_TRIAL_ID
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping, unmet

pytestmark = [pytest.mark.slow, pytest.mark.beside]

MODEL = '''
import heapq
import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Gives `n` responses, one each `gap_us`, from one thread; response i has i + 1 tokens. It writes down when it gave
    each. A negative `n`: an error after -n of them; 0: none at all."""

    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]
        self._told = open(given["told"]["string_value"], "a")
        self._due, self._n, self._is_over = [], 0, False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def execute(self, requests):
        now_ns = time.monotonic_ns()
        with self._wake:
            for request in requests:
                n, gap_us = (
                    int(np.from_dlpack(pb_utils.get_input_tensor_by_name(request, name)).ravel()[0])
                    for name in ("n", "gap_us")
                )
                sender, gap_ns = request.get_response_sender(), gap_us * 1000
                self._n += 1
                asked = request.request_id(), request.parameters()
                what = [now_ns, self._n, sender, asked, n, gap_ns, 0, []]
                heapq.heappush(self._due, (now_ns + gap_ns, self._n, what))
            self._wake.notify()

    def finalize(self):
        with self._wake:
            self._is_over = True
            self._wake.notify()
        self._thread.join()
        self._told.close()

    def _follow(self):
        while True:
            with self._wake:
                while not self._due and not self._is_over:
                    self._wake.wait()
                if not self._due:
                    return
                at_ns, number, what = self._due[0]
                wait_ns = at_ns - time.monotonic_ns()
                if wait_ns > 0:
                    self._wake.wait(wait_ns / 1e9)
                    continue
                heapq.heappop(self._due)
            self._give(what, at_ns, number)

    def _give(self, what, at_ns, number):
        _, _, sender, (request_id, parameters), n, gap_ns, index, given_ns = what
        if index < abs(n):
            tokens = np.arange(index + 1, dtype=np.int32).reshape(1, -1)
            given_ns.append(time.monotonic_ns())
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("tokens", tokens)]))
            what[6] += 1
            with self._wake:
                heapq.heappush(self._due, (at_ns + gap_ns, number, what))
            return
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if n < 0:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("out of words")), flags=final)
        else:
            sender.send(flags=final)
        parameters = json.loads(parameters or "{}")
        self._told.write(json.dumps({"id": request_id, "parameters": parameters, "given_ns": given_ns}) + "\\n")
        self._told.flush()
'''
CONFIG = """
name: "writer"
backend: "python"
max_batch_size: 4
model_transaction_policy {{ decoupled: true }}
input [
  {{ name: "n", data_type: TYPE_INT32, dims: [ 1 ] }},
  {{ name: "gap_us", data_type: TYPE_INT32, dims: [ 1 ] }}
]
output [ {{ name: "tokens", data_type: TYPE_INT32, dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
parameters: {{ key: "told" value: {{ string_value: "{told}" }} }}
"""
RIGHT = """
import numpy as np


def answers(inputs):
    n = int(inputs["n"].ravel()[0])
    return [{"tokens": np.arange(i + 1, dtype=np.int32).reshape(1, -1)} for i in range(min(n, 6))]
"""
Rows = Mapping[str, Any]


def mapping_of(
    folder: Path, n: int, gap_us: int, rate: str, protocol: str = "grpc", **clients: Any
) -> dict[str, Any]:
    version = folder / "models" / "writer" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (version.parent / "config.pbtxt").write_text(CONFIG.format(told=folder / "told"))
    return scenario_mapping(
        model={"name": "writer", "repository": str(folder / "models"), "max_batch_size": 4},
        clients={
            "workers_per_node": 2, "timeout": "20s", "protocol": protocol, "payload_variants": 1,
            "inputs": {"n": {"low": n, "high": n}, "gap_us": {"low": gap_us, "high": gap_us}},
            **{"stream": {"tokens": "tokens"}, **clients},
        },
        phases=[
            {"name": "main", "kind": "measure", "duration": "3s", "arrivals": {"kind": "poisson", "rate": rate}},
            {"name": "drain", "kind": "drain", "duration": "20s"},
        ],
    )  # fmt: skip


def told(folder: Path, what: str = "given_ns") -> dict[int, Any]:
    """When the model gave each response, or its "parameters", by request."""
    lines = (folder / "told").read_text().splitlines()
    found = {int(one["id"]): one[what] for one in map(json.loads, lines)}
    return {number: one for number, one in found.items() if number < LEAST_TRIAL_ID}


def responses_of(alone: Bench) -> tuple[Rows, Rows]:
    """The requests, and the responses in their order."""
    store = alone.store()
    keys = [("request_id", "ascending"), ("index", "ascending")]
    return planned_rows(store), store.read("responses").sort_by(keys).to_pydict()


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.long)])
def test_each_response_is_a_row_at_its_instant(alone: Bench, tmp_path: Path, protocol: str) -> None:
    parameters = {"lang": "de", "top_k": 50, "is_long": True}
    mapping = mapping_of(
        tmp_path,
        n=5,
        gap_us=20_000,
        rate="40/s",
        protocol=protocol,
        request={"parameters": parameters},
        try_first=True,
    )
    # the first response comes after 20 ms, the last one after 100
    mapping["promises"] = {
        "first_response": ["p(50)<15ms", "max<80ms"],
        "gap": "med<21ms",
        "mean_gap": "max<1s",
    }
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 4, 99), live.lines
    requests, responses = responses_of(alone)
    assert set(requests["outcome"]) == {"ok"}, set(requests["detail"])
    assert unmet(alone.store()) == []
    n, given = len(requests["request_id"]), told(tmp_path)
    assert sorted(given) == requests["request_id"]
    of_requests = told(tmp_path, "parameters").values()  # over HTTP Triton adds the id
    assert all(parameters.items() <= one.items() for one in of_requests)
    assert responses["request_id"] == np.repeat(requests["request_id"], 5).tolist()
    assert responses["index"] == [0, 1, 2, 3, 4] * n
    assert responses["tokens"] == [1, 2, 3, 4, 5] * n
    assert responses["is_final"] == [False, False, False, False, True] * n
    t_ns = np.array(responses["t_ns"]).reshape(n, 5)
    server_ns = np.array([given[one] for one in requests["request_id"]])
    behind_ns = t_ns - server_ns
    promises = json.loads((alone.store().run_dir / "summary.json").read_text())["promises"]
    waits_ns = t_ns[:, 0] - np.array(requests["scheduled_ns"])
    gaps_ns = np.diff(t_ns, axis=1)
    n_late = [n, np.sum(waits_ns >= 80_000_000), np.sum(gaps_ns.max(axis=1) >= 21_000_000), 0]
    assert [one["n_late"] for one in promises] == n_late
    assert promises[3]["value"] == gaps_ns.sum(axis=1).max() // 4
    behind_ns -= behind_ns.min()  # the run clock is UTC, the model's is not
    assert np.median(behind_ns) < 5_000_000, "a response is seen when it comes, not when its request ends"


@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.long), "grpc"])
def test_a_stream_that_breaks_off_is_an_outcome_and_keeps_its_responses(
    alone: Bench, tmp_path: Path, protocol: str
) -> None:
    live = alone.start_run(mapping_of(tmp_path, n=-3, gap_us=5_000, rate="40/s", protocol=protocol))
    assert live.end() in (0, 3, 99), live.lines
    requests, responses = responses_of(alone)
    assert set(requests["outcome"]) == {"server_error"}
    assert set(requests["detail"]) == {"out of words"}
    assert responses["request_id"] == np.repeat(requests["request_id"], 3).tolist()
    assert not any(responses["is_final"])
    assert all(n > 0 for n in requests["response_bytes"])


@pytest.mark.long
@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.long), "grpc"])
def test_a_stream_that_outlasts_its_timeout_keeps_what_came(
    alone: Bench, tmp_path: Path, protocol: str
) -> None:
    mapping = mapping_of(tmp_path, n=40, gap_us=100_000, rate="20/s", protocol=protocol, timeout="1s")
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    requests, responses = responses_of(alone)
    assert set(requests["outcome"]) == {"timeout"}
    n_of = np.bincount(responses["request_id"], minlength=len(requests["request_id"]))
    assert n_of.min() >= 1
    assert n_of.max() <= 10, "9 gaps of 100 ms fit into a second, and the one before the first"
    assert not any(responses["is_final"])


@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.long), "grpc"])
def test_clients_hang_up_as_often_as_asked(alone: Bench, tmp_path: Path, protocol: str) -> None:
    stream = {"cancel": {"share": 0.5, "after": 2}}
    live = alone.start_run(
        mapping_of(tmp_path, n=6, gap_us=10_000, rate="60/s", protocol=protocol, stream=stream)
    )
    assert live.end() in (0, 3, 99), live.lines
    requests, responses = responses_of(alone)
    assert set(requests["outcome"]) == {"ok"}, set(requests["detail"])
    n_of = np.bincount(responses["request_id"], minlength=len(requests["request_id"]))
    is_short = np.array([detail.startswith(HUNG_UP) for detail in requests["detail"]])
    n = len(is_short)
    assert abs(np.mean(is_short) - 0.5) < 4 * 0.5 / np.sqrt(n), "4 standard deviations of n fair draws"
    assert set(n_of[is_short]) == {2}
    assert set(n_of[~is_short]) == {6}
    assert responses["tokens"] == [None] * len(responses["tokens"])


@pytest.mark.long
def test_a_request_of_one_reply_may_be_a_stream_of_one(alone: Bench) -> None:
    mapping = scenario_mapping()
    mapping["clients"] |= {"protocol": "grpc", "stream": True}
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    requests, responses = responses_of(alone)
    assert set(requests["outcome"]) == {"ok"}, set(requests["detail"])
    assert responses["request_id"] == requests["request_id"]
    assert all(responses["is_final"])


def test_a_thousand_streams_are_open_at_once(alone: Bench, tmp_path: Path) -> None:
    """Each user's stream has 4 responses, one a second."""
    mapping = mapping_of(tmp_path, n=4, gap_us=1_000_000, rate="1/s")
    mapping["phases"][0] |= {
        "duration": "10s", "arrivals": {"kind": "closed", "users": 1000, "ramp": "1s"},
    }  # fmt: skip
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    store = alone.store()
    requests, responses = store.read("requests").to_pydict(), store.read("responses").to_pydict()
    assert set(requests["outcome"]) == {"ok"}, set(requests["detail"])
    n = len(requests["request_id"])
    assert len(responses["request_id"]) == 4 * n
    assert sum(responses["is_final"]) == n
    figures = json.loads((store.run_dir / "summary.json").read_text())["measure"]["streams"]
    assert figures["streams_most_count"] == 1000
    assert n >= 2000


@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.long), "grpc"])
def test_entries_of_a_users_data_are_streamed(alone: Bench, tmp_path: Path, protocol: str) -> None:
    """Each asks for as many responses as its `n`."""
    asked = [1, 4, 2, 7, 3]
    mapping = mapping_of(tmp_path, n=1, gap_us=1_000, rate="40/s", protocol=protocol)
    np.savez(tmp_path / "asked.npz", n=np.array(asked, np.int32).reshape(-1, 1))
    del mapping["clients"]["payload_variants"], mapping["clients"]["inputs"]["n"]
    mapping["clients"]["data"] = {"path": str(tmp_path / "asked.npz"), "order": "sequence"}
    (tmp_path / "right.py").write_text(RIGHT)
    mapping["clients"]["check"] = {"function": f"{tmp_path / 'right.py'}:answers", "share": 1}
    live = alone.start_run(mapping)
    assert live.end() in (0, 3, 99), live.lines
    requests, responses = responses_of(alone)
    outcomes = zip(requests["request_id"], requests["outcome"], requests["detail"], strict=True)
    for request_id, outcome, detail in outcomes:
        wrong = ("bad_reply", "response 7 is one more than are expected")
        assert (outcome, detail) == (wrong if asked[request_id % len(asked)] == 7 else ("ok", ""))
    checks = json.loads((alone.store().run_dir / "summary.json").read_text())["value_checks"]
    assert checks["n_checked"] == len(requests["request_id"])
    assert checks["n_wrong"] == requests["outcome"].count("bad_reply") > 0
    n_of = np.bincount(responses["request_id"], minlength=len(requests["request_id"])).tolist()
    assert n_of == [asked[one % len(asked)] for one in requests["request_id"]]
