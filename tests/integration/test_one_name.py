"""A real run with a report of nsys, and the same run without the report's tables: one cause."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from squall.analysis.report.derive import derive
from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import FullRun

REPORT = ("kernels", "memcpys", "cuda_api", "nvtx", "syncs", "osrt")
"""Tables that only a report of nsys fills."""


def test_the_cause_is_the_same_without_the_tables_of_the_report(full_run: FullRun, tmp_path: Path) -> None:
    removed = [name for name in REPORT if full_run.store.has(name)]
    if not removed:
        pytest.skip("nsys recorded nothing here")
    copy = Path(shutil.copytree(full_run.store.run_dir, tmp_path / full_run.store.run))
    for name in removed:
        shutil.rmtree(copy / "tables" / name)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["tables"] = {name: told for name, told in manifest["tables"].items() if name not in REPORT}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    store = RunStore.open(copy)
    assert not any(store.has(name) for name in REPORT)
    names = [
        {one["scope"]["instance"]: one["rule"] for one in findings if one["level"] == "window"}
        for findings in (full_run.summary["findings"], derive(store).to_json()["findings"])
    ]
    unnamed = (
        "none",
        "not assessed",
    )  # the one where nothing lacks to say so, the other where something does
    causes = [{where: "" if rule in unnamed else rule for where, rule in of.items()} for of in names]
    assert causes[0] == causes[1] != {}
