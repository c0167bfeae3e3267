"""The exact answer of a run holds a real server and a real client to it: each fault in their own paths is found.

Faults are in the processes themselves (`tests.golden.faulty`), the rows are what these made of them. A host that is
busy meanwhile may turn a fault of a stamp into "not measurable", never into "passed".
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import squall.cluster.commands.local_workers
from squall.analysis.statistics.answers import FAILED, PASSED, expect, judge_queue
from squall.cluster.commands.local_workers import Child
from squall.cluster.commands.selftest_runs import Options, serve

S = 1_000_000_000
OPTIONS = Options(protocols=("http",), check_ns=S)
EXPECTED = expect("exponential", 1, 0.8, S, 0.05, seed=1)
slow = partial(pytest.param, marks=pytest.mark.slow)
SERVER, WORKER = "squall.actors.null.triton", "squall.actors.load.worker_process"


def judged(fault: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """M/M/1 over HTTP for a second, with the fault in every process of that module."""
    start = Child.__init__

    def faulty(child: Child, name: str, *arguments: str) -> None:
        if name == module:
            start(child, "tests.golden.faulty", fault, name, *arguments)
        else:
            start(child, name, *arguments)

    monkeypatch.setattr(squall.cluster.commands.local_workers.Child, "__init__", faulty)
    queue = EXPECTED.queue
    service = f"exponential:{queue.service_ns}ns"
    (served,) = serve(OPTIONS, ("http",), service, 1, queue.arrival_hz, 1, folder)
    return judge_queue(
        EXPECTED, served.rows, served.planned_ns, served.record, served.service_seed, served.waits
    )


@pytest.mark.parametrize(
    ("fault", "module", "said"),
    [
        ("clock 10 % fast", SERVER, "replied in "),
        slow("clock 10 % slow", SERVER, "arrival lies before sent"),
        slow("service time dropped", SERVER, "departures are not those of the recursion, from arrival 50 on"),
        ("service time doubled", SERVER, "departures are not those of the recursion, from arrival 51 on"),
        ("a lane more", SERVER, "departures are not those of the recursion"),
        ("replies stamped 1 ms early", WORKER, "done lies before replied"),
        ("schedule moved along", WORKER, "scheduled instants are not those of the plan"),
    ],
)
def test_a_fault_that_no_host_explains_fails(
    fault: str, module: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = judged(fault, module, tmp_path, monkeypatch)
    assert answer["status"] == FAILED
    assert said in "; ".join(answer["reasons"])


@pytest.mark.parametrize(
    ("fault", "module", "said"),
    [
        ("timer 10 % slow", SERVER, "the server answers late"),
        ("replies stamped 1 ms late", WORKER, "the client stamps replies late"),
    ],
)
def test_a_lateness_in_every_request_is_never_passed(
    fault: str, module: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = judged(fault, module, tmp_path, monkeypatch)
    assert answer["status"] != PASSED
    assert said in "; ".join(answer["reasons"])


def test_without_a_fault_server_and_client_are_exact_whatever_the_host_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (SERVER, WORKER):
        answer = judged("none", module, tmp_path, monkeypatch)
        assert answer["status"] != FAILED, answer["reasons"]
        assert answer["n_requests"] > 50
        for one in answer["quantiles"]:
            assert one["exact_ns"] <= one["server_ns"] <= one["client_ns"]
