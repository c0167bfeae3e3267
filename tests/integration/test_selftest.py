"""The command `squall selftest` from end to end, its errors, its exit codes, and nothing left of it."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import squall.cluster.commands.selftest_runs
from squall.cluster.cli import app
from squall.cluster.commands.selftest_runs import highest_clean, options_of
from squall.scenarios.errors import ScenarioError
from tests.integration.live_runs import Bench, Live, wait_until

pytestmark = pytest.mark.beside  # where a host is too busy to measure, it says so

S = 1_000_000_000
ENDS = {"passed": 0, "failed": 3, "not measurable": 4}
_SHORT = ("--duration", "200ms", "--check-duration", "500ms")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The JSON of a short selftest over HTTP."""
    with tempfile.TemporaryDirectory(prefix="sqt", dir="/tmp") as tmp:
        bench = Bench(tmp_path_factory.mktemp("selftest"), Path(tmp))
        live = bench.start("selftest", "--json", "--protocol", "http", *_SHORT)
        code = live.end()
        assert code in ENDS.values(), live.lines
        bench.wait_until_gone()
        result = json.loads(bench.stdout())
        assert code == ENDS[result["status"]]
        assert result["passed"] == (code == 0)
        yield result


def test_the_json_has_the_sweep_half_of_it_and_the_known_answers(whole: dict[str, Any]) -> None:
    assert list(whole) == ["host", "sweep", "at_half_rate", "known_answers", "status", "passed"]
    assert set(whole["host"]) == {"cores", "python", "no_lane"}
    assert {(sweep["protocol"], sweep["n_workers"]) for sweep in whole["sweep"]} >= {("http", 1)}
    first, halves = whole["sweep"][0], whole["at_half_rate"]
    # on a host on which no rate at all is clean there is none to halve
    clean_hz = first["highest_clean_hz"]
    assert [half["rate_hz"] for half in halves] == ([] if clean_hz is None else [clean_hz / 2])
    at_highest = max(
        (step for step in first["steps"] if step["is_clean"]), key=itemgetter("rate_hz"), default=None
    )
    assert (clean_hz, first["at_highest"]) == (at_highest and at_highest["rate_hz"], at_highest)
    for step in (*first["steps"], *halves):
        assert step["is_clean"] == (not step["reasons"])
        assert step["n_requests"] > 0
        assert step["cpu_user_ns_per_request"] > 0
        lag_ns = step["send_lag_ns"]
        assert list(lag_ns) == ["p50", "p95", "p99", "max"]
        known = [value for value in lag_ns.values() if value is not None]
        assert known == sorted(known)


def test_the_known_answers_agree_with_the_servers_record(whole: dict[str, Any]) -> None:
    answers = whole["known_answers"]
    assert [answer["queue"] for answer in answers] == ["M/D/inf", "M/M/1", "M/D/1", "M/M/4"]
    assert whole["passed"] == all(answer["passed"] for answer in answers)
    for answer in answers:
        assert answer["status"] != "failed", answer["reasons"]
        assert answer["passed"] == (not answer["reasons"])
        assert answer["n_requests"] > 10
        assert answer["over_server_ns"]["min"] >= 0
        assert [one["q"] for one in answer["quantiles"]] == [0.5, 0.95, 0.99][: len(answer["quantiles"])]
    assert answers[0]["over_constant_ns"]["min"] >= 0


@pytest.mark.parametrize(("status", "code"), [("passed", 0), ("failed", 3), ("not measurable", 4)])
def test_the_screen_fits_in_80_columns_and_the_exit_code_says_whether_all_passed(
    whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    passed = status == "passed"
    answers = [
        {
            **answer,
            "status": status,
            "passed": passed,
            "reasons": [] if passed else ["the server answers late"],
        }
        for answer in whole["known_answers"]
    ]
    step = whole["sweep"][0]["steps"][0]
    result = {
        **whole,
        "sweep": [{**whole["sweep"][0], "at_highest": step}],
        "at_half_rate": [step],
        "known_answers": answers,
        "status": status,
        "passed": passed,
    }
    monkeypatch.setattr(squall.cluster.commands.selftest_runs, "selftest", lambda *_: result)
    done = CliRunner().invoke(app, ["selftest"], env={"COLUMNS": "80"})
    assert done.exit_code == code
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert re.search(r"(\d |\S)…", done.stdout) is None, done.stdout  # nothing was cut off
    for words in (
        status.upper(),
        "http x1 top",
        "http x1 half",
        "http M/M/4 at 0.8",
        "way out",
        "theory",
        "exact",
    ):
        assert words in done.stdout, words
    assert (f"http M/D/1, {status}: the server answers late" in done.stdout) == (not passed)


def test_a_wrong_option_is_named_with_exit_code_2(alone: Bench) -> None:
    live = alone.start("selftest", "--protocol", "smtp")
    assert live.end() == 2
    assert "'smtp' is no protocol, use http or grpc" in live.error_line()


@pytest.mark.parametrize(
    ("step", "check", "said"),
    [("3", None, "'3' has no unit"), ("2s", "1ms", "a step or check of 1ms: use 100ms to 10m")],
)
def test_a_length_that_cannot_be_used_is_refused(step: str, check: str | None, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        options_of(None, step, check, None, False, 1)


def test_workers_are_tried_beside_one_and_the_loads_of_full_are_three() -> None:
    assert options_of(None, "2s", None, 3, False, 1).n_workers == (1, 3)
    assert options_of(None, "2s", None, 1, False, 1).n_workers == (1,)
    full = options_of("grpc", "2s", None, 1, True, 1)
    assert (full.protocols, full.load_ratios, full.check_ns) == (("grpc",), (0.5, 0.8, 0.95), 30 * S)


@pytest.mark.parametrize(
    ("limit_hz", "found"),
    [(11_000, (11_000, 16_000)), (700, (500, 710)), (1e9, (1_024_000, None)), (1, (None, 250))],
)
def test_the_search_brackets_the_highest_clean_rate(
    limit_hz: float, found: tuple[float | None, float | None]
) -> None:
    assert highest_clean(lambda rate_hz: rate_hz <= limit_hz, 4_000 if limit_hz < 1e9 else 1_000) == found


def test_a_null_server_that_cannot_start_is_one_line(alone: Bench) -> None:
    (alone.folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'squall.actors.null.triton' in sys.orig_argv:\n"
        "    os.write(2, b'no ports today\\n')\n"
        "    os._exit(1)\n"
    )
    live = alone.start("selftest", *_SHORT, env={"PYTHONPATH": str(alone.folder)})
    assert live.end() == 1
    assert live.error_line() == "squall: squall.actors.null.triton ended early: no ports today"
    alone.wait_until_gone()


def _in_a_step(bench: Bench) -> Live:
    """A selftest whose second step is under way: a null server and a worker run."""
    live = bench.start("selftest", "--duration", "60s")
    wait_until(lambda: len(bench.processes()) >= 3, 30, "server and worker")
    return live


def test_ctrl_c_leaves_nothing_running(alone: Bench) -> None:
    live = _in_a_step(alone)
    live.interrupt()
    assert live.end(60) == 1
    assert live.error_line() == "squall: interrupted by SIGINT"
    alone.wait_until_gone()


def test_a_killed_selftest_leaves_no_process(alone: Bench) -> None:
    live = _in_a_step(alone)
    os.kill(live.process.pid, signal.SIGKILL)
    live.end(20)
    wait_until(lambda: not alone.processes(), 20, "the end of every process")
