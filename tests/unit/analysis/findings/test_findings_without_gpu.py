"""Runs of a CPU model, and of a GPU node of which nothing was traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.analysis.findings.shares import Sums, is_cpu
from squall.analysis.storage.manifest import read_manifest
from tests.regime_runs import diagnose
from tests.synthetic_runs import synthesise


@pytest.mark.parametrize(
    ("gpus", "claim"),
    [
        ([], "The model computes on the CPU: its batches have no body on a GPU."),
        (["NVIDIA H200"], "Not assessed: there is no CUDA trace of this instance in the phase."),
    ],
)
def test_a_model_on_a_node_without_a_gpu_has_no_body_and_whole_batches(
    tmp_path: Path, gpus: list[str], claim: str
) -> None:
    """Of a made-up run of 12 s measured without a profile, just long enough for a p99."""
    run = synthesise(rate_hz=40.0)
    run.derived = False
    run.manifest["nodes"]["node-0"]["gpus"] = gpus
    found = {one.level: one for one in diagnose(run.write(tmp_path))[0]}
    assert set(found) == {"window", "body", "tail"}
    assert found["body"].claim == claim
    if gpus:
        assert (found["body"].rule, found["body"].confidence) == ("not assessed", "low")
        return
    window, tail = found["window"], found["tail"].shares
    assert window.not_assessed == ()
    assert {piece.measure: piece.value for piece in window.evidence}["wall_exec_ratio"] is not None
    outside = [window.shares[part] or 0.0 for part in ("between_waiting", "between_empty", "edges")]
    assert window.shares["computing"] == pytest.approx(1.0 - sum(outside))
    assert sum(filter(None, tail.values())) == pytest.approx(1.0)
    assert {"kernel_busy", "head"}.isdisjoint(tail)
    assert "compute" in tail


@pytest.mark.parametrize(
    ("n_operations", "has_cuda", "node", "model", "expected"),
    [
        (5, True, {"gpus": []}, {}, 0.0),  # what ran on a GPU settles it
        (0, True, {"gpus": ["H200"]}, {}, 1.0),  # others of its server used the GPU
        (0, False, {"gpus": ["H200"]}, {}, None),  # a report without CUDA says nothing
        (None, False, {"gpus": []}, {}, 1.0),
        (None, False, {}, {"name": "m", "framework": "numpy"}, 1.0),
        (None, False, {}, {"name": "m", "framework": "torch", "device": "cpu"}, 1.0),
        (None, False, {}, {"name": "m", "framework": "torch"}, None),
        (None, False, {}, {"name": "other", "framework": "numpy"}, None),
    ],
)
def test_what_says_that_a_model_computes_on_the_cpu(
    n_operations: int | None, has_cuda: bool, node: dict[str, Any], model: dict[str, str], expected: float | None
) -> None:  # fmt: skip
    manifest = {"nodes": {"n": node}, "servers": {"s": {"node": "n"}}, "scenario": {"model": model}}
    sums = Sums("m_0", "m", 40, n_operations, None, {}, {})
    assert is_cpu(sums, "s", read_manifest(manifest), has_cuda) == expected
