"""The findings of the real captures on an H200, with the figures that say so. The runs have no requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from squall.analysis.findings.finding import Finding
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import self_checks
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.nsys.report import NsysReport
from squall.analysis.storage.store import RunStore
from tests.h200_runs import write_h200_run
from tests.regime_runs import diagnose, found_in, keys_of
from tests.unit.analysis.findings.said import said

Diagnosed = tuple[dict[tuple[str, str], Finding], dict[str, SelfCheck], RunStore]


@pytest.fixture(scope="module")
def diagnosed(two_heads: RunStore, two_heads_metrics: RunMetrics) -> Diagnosed:
    checks = self_checks(two_heads, two_heads_metrics)
    findings = found_in(two_heads, two_heads_metrics, None, checks)
    by_scope = {(one.scope.phase, one.level): one for one in findings}
    return by_scope, {one.name: one for one in checks}, two_heads


FOUND = yaml.safe_load((Path(__file__).parent / "h200.yaml").read_text())
UNASKED = {"client-bound", "refused", "unserved", "under-offered", "queue-bound", "scheduler/IPC-bound"}


@pytest.mark.parametrize("model", FOUND)
def test_each_model_gets_its_name_on_both_levels_with_the_figures_that_say_so(
    diagnosed: Diagnosed, model: str
) -> None:
    found = {level: diagnosed[0][model, level] for level in FOUND[model]}
    assert {level: said(found[level], expected) for level, expected in FOUND[model].items()} == FOUND[model]
    assert {one.rule for one in found["window"].not_assessed} == UNASKED


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
    found = {one.level: one for one in diagnose(write_h200_run(tmp_path, h200_report(name)))[0]}
    assert (found["window"].rule, found["body"].rule) == (window, body)
    runner = found["window"].runner_up
    pieces = (*found["window"].evidence, *(runner.evidence if runner else ()))
    measures = {piece.measure: piece.value for piece in pieces}
    assert measures["head_tail_of_exec_ratio"] == pytest.approx(of_exec, abs=0.005)
