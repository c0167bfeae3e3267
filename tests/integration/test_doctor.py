"""`squall doctor` on this machine, as it is and with things really broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from squall.actors.load.lane import IS_BUILT
from squall.actors.nsys.proof import prove_nsys
from squall.actors.nsys.tools import find_nsys
from squall.analysis.nsys.scrub import count_events
from squall.cluster.node.checkup import REQUIRED
from squall.cluster.node.triton_home import find_triton
from squall.scenarios.errors import ClusterError
from tests.integration.live_runs import RAY_AUTH, Bench

ROOT = Path(__file__).parents[2]
_DRIVE = """
import json, sys
from squall.cluster.commands.diagnosis import diagnose
from squall.cluster.interrupts import Interrupts
with Interrupts() as interrupts:
    result = diagnose(sys.argv[1] if len(sys.argv) > 1 else None, interrupts)
print(json.dumps(result))
sys.exit(0 if result["can_run"] else 1)
"""


def doctor(bench: Bench, *ray: str, **env: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", _DRIVE, *ray], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
        env={**os.environ, **RAY_AUTH, "TMPDIR": str(bench.tmp), **env}, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.single
def test_a_checkout_in_the_working_folder_is_not_what_nodes_run(alone: Bench) -> None:
    checkout = alone.folder / "squall"
    checkout.mkdir()
    for name in ("__init__.py", "scenarios", "models", "analysis", "cluster"):
        (checkout / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "actors", checkout / "actors", ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _DRIVE], cwd=alone.folder, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=120, env={**os.environ, "TMPDIR": str(alone.tmp)}, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    (node,) = json.loads(done.stdout)["nodes"].values()
    assert by_topic(node)["C lane"]["what"].startswith("built") == IS_BUILT
    alone.wait_until_gone()


def by_topic(node: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["topic"]: one for one in node["findings"]}


def needs_nsys() -> Path:
    found = find_nsys()
    if found is None:
        pytest.skip("nsys is not installed (Debian: nsight-systems, component non-free)")
    return found.nsys


@pytest.mark.single
def test_this_machine_is_looked_at_through_ray(joined: Bench) -> None:
    assert joined.ray is not None
    find_triton()  # another test of a fresh machine may be amid fetching it
    code, result = doctor(joined, joined.ray)
    assert list(result) == ["driver", "nodes", "can_run"]
    assert (code == 0) == result["can_run"]
    assert all(result["driver"][name] for name in REQUIRED)
    (node,) = result["nodes"].values()
    found = by_topic(node)
    assert {"packages", "cores", "Ray", "Triton", "GPU", "nsys", "clock", "disk"} <= set(found)
    assert found["packages"]["status"] == found["clock"]["status"] == found["Triton"]["status"] == "ok"
    assert "2.51.0" in found["Triton"]["what"] or found["Triton"]["what"].endswith("PATH")
    assert found["Ray"]["what"].endswith("calls need a token")
    assert found["Ray niceness"]["what"].startswith("15")  # what Ray gives unless told otherwise
    assert "95%" in found["Ray memory monitor"]["what"]
    assert found["Ray health checks"]["status"] == "limited"
    for one in node["findings"]:
        assert bool(one["mend"]) == (one["status"] != "ok"), one
        assert not one["what"].startswith("the check failed"), one
    if find_nsys() is None:
        assert found["nsys"]["status"] == "limited"
    else:
        assert found["nsys"]["status"] == "ok", found["nsys"]["what"]
        assert "OS-runtime calls exported" in found["nsys"]["what"]
        assert "NVTX" in found
    joined.wait_until_gone()


@pytest.mark.beside
def test_without_ray_and_without_nsys_this_machine_is_looked_at_all_the_same(alone: Bench) -> None:
    code, result = doctor(alone, "127.0.0.1:1", SQUALL_NSYS="/nonexistent")
    found = by_topic(result["nodes"]["this machine"])
    assert (code, result["can_run"]) == (1, False)
    assert found["Ray"]["status"] in ("ok", "missing")  # the node's own finding has the same topic
    lost = result["nodes"]["this machine"]["findings"][0]
    assert (lost["topic"], lost["status"]) == ("Ray", "missing")
    assert "cannot join Ray at 127.0.0.1:1: Connection refused" in lost["what"]
    assert found["nsys"]["status"] == "limited"
    assert "SQUALL_NSYS: /nonexistent is no nsys" in found["nsys"]["what"]


@pytest.mark.single
def test_a_launch_that_failed_within_nsys_is_made_once_more_for_the_proof_too(tmp_path: Path) -> None:
    needs_nsys()
    tools = find_nsys()
    assert tools is not None
    wrapper = tmp_path / "nsys"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = launch ] && [ ! -e "$0.failed" ] || exec {tools.nsys} "$@"\n'
        ': > "$0.failed"; echo "Connection to the Agent lost."; exec sleep 600\n'
    )
    wrapper.chmod(0o755)
    n_osrt, _ = prove_nsys(replace(tools, nsys=wrapper), tmp_path, count_events)
    assert n_osrt
    assert Path(f"{wrapper}.failed").exists()


@pytest.mark.slow
@pytest.mark.single
def test_an_importer_that_fails_is_found_by_the_proof_and_not_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = needs_nsys().resolve()
    target, host = tmp_path / "nsight" / real.parent.name, tmp_path / "nsight" / "host-linux-x64"
    target.mkdir(parents=True)
    host.mkdir()
    for path in real.parent.iterdir():
        (target / path.name).symlink_to(path)
    (target / real.name).unlink()
    shutil.copy2(real, target / real.name)
    (host / "QdstrmImporter").write_text("#!/bin/sh\nexit 1\n")
    (host / "QdstrmImporter").chmod(0o755)
    monkeypatch.setenv("SQUALL_NSYS", str(target / real.name))
    tools = find_nsys()
    assert tools is not None
    assert tools.problems == ()
    (tmp_path / "proof").mkdir()
    with pytest.raises(ClusterError):
        prove_nsys(tools, tmp_path / "proof", count_events)
    monkeypatch.delenv("SQUALL_NSYS")
