"""Promises that are decided before the end of the load, with real processes and a null server of known faults: the load
ends, what is left is not sent, and what was measured before is judged over all that was planned."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.analysis.storage.store import RunStore
from tests.null_process import NullProcess

S = 1_000_000_000
ARRIVALS = {"kind": "poisson", "rate": "60/s"}
MAPPING: dict[str, Any] = {
    "name": "decided", "seed": 3, "model": {"name": "linear_head"},
    "clients": {"workers_per_node": 2, "timeout": "2s"},
    "phases": [
        {"name": "main", "kind": "measure", "duration": "15s", "arrivals": ARRIVALS},
        {"name": "more", "kind": "measure", "duration": "15s", "arrivals": ARRIVALS},
        {"name": "end", "kind": "drain", "duration": "3s"},
    ],
    "expect": {"failures": 0.1},
}  # fmt: skip
ABORTING = {"threshold": "p(95)<250ms", "abortOnFail": True}
TIMEOUT_S = 180


def run(
    tmp_path: Path, promises: dict[str, Any], *more: str, fault: str = ""
) -> tuple[int, dict[str, Any], RunStore]:
    path = tmp_path / "decided.yaml"
    path.write_text(yaml.safe_dump({**MAPPING, "promises": promises}))
    with NullProcess("--service=constant:2ms", *([f"--fault={fault}"] if fault else [])) as null:
        done = subprocess.run(
            [
                sys.executable, "-m", "squall.cluster.entry", "run", str(path), "--json",
                "--out", str(tmp_path / "runs"), "--server", f"http://127.0.0.1:{null.ports['http']}", *more,
            ],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert done.stdout, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    return done.returncode, json.loads(done.stdout), RunStore.open(folder)


def is_valid(summary: dict[str, Any]) -> bool:
    """On a crowded host the load may not have been delivered, and the run is INVALID, its promises not judged."""
    return bool(summary["verdict"]["status"] == "VALID")


@pytest.mark.long
@pytest.mark.slow
def test_6_percent_that_hang_end_the_load_before_its_time(tmp_path: Path) -> None:
    code, summary, store = run(tmp_path, {"response": ABORTING}, fault="hang:0.06")
    decided = summary["decided"]
    assert (decided["verdict"], decided["n"]) == ("broken", store.manifest.plan.n_arrivals)
    assert decided["n_late"] > 0.05 * decided["n"]
    first_ns, last_ns = decided["phases"][0]["start_ns"], decided["phases"][1]["end_ns"]
    assert first_ns < decided["certain_ns"] < decided["at_ns"] < last_ns
    assert summary["phases"][-1]["end_ns"] == decided["at_ns"]
    # No arrival lacks a row, and the checks look at what was before.
    rows = (
        store.read("requests", ["request_id", "outcome", "detail", "scheduled_ns"])
        .sort_by("request_id")
        .to_pylist()
    )
    assert [row["request_id"] for row in rows] == list(range(decided["n"]))
    unsent = [row for row in rows if row["outcome"] == "unsent"]
    assert {row["detail"] for row in unsent} == {"decided"}
    assert len(unsent) == decided["n_unsent"] > 0
    assert min(row["scheduled_ns"] for row in unsent) > decided["at_ns"] - S // 1_000
    assert summary["measure"]["outcomes"]["n"] == decided["n"] - len(unsent)
    (promise,) = summary["promises"]
    assert (promise["n"], promise["n_unsent"]) == (decided["n"], len(unsent))
    assert promise["certain"]["request_id"] == decided["request_id"]
    assert promise["n_late"] > promise["n_allowed"]
    assert promise["is_infinite"], "more than 5 % of all that was planned has failed"
    named = {check["name"]: check["is_met"] for check in summary["verdict"]["checks"]}
    for name in ("completeness", "losses", "lost records", "unsent", "delivered load"):
        assert named[name], name
    assert (code, promise["verdict"]) == ((99, "broken") if is_valid(summary) else (3, "invalid"))


@pytest.mark.long
@pytest.mark.slow
def test_a_promise_that_nothing_can_break_any_more_ends_the_load_too(tmp_path: Path) -> None:
    promises = {"response": "p(50)<1500ms", "failures": "rate<0.5"}
    code, summary, _ = run(tmp_path, promises, "--stop-when-decided")
    decided = summary["decided"]
    assert decided["verdict"] == "kept"
    assert decided["at_ns"] < decided["phases"][1]["end_ns"] - S
    assert 0.5 * decided["n"] <= decided["n_in_time"] < decided["n"]
    assert decided["certain_ns"] < decided["at_ns"]
    verdicts = Counter(one["verdict"] for one in summary["promises"])
    assert (code, verdicts) == ((0, {"kept": 2}) if is_valid(summary) else (3, {"invalid": 2}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "verdict", "code"),
    [pytest.param("0.04", "kept", 0, marks=pytest.mark.long), ("0.06", "broken", 99)],
)
def test_a_p95_is_finite_with_4_percent_of_failures_and_infinite_with_6(
    tmp_path: Path, share: str, verdict: str, code: int
) -> None:
    found, summary, _ = run(tmp_path, {"response": ABORTING}, fault=f"503:{share}")
    assert (summary["decided"] is None) == (verdict == "kept")
    (promise,) = summary["promises"]
    assert promise["is_infinite"] == (verdict == "broken")
    assert (found, promise["verdict"]) == ((code, verdict) if is_valid(summary) else (3, "invalid"))


@pytest.mark.slow
def test_a_server_that_fails_all_keeps_nothing(tmp_path: Path) -> None:
    code, summary, _ = run(tmp_path, {"response": ABORTING, "failures": "count<100000"}, fault="503:1")
    assert summary["decided"]["verdict"] == "broken"
    assert [one["verdict"] for one in summary["promises"]] == ["invalid", "invalid"]
    assert (code, summary["verdict"]["status"]) == (3, "INVALID"), "there is no latency of it"


def test_a_scenario_without_a_request_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "decided.yaml"
    rare = {"kind": "poisson", "rate": "0.000001/s"}
    phases = [{**one, "arrivals": rare} if one["kind"] == "measure" else one for one in MAPPING["phases"]]
    path.write_text(yaml.safe_dump({**MAPPING, "phases": phases, "promises": {"response": ABORTING}}))
    done = subprocess.run(
        [sys.executable, "-m", "squall.cluster.entry", "run", str(path), "--out", str(tmp_path / "runs")],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert "no arrival falls into main" in done.stderr
