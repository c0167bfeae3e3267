"""The rules of the body where several could hold: whose work the GPU does, and what its idle time waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from squall.analysis.findings.find import find
from squall.analysis.findings.finding import Finding
from squall.analysis.findings.rules.body_rules import BODY_RULES
from squall.analysis.findings.rules.classifier import assess, classify
from squall.analysis.findings.rules.facts import facts
from squall.analysis.findings.rules.rule import RuleName
from squall.analysis.findings.self_checks.self_check import SelfCheck
from squall.analysis.findings.self_checks.self_checks import self_checks, unmet
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.run import run_metrics
from tests import regime_runs
from tests.regime_runs import Op, Phase, Row, write_regime_run

US = 1_000
RULES = {rule.name: rule for rule in BODY_RULES}
WAITS_FOR_OTHERS: dict[str, float | None] = {
    "body_busy_ratio": 0.21, "blocked_of_exec_ratio": 0.8, "blocked_gpu_busy_ratio": 0.2, "mid_blocks_per_batch": 0.0,
    "host_wait_of_idle_ratio": 0.02, "launch_depth_nonempty_mean": 6.0, "issue_to_op_ratio": 0.6,
    "gpu_activity_ratio": 0.93, "foreign_busy_ratio": 0.74, "copy_exposed_of_body_ratio": 0.0,
}  # fmt: skip
"""A body whose GPU is busy with another process for most of the time."""


def named(measures: dict[str, float | None]) -> str:
    found = classify(BODY_RULES, facts(measures))
    return found.named.rule.name if found.named else found.status


def test_idle_time_behind_another_process_is_contention() -> None:
    assert named(WAITS_FOR_OTHERS) == "contention"
    assert named(WAITS_FOR_OTHERS | {"foreign_busy_ratio": 0.0}) == "sync-bound"
    no_waits: dict[str, float | None] = {"blocked_of_exec_ratio": 0.1, "foreign_busy_ratio": 0.0}
    assert named(WAITS_FOR_OTHERS | no_waits) == "GPU-bound"
    assert named(WAITS_FOR_OTHERS | no_waits | {"foreign_busy_ratio": 0.2}) == "contention"


@pytest.mark.parametrize(
    ("rule", "settled"),
    [("sync-bound", {"host_wait_of_idle_ratio": 0.5}), ("GPU-bound", {"body_busy_ratio": 0.75})],
)
def test_what_is_not_known_of_other_processes_matters_only_where_it_decides(
    rule: RuleName, settled: dict[str, float]
) -> None:
    unknown: dict[str, float | None] = {**WAITS_FOR_OTHERS, "foreign_busy_ratio": None}
    assert assess(RULES[rule], unknown).missing == ("foreign_busy_ratio",)
    assert assess(RULES[rule], unknown | settled).holds is True


def test_waiting_for_a_gpu_that_works_all_the_time_is_not_sync_bound() -> None:
    waits: dict[str, float | None] = {
        "mid_blocks_per_batch": 3.0,
        "blocked_gpu_busy_ratio": 0.999,
        "host_wait_of_idle_ratio": 1.0,
    }
    busy = WAITS_FOR_OTHERS | waits | {"foreign_busy_ratio": 0.0}
    assert named(busy | {"body_busy_ratio": 0.749}) == "sync-bound"
    assert named(busy | {"body_busy_ratio": 0.75}) == "GPU-bound"


@dataclass(frozen=True)
class Planted:
    """What is found of a run of one phase `p`."""

    body: Finding
    measures: dict[str, float | None]
    checks: dict[str, SelfCheck]


Edit = Callable[[str, list[Row]], list[Row]]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Phase, Edit], Planted]:
    """Writes a run whose rows were edited, and diagnoses it."""
    whole = regime_runs._as_table

    def found(phase: Phase, edit: Edit) -> Planted:
        monkeypatch.setattr(
            regime_runs, "_as_table", lambda table, rows: whole(table, edit(table, list(rows)))
        )
        store = write_regime_run(tmp_path, [phase])
        write_batch_costs(store)
        write_joined(store)
        metrics = run_metrics(store)
        checks = self_checks(store, metrics)
        (body,) = (one for one in find(store, metrics, None, unmet(checks)) if one.level == "body")
        (instance,) = metrics["phases"]["p"]["instances"].values()
        return Planted(body, instance["measures"], {one.name: one for one in checks})

    return found


def time_sliced(table: str, rows: list[Row]) -> list[Row]:
    """Kernels of 10 us, each followed by 40 us of another process."""
    if table != "kernels":
        return rows
    found: list[Row] = []
    for _, own in groupby(rows, key=lambda row: row["batch_id"]):
        kernels = list(own)
        first_ns = kernels[0]["start_ns"]
        for number, row in enumerate(kernels):
            start_ns = first_ns + number * 50 * US
            end_ns = start_ns + 10 * US
            other = {**row, **of_another(len(found)), "start_ns": end_ns, "end_ns": end_ns + 40 * US}
            found += [{**row, "start_ns": start_ns, "end_ns": end_ns}, other]
    return found


def of_another(number: int) -> Row:
    return {
        "process": 300, "thread": None, "instance": "", "batch_id": None, "launch_start_ns": None,
        "launch_end_ns": None, "correlation_id": 10**6 + number,
    }  # fmt: skip


def test_a_gpu_shared_by_turns_is_contention(planted: Callable[[Phase, Edit], Planted]) -> None:
    found = planted(Phase("p", (Op(50.0),) * 12), time_sliced)
    assert found.body.rule == "contention"
    assert found.measures["foreign_busy_ratio"] == pytest.approx(0.744, abs=0.001)
    assert found.checks["operations tied"].value == 1.0  # the other process serves no batch


def on_two_gpus(table: str, rows: list[Row]) -> list[Row]:
    """The process uses a second GPU a little, and another process has both busy all the time."""
    if table != "kernels":
        return rows
    second = [{**row, "gpu_uuid": "GPU-b", "device": 1} for row in rows[::12]]
    span = {"start_ns": rows[0]["start_ns"] - 10**6, "end_ns": rows[-1]["end_ns"] + 10**6}
    others = [{**row, **of_another(number), **span} for number, row in enumerate((rows[0], second[0]))]
    return [*rows, *second, *others]


def test_another_process_on_both_gpus_of_an_instance_counts_once(
    planted: Callable[[Phase, Edit], Planted],
) -> None:
    found = planted(Phase("p", (Op(35.0),) * 12, issue_us=50.0), on_two_gpus)
    assert found.measures["foreign_busy_ratio"] == pytest.approx(1.0)
    assert (found.body.rule, found.body.confidence) == ("contention", "high")


def as_graphs(table: str, rows: list[Row]) -> list[Row]:
    """Each launch is a graph of three kernels, which overlap by 500 ns."""
    if table == "cuda_api":
        graph = {"name": "cudaGraphLaunch", "call_class": "graph launch"}
        return [{**row, **graph} if row["call_class"] == "launch" else row for row in rows]
    if table != "kernels":
        return rows
    return [
        {**row, "start_ns": row["start_ns"] + node * 1_500, "end_ns": row["start_ns"] + node * 1_500 + 2_000,
         "graph_id": 1, "graph_node_id": node}
        for row in rows
        for node in range(3)
    ]  # fmt: skip


def test_small_graphs_are_launch_bound(planted: Callable[[Phase, Edit], Planted]) -> None:
    found = planted(Phase("p", (Op(2.0),) * 20, issue_us=60.0), as_graphs)
    assert found.body.rule == "launch-bound"
    names = ("issue_interval_ns", "op_median_ns", "launch_depth_nonempty_mean", "launches_per_batch")
    assert [found.measures[name] for name in names] == [60_000.0, 5_000.0, 1.0, 20.0]


def test_no_operation_is_not_that_the_gpu_did_nothing(planted: Callable[[Phase, Edit], Planted]) -> None:
    found = planted(Phase("p", (Op(50.0),) * 12), lambda table, rows: [] if table == "kernels" else rows)
    assert found.body.rule == "not assessed"
    unknown = (
        "wall_head_ratio",
        "wall_gpu_busy_ratio",
        "body_busy_ratio",
        "foreign_busy_ratio",
        "blocked_gpu_busy_ratio",
    )
    assert [found.measures[name] for name in unknown] == [None] * 5
    assert found.measures["launches_per_batch"] == 12.0
    known = ("unprofiled", "between_waiting", "between_empty", "edges")
    assert sum(found.measures[f"wall_{name}_ratio"] or 0.0 for name in known) == pytest.approx(1.0)
