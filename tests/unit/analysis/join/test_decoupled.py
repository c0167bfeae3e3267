"""Models that work on after their executions: no finding looks into their batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from squall.analysis.storage.store import RunStore
from tests.regime_runs import Op, Phase, diagnose, write_regime_run


@pytest.mark.parametrize("decoupled", [pytest.param((), marks=pytest.mark.slow), ("m",)])
def test_no_finding_looks_into_batches_of_a_decoupled_model(
    tmp_path: Path, decoupled: tuple[str, ...]
) -> None:
    """Of a GPU that is busy all the time."""
    made = write_regime_run(tmp_path, [Phase("steady", (Op(50.0),) * 12)])
    path = made.run_dir / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["servers"]["server-0"]["decoupled"] = list(decoupled)
    path.write_text(json.dumps(manifest))
    store = RunStore.open(made.run_dir)
    found, checks = diagnose(store)
    rules = {one.level: one.rule for one in found if one.scope.instance == "m_0"}
    assert (rules["body"] == "GPU-bound") is not bool(decoupled)
    assert rules["body"] in ("GPU-bound", "none", "not assessed")
    assert {name for name, one in checks.items() if one.status == "unmet"} == set()
    assert (checks["operations tied"].status == "not assessed") is bool(decoupled)
