"""Runs of a CPU model, and of a GPU node of which nothing was traced."""

from __future__ import annotations

from pathlib import Path

import pytest

from squall.analysis.findings.finding import Finding
from squall.analysis.findings.rules.shares import Sums, is_cpu
from squall.analysis.tables.manifest import read_manifest
from tests.regime_runs import diagnose
from tests.synthetic_runs import synthesise


def findings_of(tmp_path: Path, gpus: list[str]) -> dict[str, Finding]:
    """By level, of a made-up run of 12 s measured without a profile, just long enough for a p99."""
    run = synthesise(rate_hz=40.0)
    run.derived = False
    run.manifest["nodes"]["node-0"]["gpus"] = gpus
    found = {one.level: one for one in diagnose(run.write(tmp_path))[0]}
    assert set(found) == {"window", "body", "tail"}
    return found


def test_a_model_on_a_node_without_a_gpu_has_no_body_and_whole_batches(tmp_path: Path) -> None:
    found = findings_of(tmp_path, [])
    assert "no body on a GPU" in found["body"].claim
    assert found["window"].not_assessed == ()
    assert {piece.measure: piece.value for piece in found["window"].evidence}["wall_exec_ratio"] is not None
    shares = {name: value or 0.0 for name, value in found["window"].shares.items()}
    outside = shares["between_waiting"] + shares["between_empty"] + shares["edges"]
    assert shares["computing"] == pytest.approx(1.0 - outside)
    tail = found["tail"].shares
    assert sum(value for value in tail.values() if value is not None) == pytest.approx(1.0)
    assert {"kernel_busy", "head"}.isdisjoint(tail)
    assert "compute" in tail


def test_without_a_cuda_trace_the_body_is_not_assessed(tmp_path: Path) -> None:
    body = findings_of(tmp_path, ["NVIDIA H200"])["body"]
    assert body.rule == "not assessed"
    assert body.claim == "Not assessed: there is no CUDA trace of this instance in the phase."
    assert body.confidence == "low"


@pytest.mark.parametrize(
    ("n_operations", "has_cuda", "gpus", "model", "expected"),
    [
        (5, True, [], {}, 0.0),  # what ran on a GPU settles it
        (0, True, ["H200"], {}, 1.0),  # others of its server used the GPU
        (0, False, ["H200"], {}, None),  # a report without CUDA says nothing
        (None, False, [], {}, 1.0),
        (None, False, None, {"name": "m", "framework": "numpy"}, 1.0),
        (None, False, None, {"name": "m", "framework": "torch", "device": "cpu"}, 1.0),
        (None, False, None, {"name": "m", "framework": "torch"}, None),
        (None, False, None, {"name": "other", "framework": "numpy"}, None),
    ],
)
def test_what_says_that_a_model_computes_on_the_cpu(
    n_operations: int | None,
    has_cuda: bool,
    gpus: list[str] | None,
    model: dict[str, str],
    expected: float | None,
) -> None:
    node = {} if gpus is None else {"gpus": gpus}
    manifest = {"nodes": {"n": node}, "servers": {"s": {"node": "n"}}, "scenario": {"model": model}}
    sums = Sums("m_0", "m", 40, n_operations, None, {}, {})
    assert is_cpu(sums, "s", read_manifest(manifest), has_cuda) == expected
