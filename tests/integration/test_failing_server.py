"""Real runs against servers that fail: what the screen says first, what the diagnosis says, and the exit code."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.integration.live_runs import Bench, scenario_mapping
from tests.null_process import NullProcess

pytestmark = [pytest.mark.slow, pytest.mark.beside]


def _run(bench: Bench, *faults: str, **changes: Any) -> tuple[dict[str, Any], int]:
    mapping = scenario_mapping(model={"name": "linear_head"}, **changes)
    mapping["phases"][1]["arrivals"] = {"kind": "poisson", "rate": "150/s"}
    with NullProcess("--service=constant:2ms", *faults) as null:
        url = f"http://127.0.0.1:{null.ports['http']}"
        live = bench.start_run(mapping, "--server", url, "--json")
        code = live.end()
    bench.wait_until_gone()
    return json.loads(bench.stdout()), code


def test_a_server_that_refuses_everything_is_named_and_said_to_have_answered(alone: Bench) -> None:
    summary, code = _run(alone, "--fault=501:1")
    assert code == 3
    reasons = summary["verdict"]["reasons"]
    assert re.match(r"100 % of \d+ requests failed, the server refused: \d+ x HTTP 501 ", reasons[0]), reasons
    windows = [one for one in summary["findings"] if one["level"] == "window"]
    assert [one["rule"] for one in windows] == ["refused"]
    assert "501 this endpoint does not infer" in windows[0]["claim"]


def test_a_server_that_fails_more_than_is_expected_is_said_first_and_is_data(alone: Bench) -> None:
    summary, code = _run(alone, "--fault=503:0.73", expect={"failures": 0.5})
    verdict = summary["verdict"]
    assert code == {"VALID": 99, "INVALID": 3}[verdict["status"]], "more failed than expect.failures allows"
    assert re.match(
        r"7[23]\.\d % of \d+ requests failed, the server refused: \d+ x HTTP 503 ", verdict["reasons"][0]
    )
    unmet = [one["name"] for one in verdict["checks"] if one["reason"]]
    assert not {"ok share", "server reached", "completeness", "losses"} & set(unmet)
    assert summary["measure"]["failures"]["allowed_ratio"] == 0.5
