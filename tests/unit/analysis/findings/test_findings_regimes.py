"""Every regime has a planted phase that must get its name, and one that differs in one figure and must not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from squall.analysis.findings.finding import Finding
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import self_checks
from squall.analysis.findings.tried import RULES
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.run import run_metrics
from squall.analysis.storage.query import over
from squall.analysis.storage.sealed import Bottleneck, Verdict
from squall.analysis.storage.store import RunStore
from tests import regime_runs
from tests.regime_runs import MS, Op, Phase, Row, found_in, keys_of, write_regime_run
from tests.unit.analysis.findings.said import said
from tests.window_runs import by_library, windows_of

RUNS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "regimes.yaml").read_text())["runs"]
LEVELS = ("window", "body", "tail")
TOLD = (*LEVELS, "edit", "measures", "n_rows")
"""Keys of a phase that are no fields of `Phase`."""
CLIENT = Bottleneck(cause="worker cpu", sentence="The client was it.", advice="use more workers")
VERDICTS = {"client": Verdict(status="INVALID", client_bottleneck=CLIENT)}


@dataclass(frozen=True)
class Diagnosed:
    store: RunStore
    findings: dict[tuple[str, str], Finding]
    """By phase and level."""
    measures: dict[str, Any]
    checks: dict[str, SelfCheck]


def diagnosed(store: RunStore, verdict: Verdict | None = None) -> Diagnosed:
    write_batch_costs(store)
    write_joined(store)
    metrics = run_metrics(store)
    checks = self_checks(store, metrics)
    findings = found_in(store, metrics, verdict, checks)
    measures = {phase: own for (phase, _), own in metrics.measures.items()} if metrics is not None else {}
    by_scope = {(one.scope.phase, one.level): one for one in findings}
    return Diagnosed(store, by_scope, measures, {one.name: one for one in checks})


def write_run(run: dict[str, Any], parent: Path) -> RunStore:
    """A run of regimes.yaml, as nsys records it."""
    phases = []
    for name, stated in run["phases"].items():
        fields = {field: value for field, value in stated.items() if field not in TOLD}
        ops = [one for op in fields.pop("ops", ()) for one in _body(**op)]
        phases.append(Phase(name, tuple(ops), **fields))
    whole = regime_runs._as_table

    def edited(table: str, rows: Iterable[Row]) -> pa.Table:
        made = whole(table, rows)
        parts = [made.slice(0, 0)]
        for phase, own in groupby(range(made.num_rows), key=made["phase"].to_pylist().__getitem__):
            part, statement = made.take(list(own)), run["phases"][phase].get("edit", {}).get(table)
            parts.append(part if statement is None else _queried(statement, part))
        return pa.concat_tables(parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regime_runs, "_as_table", edited)
        return write_regime_run(parent, phases, **run.get("manifest", {}))


def _queried(statement: str, rows: pa.Table) -> pa.Table:
    with over({"rows": rows}) as connection:
        return connection.sql(statement).to_arrow_table().cast(rows.schema)


def _body(times: int = 1, **op: Any) -> list[Op]:
    return [Op(**op)] * times


@pytest.mark.parametrize(
    "run",
    [pytest.param(run, id=run["name"], marks=[pytest.mark.slow] * run.get("slow", False)) for run in RUNS],
)
def test_a_planted_regime_gets_its_name_and_its_near_miss_does_not(
    run: dict[str, Any], tmp_path: Path
) -> None:
    store = whole = write_run(run, tmp_path)
    if "windows_ms" in run:
        on_ms, period_ms, edge_ms = run["windows_ms"]
        spans = store.manifest.phases
        windows = windows_of(
            spans[0].start_ns, spans[-1].end_ns, on_ms * MS, period_ms * MS, round(edge_ms * MS)
        )
        store = by_library(store, tmp_path, {"server-0": windows})
    found = diagnosed(store, VERDICTS.get(run.get("verdict", "")))
    wrong = {}
    for phase, stated in run["phases"].items():
        for level in (level for level in LEVELS if level in stated):
            expected = stated[level] if isinstance(stated[level], dict) else {"rule": stated[level]}
            finding = found.findings.get((phase, level))
            if (told := said(finding, expected)) != expected:
                wrong[phase, level] = told
            if "n_rows" in stated:
                assert finding is not None
                assert finding.rows is not None
                assert len(keys_of(store, finding.rows, "request_id")) == stated["n_rows"]
        measures = stated.get("measures", {})
        own = {name: found.measures.get(phase, {}).get(name) for name in measures}
        if own != pytest.approx(measures, abs=0.001):
            wrong[phase, "measures"] = own
    assert not wrong, str(wrong)
    assert [name for name, one in found.checks.items() if one.status == "unmet"] == run.get("unmet", [])
    expected = run.get("checks", {})
    assert {name: found.checks[name].value for name in expected} == pytest.approx(expected, abs=1e-9)
    for finding in found.findings.values():
        _is_sound(finding)
    if store is not whole:
        _has_idle_time_of(diagnosed(whole), found)


def _is_sound(finding: Finding) -> None:
    """Its shares add up to one, its evidence has figures, and it shows the worst of its rows, batches by their key."""
    shares = [value for value in finding.shares.values() if value is not None]
    assert not shares or sum(shares) == pytest.approx(1.0), finding
    if finding.level == "window" and shares:
        assert finding.shares["unexplained"] == pytest.approx(0.0, abs=1e-9), finding
    assert all(piece.value is not None for piece in finding.evidence if piece.holds), finding
    if finding.rule in RULES:
        assert finding.rows is not None, finding
        assert 0 < len(finding.rows.worst) <= 5, finding
        if finding.rows.table == "batch_costs":
            assert list(finding.rows.worst[0])[:3] == ["instance", "instance_device", "batch_id"]


def _has_idle_time_of(whole: Diagnosed, found: Diagnosed) -> None:
    """Where no call tells waits from launches, the body idles as long as both together by a report of nsys."""
    for (phase, level), finding in found.findings.items():
        if level == "body":
            shares = whole.findings[phase, level].shares
            idle = (shares["sync_wait"] or 0.0) + (shares["launch_idle"] or 0.0)
            assert finding.shares["idle"] == pytest.approx(idle, abs=0.02), phase


def test_every_rule_and_closer_name_is_planted() -> None:
    planted = [
        own if isinstance(own, dict) else {"rule": own}
        for run in RUNS
        for phase in run["phases"].values()
        for own in (phase.get(level) for level in LEVELS)
        if own is not None
    ]
    assert RULES.keys() <= {one["rule"] for one in planted}
    details = {(rule.name, detail.name) for rule in RULES.values() for detail in rule.details}
    assert details == {(one["rule"], name) for one in planted for name in one.get("details", ())}
