"""`squall check` against a null server of known service time: two seeds, a promise kept and one broken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.integration.live_runs import Bench, wait_until
from tests.null_process import NullProcess

MAPPING = {
    "name": "held", "seed": 3, "model": {"name": "linear_head"},
    "clients": {"workers_per_node": 1, "timeout": "10s"},
    "phases": [
        {"name": "main", "kind": "measure", "duration": "2s", "arrivals": {"kind": "poisson", "rate": "60/s"}},
        {"name": "end", "kind": "drain", "duration": "15s"},
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("promise", "code"), [pytest.param("p(50)<1500ms", 0, marks=pytest.mark.long), ("p(50)<2ms", 99)]
)
def test_a_check_of_two_seeds_says_what_the_server_keeps(tmp_path: Path, promise: str, code: int) -> None:
    path = tmp_path / "held.yaml"
    path.write_text(yaml.safe_dump({**MAPPING, "promises": {"response": promise}}))
    with NullProcess("--service=constant:3ms") as null:
        done = subprocess.run(
            [
                sys.executable, "-m", "squall.cluster.entry", "check", str(path), "--seeds", "2", "--json",
                "--out", str(tmp_path / "runs"), "--server", f"http://127.0.0.1:{null.ports['http']}",
                "--junit", str(tmp_path / "junit.xml"),
            ],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    found = json.loads(done.stdout)
    statuses = [one["status"] for one in found["runs"] if not one["is_replaced"]]
    assert len(statuses) == 2
    is_valid = statuses == ["VALID", "VALID"]  # on a crowded host the load may not have been delivered
    assert (done.returncode, found["verdict"]) == (
        (code, {0: "kept", 99: "broken"}[code]) if is_valid else (3, "invalid")
    )
    assert (tmp_path / "junit.xml").read_text().startswith("<?xml")


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.long), signal.SIGTERM])
def test_a_check_that_is_cut_off_leaves_no_verdict(joined: Bench, number: signal.Signals) -> None:
    path = joined.write({**MAPPING, "promises": {"response": "p(50)<1500ms"}})
    copy = joined.folder / "copy.xml"
    copy.write_text("an older check: kept")
    assert joined.ray is not None
    with NullProcess("--service=constant:3ms") as null:
        at = ["--server", f"http://127.0.0.1:{null.ports['http']}", "--ray", joined.ray, "--out", joined.out]
        live = joined.start("check", path, *map(str, at), "--seeds", "4", "--junit", copy)
        files = wait_until(lambda: list(joined.out.glob("*/check.json")), 60, "the files of the check")
        assert ElementTree.parse(copy).find(".//error[@type='unfinished']") is not None
        wait_until(lambda: json.loads(files[0].read_text())["runs"], 90, "the first seed")
        n_runs = len(list(joined.out.glob("*/*/manifest.json")))
        wait_until(lambda: len(list(joined.out.glob("*/*/manifest.json"))) > n_runs, 60, "the next run")
        os.kill(live.process.pid, number)
        assert live.end() == (1 if number == signal.SIGTERM else -number), live.lines
    assert sum("joining Ray" in line for line in live.lines) == 1, "its runs have one session"
    said = json.loads(files[0].read_text())
    done = sum(not one["is_replaced"] for one in said["runs"])
    assert 1 <= done < 4
    assert (said["verdict"], said["n_seeds_planned"]) == ("unfinished", 4)
    assert {one["verdict"] for one in said["promises"]} == {"unfinished"}
    text = f"{done} of 4 seeds have run"
    for name in ("check.md", "check.html", "junit.xml"):
        told = (files[0].parent / name).read_text()
        assert text in told
        assert "kept" not in told.replace("are the promises kept?", ""), "the title of the page asks"
    assert copy.read_text() == (files[0].parent / "junit.xml").read_text()
