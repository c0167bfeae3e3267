"""What kernels and copies in windows tell of a regime, without calls, ranges and launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from squall.analysis.findings.finding import Finding
from squall.analysis.findings.self_check import SelfCheck
from tests.regime_runs import GPU_UUID, MS, Op, Phase, diagnose, write_regime_run
from tests.unit.analysis.findings.test_findings_regimes import ANY, SMALL, WAITING, copies, grids
from tests.window_runs import by_library, windows_of

N_BATCHES = 100
"""Of each regime: about half of them lie in windows, and a finding asks for 30."""
MB = 1_000_000
REGIMES = {
    "GPU-bound": ANY,
    "transfer-bound": Phase("", copies(120.0, 2 * MB)),
    "host-paced": Phase("", WAITING),
    "small kernels": Phase("", (Op(2.0),) * 20, issue_us=20.0),
    "host-bound": replace(ANY, head_us=500.0, tail_us=100.0),
    "under-offered": replace(ANY, period_us=1_800.0),
    "scheduler/IPC-bound": replace(ANY, period_us=910.0, wait_us=900.0),
    "contention": Phase("", SMALL, issue_us=30.0, other_us=200.0),
}
Found = Mapping[tuple[str, str], Finding]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Found, dict[str, SelfCheck]]:
    """Findings of a run under nsys, and of it as the library recorded it on 5 ms of 10; checks of the latter."""
    parent: Path = tmp_path_factory.mktemp("regimes")
    phases = [replace(one, name=name, n_batches=N_BATCHES) for name, one in REGIMES.items()]
    whole = write_regime_run(parent, phases)
    spans = whole.manifest.phases
    windows = windows_of(spans[0].start_ns, spans[-1].end_ns, 5 * MS, 10 * MS, MS // 50)
    held = by_library(whole, parent, {"server-0": windows})
    (full, _), (found, checks) = diagnose(whole), diagnose(held)
    return _by_scope(full), _by_scope(found), checks


def _by_scope(findings: list[Finding]) -> Found:
    return {(one.scope.phase, one.level): one for one in findings}


@pytest.mark.parametrize(
    ("phase", "level", "by_nsys"),
    [
        ("GPU-bound", "body", "GPU-bound"),
        ("transfer-bound", "body", "transfer-bound"),
        ("host-paced", "body", "sync-bound"),
        ("small kernels", "body", "launch-bound"),
        ("contention", "body", "contention"),
        ("host-bound", "window", "host-bound"),
        ("under-offered", "window", "under-offered"),
        ("scheduler/IPC-bound", "window", "scheduler/IPC-bound"),
    ],
)
def test_a_regime_that_kernels_tell_is_named(
    both: tuple[Found, Found, dict[str, SelfCheck]], phase: str, level: str, by_nsys: str
) -> None:
    full, found, _ = both
    assert full[phase, level].rule == by_nsys
    own = found[phase, level]
    assert own.rule == ("host-paced" if phase == "small kernels" else phase), own.claim
    assert not any("profiled" in reason or "in windows" in reason for reason in own.confidence_reasons)
    if phase == "small kernels":
        assert own.details == ("small kernels",)


def test_what_takes_calls_is_said_to_be_missing(both: tuple[Found, Found, dict[str, SelfCheck]]) -> None:
    own = both[1]["host-paced", "body"]
    (missing,) = own.not_assessed
    assert missing.rule == "sync-bound"
    assert "blocked_of_exec_ratio" in missing.missing
    assert own.confidence == "medium"
    assert "does not tell a host that waits from one that launches slowly" in own.not_shown


def test_the_body_has_its_shares_without_calls(both: tuple[Found, Found, dict[str, SelfCheck]]) -> None:
    full, found, _ = both
    for phase in REGIMES:
        whole, own = full[phase, "body"].shares, found[phase, "body"].shares
        assert sum(value or 0.0 for value in own.values()) == pytest.approx(1.0)
        idle = (whole["sync_wait"] or 0.0) + (whole["launch_idle"] or 0.0)
        assert own["idle"] == pytest.approx(idle, abs=0.02), phase


def test_self_checks_are_met_in_windows(both: tuple[Found, Found, dict[str, SelfCheck]]) -> None:
    statuses = {name: one.status for name, one in both[2].items()}
    assert "unmet" not in statuses.values(), statuses
    assert {statuses[name] for name in ("operations tied", "kernel sums", "wall", "kernel shares")} == {"met"}


def test_few_batches_in_windows_are_said(tmp_path: Path) -> None:
    whole = write_regime_run(tmp_path, [replace(ANY, name="short")])
    (span,) = whole.manifest.phases
    windows = windows_of(span.start_ns, span.end_ns, 5 * MS, 20 * MS)
    findings, _ = diagnose(by_library(whole, tmp_path, {"server-0": windows}))
    body = next(one for one in findings if one.level == "body")
    assert body.confidence == "low"
    assert any("batches lie in windows, fewer than 30" in reason for reason in body.confidence_reasons)


@pytest.mark.slow
def test_without_a_report_of_nsys_small_grids_are_told_by_the_gpu_that_the_library_names(
    tmp_path: Path,
) -> None:
    phases = [replace(ANY, name="filled", ops=grids(270)), replace(ANY, name="hollow", ops=grids(100))]
    gpu = {"uuid": GPU_UUID, "compute_capability": [9, 0], "sm_count": 132}
    for number, gpus in enumerate(([gpu], [], [{**gpu, "compute_capability": [6, 1]}])):
        folder = tmp_path / str(number)
        folder.mkdir()
        whole = write_regime_run(
            folder, [replace(one, n_batches=N_BATCHES) for one in phases], kernels={"gpus": gpus}
        )
        spans = whole.manifest.phases
        windows = windows_of(spans[0].start_ns, spans[-1].end_ns, 5 * MS, 10 * MS, MS // 50)
        findings = _by_scope(diagnose(by_library(whole, folder, {"server-0": windows}))[0])
        assert findings["filled", "body"].rule == findings["hollow", "body"].rule == "GPU-bound"
        assert "under-filled" not in findings["filled", "body"].details
        assert ("under-filled" in findings["hollow", "body"].details) is (number == 0)
