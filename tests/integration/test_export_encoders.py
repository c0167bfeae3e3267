"""Encoders of the zoo for Triton's ONNX Runtime backend: built by the command, served in a run, each answer right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.live_runs import Bench
from tests.integration.test_export import built, needs_export, with_stand_in
from tests.integration.test_foreign_batches import assert_all_joined, finish, scenario

SIZES = {
    "hidden": 32, "heads": 2, "layers": 2, "vocabulary": 100, "sequence": 12, "intermediate": 64, "positions": 20
}  # fmt: skip


@needs_export
@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["bert_tiny", "multilingual_e5_large"])
def test_an_encoder_answers_right_from_its_onnx_file(name: str, alone: Bench, tmp_path: Path) -> None:
    models = tmp_path / "models"
    sizes = [word for key, value in SIZES.items() for word in ("--set", f"{key}={value}")]
    done = built(models, name, "--backend", "onnxruntime", "-b", "8", *sizes)
    assert (done.returncode, done.stderr) == (0, "")
    assert "seeded random weights" in done.stdout
    mapping = scenario(models, name, rate_hz=60, batches="auto")
    mapping["model"]["settings"] = SIZES
    mapping["clients"]["check"] = {"share": 1.0}
    path = f"{with_stand_in(tmp_path)}{os.pathsep}{os.environ['PATH']}"
    store, _, _ = finish(alone, mapping, env={"PATH": path})
    checks = store.manifest.value_checks
    assert checks is not None
    assert checks.n_checked == len(store.read("requests")) > 50
    assert checks.n_wrong == 0
    assert_all_joined(store, name)
