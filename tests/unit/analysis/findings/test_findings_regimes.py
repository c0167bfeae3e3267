"""Every regime has a planted phase that must get its name, and one that differs in one figure and must not."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from squall.analysis.findings.find import find
from squall.analysis.findings.finding import Finding
from squall.analysis.findings.rules.tried import rules_of
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import self_checks, unmet
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.records import RunMetrics
from squall.analysis.metrics.run import run_metrics
from squall.analysis.storage.store import RunStore
from squall.analysis.tables.sealed import Bottleneck, Failures, Verdict
from tests.regime_runs import Op, Phase, diagnose, write_regime_run

BUSY = (Op(50.0),) * 12
"""A body of 600 µs in which the host is ahead of the GPU."""
SLOW_LAUNCHES = (Op(35.0),) * 12
"""With a launch every 50 µs: the GPU works for 70 % of the body, and no rule of the body holds."""
MB = 1_000_000
SMALL = (Op(20.0),) * 8
WAITING = (Op(20.0, wait=True),) * 8


def copies(us: float, n_bytes: int, n: int = 1, is_pageable: bool = False) -> tuple[Op, ...]:
    """Copies to the GPU before a body of 160 µs; of pageable memory behind it, where they block at its end alone."""
    moved = (Op(us, n_bytes, is_pageable),) * n
    return (*SMALL, *moved) if is_pageable else (*moved, *SMALL)


def grids(n_blocks: int) -> tuple[Op, ...]:
    """A body whose kernels have so many blocks; the GPU has 132 SMs and holds 264 of them."""
    return (Op(50.0, grid=n_blocks),) * 12


@dataclass(frozen=True)
class Case:
    """`named` must get the name of `rule` at `level`, `near` must not; `detail`: or the closer name."""

    level: str
    rule: str
    named: Phase
    near: Phase
    detail: str = ""

    @property
    def id(self) -> str:
        return f"{self.rule} {self.detail}".strip()


def case(level: str, rule: str, named: Phase, detail: str = "", **near: object) -> Case:
    name = f"{rule} {detail}".strip()
    named = replace(named, name=name)
    return Case(level, rule, named, replace(named, name=f"nearly {name}", **near), detail)  # type: ignore[arg-type]


ANY = Phase("", BUSY)
REFUSAL = ("rejected", "503 Exceeds maximum queue size")
CPU = Phase("", head_us=1_000.0, server="server-cpu")
CASES = [
    case("window", "client-bound", replace(ANY, lag_us=300.0), lag_us=150.0),
    case("window", "unserved", replace(ANY, silent_us=40_000.0, n_unserved=60), n_unserved=2),
    case("window", "refused", replace(ANY, silent_us=40_000.0, n_unserved=60, unserved_end=REFUSAL), n_unserved=2),
    case("window", "under-offered", replace(ANY, period_us=1_800.0), period_us=1_200.0),
    case("window", "queue-bound", replace(ANY, wait_us=2_000.0), wait_us=500.0),
    case("window", "scheduler/IPC-bound", replace(ANY, period_us=910.0, wait_us=900.0), period_us=750.0),
    case("window", "computes on the CPU", replace(CPU, period_us=1_250.0), period_us=2_500.0),
    case("window", "waits off the CPU", replace(CPU, period_us=1_250.0, cpu={"server": 0.2}), cpu={"server": 0.9}),
    case("window", "host-bound", replace(ANY, head_us=500.0, tail_us=100.0), head_us=250.0),
    case("window", "throttled", replace(ANY, throttled_ratio=0.2), throttled_ratio=0.05),
    case("window", "body-bound", replace(ANY, head_us=200.0, tail_us=150.0), period_us=1_330.0),
    case("body", "sync-bound", Phase("", WAITING), ops=SMALL),
    case("body", "launch-bound", Phase("", (Op(2.0),) * 20, issue_us=20.0), ops=(Op(12.0),) * 20),
    case("body", "host-paced", Phase("", WAITING, is_launched=False), ops=SMALL),
    case("body", "host-paced", Phase("", (Op(2.0),) * 20, issue_us=20.0, is_launched=False), "small kernels",
        ops=(Op(12.0),) * 20),
    case("body", "transfer-bound", Phase("", copies(120.0, 2 * MB)), ops=copies(20.0, MB // 2)),
    case("body", "transfer-bound", Phase("", copies(12.0, 8_192, 10)), "small copies", ops=copies(12.0, 80_000, 10)),
    case("body", "transfer-bound", Phase("", copies(120.0, MB, 1, True)), "pageable memory", ops=copies(120.0, MB)),
    case("body", "transfer-bound", Phase("", copies(500.0, 2 * MB)), "slow link", ops=copies(300.0, 2 * MB)),
    case("body", "GPU-bound", ANY, ops=SLOW_LAUNCHES, issue_us=50.0),
    case("body", "GPU-bound", replace(ANY, gpm={"dram_util": 0.7}), "memory", gpm={"dram_util": 0.4}),
    case("body", "GPU-bound", replace(ANY, gpm={"tensor_util": 0.6}), "tensor", gpm={"tensor_util": 0.3}),
    case("body", "GPU-bound", replace(ANY, ops=grids(100)), "under-filled", ops=grids(270)),
    case("body", "contention", Phase("", SLOW_LAUNCHES, issue_us=50.0, other_us=200.0), other_us=80.0),
]  # fmt: skip

Found = dict[tuple[str, str], Finding]


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, dict[str, SelfCheck]]:
    """Findings by phase and level, and self-checks, of one run that has every case as a phase."""
    phases = [phase for one in CASES for phase in (one.named, one.near)]
    findings, checks = diagnose(write_regime_run(tmp_path_factory.mktemp("regimes"), phases))
    return {(one.scope.phase, one.level): one for one in findings}, checks


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.id)
def test_a_planted_regime_gets_its_name_and_its_near_miss_does_not(
    one: Case, diagnosed: tuple[Found, dict[str, SelfCheck]]
) -> None:
    finding = diagnosed[0][one.named.name, one.level]
    assert finding.rule == one.rule, finding.claim
    assert not one.detail or one.detail in finding.details, finding.claim
    assert all(piece.value is not None for piece in finding.evidence if piece.holds)
    assert finding.rows is not None
    assert 0 < len(finding.rows.worst) <= 5
    near = diagnosed[0][one.near.name, one.level]
    assert one.detail not in near.details if one.detail else near.rule != one.rule, near.claim


def test_every_rule_and_closer_name_is_planted() -> None:
    rules = [*rules_of("window", {}), *rules_of("body", {})]
    assert {one.rule for one in CASES} == {rule.name for rule in rules}
    details = {(rule.name, detail.name) for rule in rules for detail in rule.details}
    delayed = {(rule, "queue delay") for rule, _ in DELAYED.values()}  # of servers with a batcher
    assert {(one.rule, one.detail) for one in CASES if one.detail} | delayed == details


def test_the_shares_of_every_finding_add_up_to_one(diagnosed: tuple[Found, dict[str, SelfCheck]]) -> None:
    for (phase, level), finding in diagnosed[0].items():
        shares = [value for value in finding.shares.values() if value is not None]
        if shares:
            assert sum(shares) == pytest.approx(1.0), (phase, level)
        if level == "window":
            assert finding.shares["unexplained"] == pytest.approx(0.0, abs=1e-9), phase


def test_the_self_checks_of_a_planted_run_are_met(diagnosed: tuple[Found, dict[str, SelfCheck]]) -> None:
    assert {one.name: one.value for one in diagnosed[1].values() if one.status == "unmet"} == {}


INVALID = Verdict(
    status="INVALID",
    reasons=(),
    causes=(),
    failures=Failures(n=40),
    checks=(),
    client_bottleneck=Bottleneck(
        cause="worker cpu", sentence="The client was it.", advice="use more workers"
    ),
    starvation=None,
)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, RunMetrics]:
    """A sound run, whatever a verdict says of it, and its figures: late requests, and every 80th batch slow."""
    phases = [
        replace(ANY, name="calm"),
        replace(ANY, name="late", lag_us=50.0),
        Phase("burst", SLOW_LAUNCHES[:4], issue_us=50.0, n_batches=400, slow_every=80),
    ]
    store = write_regime_run(tmp_path_factory.mktemp("judged"), phases)
    write_joined(store)
    figures = run_metrics(store)
    assert unmet(self_checks(store, figures)) == []
    return store, figures


def test_the_client_that_the_verdict_names_is_named_where_its_requests_were_late(
    judged: tuple[RunStore, RunMetrics],
) -> None:
    windows = {one.scope.phase: one for one in find(*judged, INVALID) if one.level == "window"}
    calm, late = windows["calm"], windows["late"]
    assert late.rule == "client-bound"
    assert late.claim == "The client was it. Of the mean latency 5.92 % passed before it had sent."
    assert late.next_step.startswith("Use more workers.")
    assert (late.confidence, len(late.confidence_reasons)) == ("medium", 1)  # 6 % of the latency is its lag
    assert late.runner_up is not None
    assert late.runner_up.rule == "body-bound"
    assert (calm.rule, calm.confidence) == ("body-bound", "medium")
    assert calm.confidence_reasons == (
        "the verdict names the client's bottleneck; 0 % of the mean latency passed before the send here",
    )


def test_a_closed_loop_has_no_lag_to_state(tmp_path: Path) -> None:
    closed = {
        "plan": {"load": "closed", "n_arrivals": 40},
        "scenario": {"name": "regimes", "seed": 1, "arrivals": {"kind": "closed", "users": 1}},
    }
    findings, _ = diagnose(write_regime_run(tmp_path, [replace(ANY, name="users")], **closed), INVALID)
    window = next(one for one in findings if one.level == "window")
    assert (window.rule, window.claim, window.confidence) == ("client-bound", "The client was it.", "medium")
    assert window.confidence_reasons == (
        "a closed loop has no lag that says how much of the latency is the client's",
    )


def test_what_was_recorded_too_thinly_gives_no_name(tmp_path: Path) -> None:
    hot = replace(ANY, throttled_ratio=0.5)
    phases = [
        replace(hot, name="hot"),
        replace(hot, name="nine samples", n_samples=9),
        replace(hot, name="few kernels", ops=(Op(2.0),) * 20, issue_us=20.0),
        replace(ANY, name="launches alone", lost=("kernels",)),
        replace(ANY, name="no CUDA", lost=("kernels", "cuda_api")),
    ]
    findings, _ = diagnose(write_regime_run(tmp_path, phases))
    named = {(one.scope.phase, one.level): one.rule for one in findings}
    assert [named[phase.name, "window"] for phase in phases[:3]] == ["throttled", "body-bound", "body-bound"]
    for lost in ("launches alone", "no CUDA"):  # none of them computes on the CPU
        assert {named[lost, level] for level in ("window", "body")} == {"not assessed"}


HOT = replace(ANY, name="hot", throttled_ratio=1.0)
SHARED = ("shared GPU", "medium"), "it is the most that they can explain"
HEATED = {
    "alone": (replace(HOT, foreign_ratio=0.0), ("throttled", "high"), ""),
    # it was there all the time: nothing to compare with
    "beside": (replace(HOT, foreign_ratio=0.9), *SHARED),
    "not known": (HOT, ("throttled", "medium"), "it is not known whether other processes use its GPU"),
    "a little": (
        replace(HOT, foreign_ratio=0.08), ("throttled", "low"), "other processes had 8.00 % of its GPU, and heat it too"
    ),
    "cool": (replace(ANY, name="cool", foreign_ratio=0.9), *SHARED),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[] if one in ("alone", "beside") else pytest.mark.slow) for one in HEATED],
)
def test_throttled_is_of_high_confidence_only_where_no_other_process_heats_the_gpu(
    tmp_path: Path, name: str
) -> None:
    phase, told, why = HEATED[name]
    findings, _ = diagnose(write_regime_run(tmp_path, [phase]))
    found = next(one for one in findings if one.level == "window")
    reasons = " ".join(found.confidence_reasons)
    assert (found.rule, found.confidence) == told, reasons
    assert why in reasons
    if found.rule == "shared GPU":
        assert ("throttled" in found.also) == (name == "beside")
        assert "Others had 90.0 % of the time of its GPU, which explains up to" in found.claim


def test_the_p99_requests_name_what_grew_and_what_their_batches_were(
    judged: tuple[RunStore, RunMetrics],
) -> None:
    (tail,) = (one for one in find(*judged) if one.level == "tail" and one.scope.phase == "burst")
    assert tail.rule == "kernel busy grows"
    assert tail.scope.requests == "p99"
    assert (
        "Their batches in server-0/m_0 are GPU-bound, all of its batches of no single regime." in tail.claim
    )
    assert tail.rows is not None
    assert {row["batch_id"] - 80 for row in tail.rows.worst} == {
        0,
        80,
        160,
        240,
        320,
    }  # of 40 before it, twice


DELAYED = {
    "calm": ("under-offered", Phase("calm", (), head_us=5_000.0, period_us=20_000.0, wait_us=2_100.0)),
    "held back": ("scheduler/IPC-bound", Phase("held", (), head_us=400.0, period_us=910.0, wait_us=900.0)),
}


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, RunMetrics]:
    """A run of `DELAYED`, whose server says nothing of its batcher, and its figures."""
    servers = {"server-cpu": {"node": "node-1", "model": "m", "version": "1", "batch_record": True}}
    phases = [replace(phase, server="server-cpu") for _, phase in DELAYED.values()]
    store = write_regime_run(tmp_path_factory.mktemp("delayed"), phases, servers=servers)
    write_joined(store)
    return store, run_metrics(store)


@pytest.mark.parametrize(("delay_us", "details"), [(2_000, ("queue delay",)), (5, ()), (0, ())])
def test_a_batcher_that_waits_for_rows_is_told_of_with_its_delay(
    delayed: tuple[RunStore, RunMetrics], delay_us: int, details: tuple[str, ...]
) -> None:
    store, figures = delayed
    file = store.run_dir / "manifest.json"
    manifest = json.loads(file.read_text())
    serving = {"m": {"max_batch_size": 8, "queue_delay_ns": delay_us * 1_000}}
    manifest["servers"]["server-cpu"]["serving"] = serving
    file.write_text(json.dumps(manifest))
    found = find(RunStore.open(store.run_dir), figures)
    windows = {one.scope.phase: one for one in found if one.level == "window" and one.scope.requests == "all"}
    told = {name: (one.rule, one.details) for name, one in windows.items()}
    assert told == {phase.name: (rule, details) for rule, phase in DELAYED.values()}
