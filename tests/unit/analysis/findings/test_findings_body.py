"""The rules of the body where several could hold: whose work the GPU does, and what its idle time waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

import pyarrow as pa
import pytest

from squall.analysis.findings.find import find
from squall.analysis.findings.finding import Finding
from squall.analysis.findings.rules.facts import facts
from squall.analysis.findings.rules.rule import assess, classify
from squall.analysis.findings.rules.tried import RULES, rules_of
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import self_checks, unmet
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.run import run_metrics
from tests import regime_runs
from tests.regime_runs import Op, Phase, Row, write_regime_run

US = 1_000
WAITS_FOR_OTHERS: dict[str, float | None] = {
    "body_busy_ratio": 0.21, "blocked_of_exec_ratio": 0.8, "blocked_gpu_busy_ratio": 0.2, "mid_blocks_per_batch": 0.0,
    "host_wait_of_idle_ratio": 0.02, "launch_depth_nonempty_mean": 6.0, "issue_to_op_ratio": 0.6,
    "gpu_activity_ratio": 0.93, "foreign_busy_ratio": 0.74, "copy_exposed_of_body_ratio": 0.0,
}  # fmt: skip
"""A body whose GPU is busy with another process for most of the time."""


def named(measures: dict[str, float | None]) -> str:
    found = classify(rules_of("body", {}), facts(measures))
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
    rule: str, settled: dict[str, float]
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


Measures = Mapping[str, float | None]
Edit = Callable[[str, list[Row]], list[Row]]


@dataclass(frozen=True)
class Planted:
    """What is found of a run of one instance, by phase."""

    findings: list[Finding]
    body: dict[str, Finding]
    measures: dict[str, Measures]
    checks: dict[str, SelfCheck]


def planted(parent: Path, phases: list[Phase], edits: Mapping[str, Edit]) -> Planted:
    """Diagnoses a run of `phases`, of which the rows of some were edited."""
    whole = regime_runs._as_table

    def edited(table: str, rows: Iterable[Row]) -> pa.Table:
        by_phase = [(name, list(own)) for name, own in groupby(rows, key=lambda row: row["phase"])]
        kept = (edits[name](table, own) if name in edits else own for name, own in by_phase)
        return whole(table, chain.from_iterable(kept))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regime_runs, "_as_table", edited)
        store = write_regime_run(parent, phases)
    write_batch_costs(store)
    write_joined(store)
    metrics = run_metrics(store)
    checks = self_checks(store, metrics)
    findings = find(store, metrics, None, unmet(checks))
    body = {one.scope.phase: one for one in findings if one.level == "body"}
    measures = {phase: own for (phase, _), own in metrics.measures.items()}
    return Planted(findings, body, measures, {one.name: one for one in checks})


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


def on_two_gpus(table: str, rows: list[Row]) -> list[Row]:
    """The process uses a second GPU a little, and another process has both busy all the time."""
    if table != "kernels":
        return rows
    second = [{**row, "gpu_uuid": "GPU-b", "device": 1} for row in rows[::12]]
    span = {"start_ns": rows[0]["start_ns"] - 100 * US, "end_ns": rows[-1]["end_ns"] + 100 * US}
    others = [{**row, **of_another(number), **span} for number, row in enumerate((rows[0], second[0]))]
    return [*rows, *second, *others]


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


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    phases = [
        Phase("by turns", (Op(50.0),) * 12),
        Phase("graphs", (Op(2.0),) * 20, issue_us=60.0),
        Phase("two GPUs", (Op(35.0),) * 12, issue_us=50.0),
    ]
    edits = {"by turns": time_sliced, "two GPUs": on_two_gpus, "graphs": as_graphs}
    return planted(tmp_path_factory.mktemp("body"), phases, edits)


def test_a_gpu_shared_by_turns_is_contention(found: Planted) -> None:
    assert found.body["by turns"].rule == "contention"
    assert found.measures["by turns"]["foreign_busy_ratio"] == pytest.approx(0.744, abs=0.001)
    assert found.checks["operations tied"].value == 1.0  # the other process serves no batch


def test_another_process_on_both_gpus_of_an_instance_counts_once(found: Planted) -> None:
    assert found.measures["two GPUs"]["foreign_busy_ratio"] == pytest.approx(1.0)
    body = found.body["two GPUs"]
    assert (body.rule, body.confidence) == ("contention", "high")


def test_small_graphs_are_launch_bound(found: Planted) -> None:
    assert found.body["graphs"].rule == "launch-bound"
    names = ("issue_interval_ns", "op_median_ns", "launch_depth_nonempty_mean", "launches_per_batch")
    assert [found.measures["graphs"][name] for name in names] == [60_000.0, 5_000.0, 1.0, 20.0]


def test_no_operation_is_not_that_the_gpu_did_nothing(tmp_path: Path) -> None:
    """Nor that the model computes on the CPU."""
    found = planted(tmp_path, [Phase("p", (Op(50.0),) * 12, lost=("kernels",))], {})
    assert {one.rule for one in found.findings} == {"not assessed"}
    measures = found.measures["p"]
    unknown = (
        "wall_head_ratio",
        "wall_gpu_busy_ratio",
        "body_busy_ratio",
        "foreign_busy_ratio",
        "blocked_gpu_busy_ratio",
    )
    assert [measures[name] for name in unknown] == [None] * 5
    assert measures["launches_per_batch"] == 12.0
    known = ("unprofiled", "between_waiting", "between_empty", "edges")
    assert sum(measures[f"wall_{name}_ratio"] or 0.0 for name in known) == pytest.approx(1.0)
