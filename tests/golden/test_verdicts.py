"""Planted runs whose cause is known, through the real recording path: the first line of the verdict names it."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.busy import busy_host
from tests.null_process import NullProcess
from tests.verdict_runs import VerdictRun, run_planted, scenario_of

pytestmark = pytest.mark.serial
SERVICE = "--service=constant:4ms"
LOAD_S = 4.5
"""From where loops are started until the load has been sent."""


def assert_says_so_wherever_a_latency_stands(run: VerdictRun, share: str) -> None:
    """The head of the screen, the lines below its latencies, and the latency block of the summary."""
    assert run.screen[0].rstrip().endswith(f"{run.verdict.status}, {share} failed")
    below = [line for line in run.screen if "of these" in line and "requests failed" in line]
    assert len(below) == 1
    assert below[0].startswith(f"{share} of these ")
    assert run.summary.measure.failures.is_beyond
    assert max(map(len, run.screen)) <= 80


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    run = run_planted(tmp_path, SERVICE, before_start=NullProcess.kill)
    n, n_failed = (getattr(run.summary.measure.failures, name) for name in ("n", "n_failed"))
    assert n_failed == n > 200
    assert re.match(rf"INVALID   100 % of {n} requests failed, the server was not there: ", run.first_line)
    assert "Connection refused" in run.verdict.reasons[0]
    assert run.verdict.client_bottleneck is None
    assert run.verdict.causes[0].kind == "server not there"
    assert_says_so_wherever_a_latency_stands(run, "100 %")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_refuses_everything(protocol: str, tmp_path: Path) -> None:
    run = run_planted(tmp_path, SERVICE, "--fault=501:1", protocol=protocol)
    words = {"http": "HTTP 501", "grpc": "gRPC status 12"}[protocol]
    reason = run.verdict.reasons[0]
    n_sent, n_refused = map(
        int, re.findall(rf"100 % of (\d+) .*: (\d+) x {words} this endpoint does not infer", reason)[0]
    )
    said = f"INVALID   100 % of {n_sent} requests failed, the server refused: {n_refused} x"
    assert run.first_line.startswith(said)
    # all of them, but those that a crowded host did not come to before the run's end
    n_ended, n_unsent = (
        sum(map(int, re.findall(rf"(\d+) {what}", reason)))
        for what in ("x the run ended before the reply", "more never sent")
    )
    assert n_refused + n_ended == n_sent
    assert n_sent + n_unsent == run.summary.measure.failures.n
    assert n_refused > n_sent / 2
    assert run.verdict.causes[0].kind == "server refuses"
    assert_says_so_wherever_a_latency_stands(run, "100 %")


def test_a_server_that_answers_wrongly(tmp_path: Path) -> None:
    run = run_planted(tmp_path, SERVICE, "--fault=wrong:1")
    n = run.summary.measure.failures.n
    assert run.first_line.startswith(f"INVALID   100 % of {n} requests failed, the server answered wrongly:")
    assert f"{n} x the reply does not carry the request's id" in run.verdict.reasons[0]
    assert run.verdict.causes[0].kind == "server answers wrongly"


def test_a_server_that_fails_73_per_cent_of_a_load_that_was_delivered(tmp_path: Path) -> None:
    run = run_planted(tmp_path, SERVICE, "--fault=503:0.73")
    failures = run.summary.measure.failures
    n, n_failed = failures.n, failures.n_failed
    assert n_failed == int(0.73 * n)
    share = re.escape(f"{100 * n_failed / n:.1f} %")
    assert re.match(rf"(IN)?VALID   {share} of {n} requests failed, the server refused: ", run.first_line)
    assert f"{n_failed} x HTTP 503 the server is overloaded" in run.verdict.reasons[0]
    # no check is about what the server did: what else may be amiss on a busy host is the client's
    assert {check.name for check in run.verdict.checks if check.reason} <= {
        "delivered load", "delivered load per second", "delivered load in bursts", "dispersion 0.1 s",
        "send lag of the worst worker", "send lag end drift", "event-loop lag p95", "CPU of the server",
        "dispersion 1 s", "worker saturation",
    }  # fmt: skip
    assert_says_so_wherever_a_latency_stands(run, f"{100 * n_failed / n:.1f} %")


@pytest.mark.slow
def test_a_host_of_which_others_take_nine_tenths(tmp_path: Path) -> None:
    mapping = scenario_of("100/s", "2500ms")
    mapping["phases"][-1]["duration"] = (
        "10s"  # a server with a thirteenth of a core answers late, and does answer
    )
    with ExitStack() as stack:
        busy = busy_host(LOAD_S)  # not while the run is judged, which takes its time then
        run = run_planted(
            tmp_path, SERVICE, mapping=mapping, before_start=lambda _: stack.enter_context(busy)
        )
    (node,) = run.summary.cpu
    assert node.cores["others"] > 0.8 * node.n_cores  # what was planted, as it was recorded
    # of the two that wait for a core the scheduler decides which had to wait while there was work for it
    assert re.match("INVALID   Others took the CPU(:| from the load generator:) ", run.first_line)
    assert run.verdict.causes[0].kind == "others took the CPU"
    assert "add client workers" not in run.verdict.reasons[0]
