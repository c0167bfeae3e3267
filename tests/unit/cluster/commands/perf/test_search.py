"""The search over runs of a server of known service times: what is run, told, written, and how it ends."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from squall.cluster.commands.perf.asked import asked_of
from squall.cluster.commands.perf.flags import parse
from squall.cluster.commands.perf.saved import levels_text, scenario_text
from squall.cluster.commands.perf.search import Search, settings_lines
from squall.cluster.commands.perf.served import Served, place_of
from squall.cluster.draining import Draining
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measurer
from squall.cluster.progress import Screen
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.arrivals.stationary import ConstantArrivals
from squall.scenarios.arrivals.users import ClosedArrivals
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.strict_yaml import parse_yaml
from squall.scenarios.units import NS_PER_S
from tests.plain_runs import START_NS, plain_run

MS = NS_PER_S // 1_000
SPEC = ModelSpec("m", "1", (TensorSpec("IN", "FP32", (4,)),), (TensorSpec("OUT", "FP32", (2,)),), 8)
SERVED = Served("http://localhost:8000", SPEC, has_cache=False)


class Server:
    """Stands for `run_scenario`: each user's requests take `service_ms(users or rate, run, second)`. `statuses`: of the
    runs in turn, VALID after the last; `fails`: one in so many requests."""

    def __init__(
        self, service_ms: Callable[[float, int, int], float], *statuses: str, fails: int = 0
    ) -> None:
        self.levels: list[float] = []
        self._service_ms = service_ms
        self._statuses = statuses
        self._fails = fails

    def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        del ray, interrupts
        run = len(self.levels)
        phases, at_ns = list[dict[str, Any]](), START_NS
        for phase in one.phases:
            end_ns = at_ns + phase.duration_ns
            phases.append({"name": phase.name, "kind": phase.kind, "start_ns": at_ns, "end_ns": end_ns})
            at_ns = end_ns
        arrivals = one.phases[0].arrivals
        assert isinstance(arrivals, ClosedArrivals | ConstantArrivals)
        level = float(arrivals.users if isinstance(arrivals, ClosedArrivals) else arrivals.rate_hz)
        self.levels.append(level)
        rows = self._rows(arrivals, level, run, phases[-1]["start_ns"])
        folder = out / f"run-{run}"
        folder.mkdir()
        store = plain_run(folder, {"requests": rows}, phases=phases)
        status = self._statuses[run] if run < len(self._statuses) else "VALID"
        summary: Any = SimpleNamespace(verdict=SimpleNamespace(reasons=(f"the run is {status}",)))
        return RunResult(store.run_dir, summary, status)

    def _rows(self, arrivals: Any, level: float, run: int, until_ns: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        is_closed = isinstance(arrivals, ClosedArrivals)
        for user in range(int(level) if is_closed else 1):
            sent = START_NS + user
            while sent < until_ns:
                second = (sent - START_NS) // NS_PER_S
                service = round(self._service_ms(level, run, second) * MS)
                is_ok = not self._fails or len(rows) % self._fails
                rows.append({
                    "sent_ns": sent, "first_byte_ns": sent + service, "done_ns": sent + service,
                    "scheduled_ns": None if is_closed else sent, "rows": 1,
                    "outcome": "ok" if is_ok else "server_error",
                })  # fmt: skip
                sent += service if is_closed else round(NS_PER_S / level)
        return rows


def search(tmp_path: Path, line: str, server: Server) -> tuple[Search, list[str], list[str]]:
    asked = asked_of(parse(["-m", "m", "-p", "1000", *shlex.split(line)]))
    said: list[str] = []
    warned: list[str] = []
    draining = Draining(lambda _: None)
    measurer = Measurer(tmp_path, None, Interrupts(), server, Screen(), draining)
    found = Search(asked, place_of(asked), SERVED, measurer, said.append, warned.append)
    found.run()
    found.write()
    return found, said, warned


def test_a_range_is_run_level_by_level_and_written(tmp_path: Path) -> None:
    server = Server(lambda users, _run, _second: 10.0 + users)
    line = f"--concurrency-range 1:3 -f {tmp_path}/a.csv --profile-export-file {tmp_path}/a.json"
    found, said, warned = search(tmp_path, line, server)
    assert (server.levels, found.exit_code, warned) == ([1.0, 2.0, 3.0], 0, [])
    assert [one for one in said if one.startswith("Request concurrency")] == [
        f"Request concurrency: {n}" for n in (1, 2, 3)
    ]
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["p50 latency"] for row in rows] == ["11000", "12000", "13000"]
    document = json.loads((tmp_path / "a.json").read_text())
    for row, experiment in zip(rows, document["experiments"], strict=True):
        edges = experiment["window_boundaries"]
        assert len(edges) == 4
        service = [one["response_timestamps"][0] - one["timestamp"] for one in experiment["requests"]]
        assert int(np.percentile(service, 99, method="inverted_cdf") // 1_000) == int(row["p99 latency"])
        seconds = (edges[-1] - edges[0]) / NS_PER_S
        assert float(row["Inferences/Second"]) == pytest.approx(len(service) / seconds, rel=1e-5)
    assert said[-3].startswith("Concurrency: 1, throughput: ")


def test_a_level_whose_first_windows_differ_is_run_longer(tmp_path: Path) -> None:
    server = Server(lambda _users, run, second: 10.0 if run or second != 2 else 20.0)
    found, _, warned = search(tmp_path, "", server)
    assert (server.levels, found.exit_code) == ([1.0, 1.0], 0)
    assert warned == ["concurrency 1 once more: the windows are not stable"]
    (result,) = found.results
    assert result.figures is not None
    assert len(result.figures.pass_hz) == 7


def test_a_level_that_never_settles_ends_the_search_and_stands_in_no_csv(tmp_path: Path) -> None:
    server = Server(lambda users, _run, second: 10.0 * (1 + second % 2) if users == 2 else 10.0)
    found, said, warned = search(tmp_path, f"--concurrency-range 1:3 -f {tmp_path}/a.csv", server)
    assert (server.levels, found.exit_code) == ([1.0, 2.0, 2.0], 4)
    assert "Failed to obtain stable measurement within 10 measurement windows for concurrency 2" in warned[-1]
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2
    assert said[-1].startswith("Concurrency: 1,")


def test_the_latency_threshold_ends_the_search(tmp_path: Path) -> None:
    server = Server(lambda users, _run, _second: 5.0 * users)
    found, said, warned = search(tmp_path, "--concurrency-range 1:0 -l 15", server)
    assert (server.levels, found.exit_code) == ([1.0, 2.0, 3.0], 0)
    assert warned == ["Measured latency went over the set limit of 15 msec: 15000 usec"]
    assert said[-1].startswith("Concurrency: 2,")


def test_a_binary_search_finds_the_edge(tmp_path: Path) -> None:
    server = Server(lambda users, _run, _second: 5.0 * users)
    search(tmp_path, "--concurrency-range 1:9 --binary-search -l 26", server)
    assert server.levels == [1.0, 9.0, 5.0, 7.0, 6.0]


def test_an_invalid_run_is_made_once_more_and_told_where_it_stays_so(tmp_path: Path) -> None:
    server = Server(lambda _users, _run, _second: 10.0, "INVALID")
    found, _, _ = search(tmp_path, "", server)
    assert (len(server.levels), found.exit_code) == (2, 0)
    (tmp_path / "again").mkdir()
    server = Server(lambda _users, _run, _second: 10.0, "INVALID", "INVALID")
    found, _, warned = search(tmp_path / "again", f"-f {tmp_path}/a.csv", server)
    assert (len(server.levels), found.exit_code) == (2, 3)
    assert "[WARNING] concurrency 1 is INVALID: the run is INVALID" in warned
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2


def test_requests_that_fail_end_the_search(tmp_path: Path) -> None:
    server = Server(lambda _users, _run, _second: 10.0, fails=50)
    found, said, _ = search(tmp_path, "--concurrency-range 1:3", server)
    assert (server.levels, found.exit_code) == ([1.0], 99)
    assert any("[WARNING] 6 of them failed" in line for line in said)


def test_a_rate_is_told_with_response_times(tmp_path: Path) -> None:
    server = Server(lambda _rate, _run, _second: 4.0)
    found, said, _ = search(tmp_path, "--request-rate-range 50:100:50", server)
    assert (server.levels, found.exit_code) == ([50.0, 100.0], 0)
    assert "Request Rate: 50 inference requests per second" in said
    assert any("squall: from the scheduled instant p50 4000" in line for line in said)


def test_a_number_of_requests_is_measured_in_one_window(tmp_path: Path) -> None:
    server = Server(lambda _users, _run, _second: 10.0)
    found, _, _ = search(tmp_path, "--request-count 500", server)
    (result,) = found.results
    assert result.figures is not None
    assert (result.figures.n_requests, len(server.levels), found.exit_code) == (500, 2, 0)


def test_windows_without_requests_are_told(tmp_path: Path) -> None:
    server = Server(lambda _users, _run, _second: 60_000.0)
    found, _, warned = search(tmp_path, "", server)
    assert found.exit_code == 4
    assert "Failed to obtain stable measurement" in warned[-1]


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("--concurrency-range 1:3", ["users=2", "users=3"]),
        ("--request-rate-range 50:51:0.5", ["rate=50.5/s", "rate=51/s"]),
        ("--concurrency-range 2:0 -l 5", ["users=3"]),
        ("--concurrency-range 2", []),
    ],
)
def test_a_saved_scenario_is_the_first_level_and_names_the_others(
    tmp_path: Path, line: str, others: list[str]
) -> None:
    asked = asked_of(parse(["-m", "m", *shlex.split(line)]))
    measurer = Measurer(tmp_path, None, Interrupts(), Server(lambda *_: 1.0), Screen())
    text = scenario_text(Search(asked, place_of(asked), SERVED, measurer, print, print))
    loaded = scenario_from_mapping(parse_yaml(text, "saved"), "saved")
    assert [phase.name for phase in loaded.phases] == ["warmup", "measure", "drain"]
    told = [one for one in text.splitlines() if one.startswith("# another level")]
    assert len(told) == len(others)
    for row, other in zip(told, others, strict=True):
        assert f"--set phases.measure.arrivals.{other}" in row


def test_settings_are_told_before_anything_is_sent() -> None:
    def told(line: str) -> list[str]:
        return settings_lines(asked_of(parse(["-m", "m", *shlex.split(line)])))

    assert told("") == [
        "*** Measurement Settings ***", "  Batch size: 1", "  Service Kind: TRITON",
        '  Using "time_windows" mode for stabilization', "  Stabilizing using average latency and throughput",
        "  Measurement window: 5000 msec", "  Using synchronous calls for inference", "",
    ]  # fmt: skip
    assert "  Concurrency limit: 4 concurrent requests" in told("--concurrency-range 1:4")
    assert "  Request Rate limit: 100 requests per seconds" in told("--request-rate-range 50:100")
    assert "  Using poisson distribution on request generation" in told(
        "--request-rate-range 5 --request-distribution poisson"
    )
    assert "  Minimum number of samples in each window: 50" in told("--measurement-mode count_windows")
    assert told("--request-count 9 --warmup-request-count 1")[3:5] == [
        "  Sending 1 warmup request", "  Sending 9 benchmark requests",
    ]  # fmt: skip
    assert "  Using Binary Search algorithm" in told("--binary-search --concurrency-range 1:4 -l 2")
    assert "  Using asynchronous calls for inference" in told("-a")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "would run concurrency 1"),
        (
            "--concurrency-range 1:20:2",
            "would run concurrency 1, 3, 5, 7, 9, 11, 13, 15, and 2 more up to 19",
        ),
        (
            "--request-rate-range 1:0 -l 3",
            "would run request rate 1, 2 and so on, until one is over the latency threshold",
        ),
    ],
)
def test_a_dry_run_names_the_levels(line: str, said: str) -> None:
    assert levels_text(asked_of(parse(["-m", "m", *shlex.split(line)]))) == said
