"""`squall resume` of run directories that somebody else made: one line, and nothing outside of them is touched."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.report import derive as derive_module
from squall.analysis.report.derive import derive
from squall.analysis.storage import home
from squall.cluster.commands.resume import resume
from squall.scenarios.errors import ScenarioError, SquallError
from tests.planted_runs import Shape, plant

Document = dict[str, Any]
PHASES = [{"name": "burst", "kind": "measure", "start_ns": 0, "end_ns": 10}]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sealed, joined and reported, by a page of one word."""
    store = plant(Shape(seed=5, n_requests=30)).write(tmp_path_factory.mktemp("runs"))
    with pytest.MonkeyPatch.context() as patch:
        drawn = lambda store, _: store.write_text("report.html", "drawn")  # noqa: E731
        patch.setattr(derive_module, "write_report", drawn)
        derive(store)
    return store.run_dir


@pytest.fixture
def outside(tmp_path: Path, planted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a user has beside: documents, a folder called as the run, and one called as a scratch folder."""
    folder = tmp_path / "home"
    for name in (f"{planted.name}/node-0/tables", f"{planted.name}/etc", "squall-tmp-1/spill", "tmp"):
        (folder / name).mkdir(parents=True)
        (folder / name / "mine.txt").write_text("mine")
    (folder / "squall-tmp-1" / "spill" / "requests-0.arrows").write_text("mine")
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    return folder


def unfinished(folder: str, site: str = "node-0") -> Callable[[Document, Path], None]:
    def change(document: Document, outside: Path) -> None:
        document["unfinished"] = {"folders": {site: folder.replace("HOME", str(outside))}, "why": {}}

    return change


def killed(**changes: Any) -> Callable[[Document, Path], None]:
    """Open, as a killed driver leaves it."""

    def change(document: Document, _: Path) -> None:
        for name in ("tables", "verdict"):
            document.pop(name, None)
        document.update(state="open", phases=PHASES, **changes)

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda document, outside: document.update(kept={"node-0": str(outside / document["run"])}),
        lambda document, _: document.update(kept={"../..": "/"}),
        lambda document, _: document.update(kept=["/"]),
        lambda document, outside: document.update(run=str(outside)),
        lambda document, _: document.update(run=".."),
        unfinished("/etc"),
        unfinished("/"),
        unfinished("../.."),
        unfinished("HOME/squall-tmp-1"),
        unfinished("HOME/squall-tmp-1\0"),
        unfinished("HOME/squall-tmp-1", site="../node-0"),
        unfinished("HOME/squall-tmp-1", site="/etc"),
        lambda document, _: document.update(unfinished={"folders": []}),
        killed(start_ns=None),
        killed(nodes={"node-0": {"folder": "/etc"}}, scenario={}),
        killed(nodes={"../node-0": {"folder": "/etc"}}),
        killed(servers={"../../server-0": {"node": "node-0"}}),
        killed(kept={"node-0": "/etc"}),
        killed(scenario={"records": []}),
        killed(scenario=[]),
    ],
)
def test_a_manifest_of_somebody_else_ends_in_one_line(
    planted: Path, outside: Path, tmp_path: Path, change: Callable[[Document, Path], None]
) -> None:
    run_dir = tmp_path / "received" / planted.name
    shutil.copytree(planted, run_dir)
    document = json.loads((run_dir / "manifest.json").read_text())
    change(document, outside)
    (run_dir / "manifest.json").write_text(json.dumps(document))
    before = snapshot(outside)
    with pytest.raises(SquallError) as raised:
        resume(str(run_dir))
    assert len(str(raised.value).splitlines()) == 1
    assert snapshot(outside) == before


def test_a_run_goes_nowhere_because_its_manifest_says_so(
    planted: Path, outside: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "received" / planted.name
    shutil.copytree(planted, run_dir)
    document = json.loads((run_dir / "manifest.json").read_text())
    document["copied_to"] = "s3://bucket/runs; rm -rf ~\x1b[2J"
    (run_dir / "manifest.json").write_text(json.dumps(document))
    before = snapshot(outside)
    resume(str(run_dir))
    assert snapshot(outside) == before
    told = capsys.readouterr().err
    assert f"squall resume {run_dir} --out s3://BUCKET/PREFIX brings it to object storage" in told
    assert "rm -rf" not in told
    assert run_dir.is_dir()


def test_a_run_goes_where_the_command_line_says(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses: list[str] = []

    def send_away(_: object, address: str) -> str:
        addresses.append(address)
        return address

    monkeypatch.setattr(home, "send_away", send_away)
    run_dir = tmp_path / planted.name
    shutil.copytree(planted, run_dir)
    resume(str(run_dir))
    resume(str(run_dir), out="s3://bucket/runs/")
    assert addresses == ["", f"s3://bucket/runs/{planted.name}"]
    with pytest.raises(ScenarioError, match=r"^--out: name object storage, s3://BUCKET/PREFIX"):
        resume(str(run_dir), out=str(tmp_path))
