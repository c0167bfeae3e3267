"""The findings of the real captures on an H200, with the figures that say so. The runs have no requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from squall.analysis.findings.find import find
from squall.analysis.findings.finding import Finding
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import self_checks, unmet
from squall.analysis.findings.tail_batches import batches_measures
from squall.analysis.metrics.batches import pick
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.query import connect
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.nsys import OPERATIONS
from tests.h200_runs import write_h200_run
from tests.regime_runs import diagnose, keys_of

Found = dict[tuple[str, str], Finding]
Diagnosed = tuple[Found, dict[str, SelfCheck], RunStore]


@pytest.fixture(scope="module")
def diagnosed(two_heads: RunStore, two_heads_metrics: RunMetrics) -> Diagnosed:
    checks = self_checks(two_heads, two_heads_metrics)
    findings = find(two_heads, two_heads_metrics, None, unmet(checks))
    return _by_scope(findings), {one.name: one for one in checks}, two_heads


def _by_scope(findings: list[Finding]) -> Found:
    return {(one.scope.phase, one.level): one for one in findings}


def values(finding: Finding) -> dict[str, float | None]:
    return {piece.measure: piece.value for piece in finding.evidence}


@pytest.mark.parametrize(
    ("model", "window", "body"),
    [("linear_head", "host-bound", "launch-bound"), ("seqlen_head", "host-bound", "GPU-bound")],
)
def test_each_model_gets_its_name_on_both_levels(
    diagnosed: Diagnosed, model: str, window: str, body: str
) -> None:
    assert diagnosed[0][model, "window"].rule == window
    assert diagnosed[0][model, "body"].rule == body


def test_the_figures_that_say_host_bound(diagnosed: Diagnosed) -> None:
    shares = {
        "linear_head": (0.67, 33.2, 3.8, 2.7, 15.6, 44.6),
        "seqlen_head": (0.51, 31.3, 3.3, 26.6, 7.2, 31.7),
    }
    for model, (of_exec, *of_wall) in shares.items():
        finding = diagnosed[0][model, "window"]
        assert round(values(finding)["head_tail_of_exec_ratio"] or 0.0, 2) == of_exec
        names = ("head", "tail", "gpu_busy", "body_idle", "between")
        assert [100 * (finding.shares[name] or 0.0) for name in names] == pytest.approx(of_wall, abs=0.051)
        assert sum(value for value in finding.shares.values() if value is not None) == pytest.approx(1.0)
        assert finding.give_back.wall_ratio == pytest.approx((of_wall[0] + of_wall[1]) / 100, abs=0.001)
        assert finding.give_back.response_ratio is None
        missing = {one.rule for one in finding.not_assessed}
        assert missing == {
            "client-bound",
            "refused",
            "unserved",
            "under-offered",
            "queue-bound",
            "scheduler/IPC-bound",
        }
        assert finding.confidence == "medium"


def test_the_figures_that_say_launch_bound(diagnosed: Diagnosed) -> None:
    finding = diagnosed[0]["linear_head", "body"]
    found = values(finding)
    digits = {
        "body_busy_ratio": 3,
        "issue_to_op_ratio": 1,
        "host_wait_of_idle_ratio": 2,
        "launch_depth_nonempty_mean": 1,
    }
    assert [round(found[name] or 0.0, n) for name, n in digits.items()] == [0.147, 14.8, 0.99, 1.0]
    assert "an operation is issued every 21.8 µs and takes 1.47 µs" in finding.claim
    assert finding.confidence == "high"


def test_the_figures_that_say_gpu_bound(diagnosed: Diagnosed) -> None:
    finding = diagnosed[0]["seqlen_head", "body"]
    found = values(finding)
    assert round(found["body_busy_ratio"] or 0.0, 3) == 0.787
    assert round(found["launch_depth_nonempty_mean"] or 0.0, 1) == 11.6
    assert finding.details == ()  # 4.4 % of its kernel time is below one wave
    assert finding.runner_up is not None
    assert (finding.runner_up.rule, finding.runner_up.holds) == ("sync-bound", False)


def test_the_worst_batches_are_the_first_of_the_filter(diagnosed: Diagnosed) -> None:
    findings, _, store = diagnosed
    rows = findings["linear_head", "window"].rows
    assert rows is not None
    found = keys_of(store, rows, "batch_id")
    assert len(found) == 568
    assert found[:5] == [one["batch_id"] for one in rows.worst]


def test_the_self_checks_of_the_capture_are_met_or_say_that_there_are_no_requests(
    diagnosed: Diagnosed,
) -> None:
    statuses = {name: one.status for name, one in diagnosed[1].items()}
    assert {name for name, status in statuses.items() if status == "met"} == {
        "wall", "launched before run", "operations tied", "calls tied", "batches profiled", "kernel sums",
        "broken events",
    }  # fmt: skip
    assert "unmet" not in statuses.values()


def test_measures_over_some_batches_are_defined_as_those_over_all(diagnosed: Diagnosed) -> None:
    findings, _, store = diagnosed
    tables = ["batch_costs", *OPERATIONS]
    with connect(store, tables) as connection:
        pick(connection)
        found = batches_measures(connection, tables)
    for model, instance in (("linear_head", "m_575"), ("seqlen_head", "m_576")):
        own = found[model, f"server-0/{instance}"]
        stated = values(findings[model, "body"])
        tried = {name: value for name, value in stated.items() if name in own}
        assert len(tried) >= 3
        assert tried == pytest.approx({name: own[name] for name in tried})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "window", "of_exec", "body"),
    [("linear_head", "host-bound", 0.41, "launch-bound"), ("seqlen_head", "body-bound", 0.23, "GPU-bound")],
)
def test_each_model_alone_gets_its_name(
    name: str,
    window: str,
    of_exec: float,
    body: str,
    h200_report: Callable[[str], NsysReport],
    tmp_path: Path,
) -> None:
    findings = _by_scope(diagnose(write_h200_run(tmp_path, h200_report(name)))[0])
    (of_window,) = (one for (_, level), one in findings.items() if level == "window")
    (of_body,) = (one for (_, level), one in findings.items() if level == "body")
    assert (of_window.rule, of_body.rule) == (window, body)
    tried = [of_window.evidence, of_window.runner_up.evidence if of_window.runner_up else ()]
    measures = {name: value for piece in tried for name, value in map(_measure, piece)}
    assert measures["head_tail_of_exec_ratio"] == pytest.approx(of_exec, abs=0.005)


def _measure(piece: object) -> tuple[str, float | None]:
    found = piece if isinstance(piece, dict) else vars(piece)
    return found["measure"], found["value"]
