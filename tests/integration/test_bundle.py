"""What `squall bundle` writes installs squall where there is no network, and a run is made there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from squall.cluster.deploy.bundle import fill, write_bundle
from squall.cluster.deploy.needed import pins
from squall.cluster.node.triton_home import cached_home, find_triton
from squall.scenarios.errors import ClusterError
from tests.integration.live_runs import Bench, scenario_mapping

pytestmark = [
    pytest.mark.beside,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("unshare"), reason="no network namespace can be had"
    ),
]
_ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def test_a_bundle_installs_and_runs_without_a_network(tmp_path: Path, short_tmp: Path) -> None:
    find_triton()
    home = cached_home()
    bundle = tmp_path / "bundle"
    subprocess.run(
        [sys.executable, "-m", "squall.cluster.entry", "bundle", str(bundle)],
        check=True,
        timeout=600,
        cwd="/",
    )
    assert (bundle / "triton.tar").exists() == (home is not None)
    names = {path.name.partition("-")[0].lower() for path in (bundle / "wheels").iterdir()}
    assert len(names) == len(pins(f"3.{sys.version_info.minor}")) + 1
    for path in bundle.rglob("*"):
        if path.is_file() and path.suffix != ".whl" and path.name != "triton.tar":
            assert str(tmp_path).encode() not in path.read_bytes(), path

    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment = {**kept, "HOME": str(tmp_path), "TMPDIR": str(short_tmp), "PYTHON": sys.executable}
    made = short_tmp / "v"
    words = [*_ALONE, "sh", str(bundle / "install.sh"), str(made)]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=300, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("squall ")
    squall = str(made / "bin" / "squall")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*_ALONE, squall, *arguments], env=environment, capture_output=True, text=True, timeout=180,
            check=False, cwd="/",
        )  # fmt: skip

    looked = run("doctor", "--json")
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert json.loads(looked.stdout)["can_run"]
    bench = Bench(tmp_path, short_tmp)
    ran = run("run", str(bench.write(scenario_mapping())), "--out", str(bench.out), "--json")
    assert ran.returncode in (0, 3), ran.stderr
    store = bench.store()
    assert set(store.read("requests", ["outcome"]).to_pydict()["outcome"]) == {"ok"}
    assert store.has("batches"), "its C parts are there"

    with (bundle / "install.sh").open("a") as file:
        file.write("# changed on the way\n")
    again = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode != 0
    assert "install.sh: FAILED" in again.stdout + again.stderr


def test_two_bundles_of_one_environment_are_the_same_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"hpack": pins("3.11")["hpack"]}
    monkeypatch.setattr("squall.cluster.deploy.bundle.pins", lambda _: few)
    python = f"3.{sys.version_info.minor}"
    for name in ("one.tar", "two.tar"):
        write_bundle(tmp_path / name, python)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert {"squall-bundle/install.sh", "squall-bundle/SHA256SUMS"} <= set(archive.getnames())
    with pytest.raises(ClusterError, match="is there already"):
        write_bundle(tmp_path / "one.tar", python)
    with pytest.raises(ClusterError, match="name one from 3"):
        write_bundle(tmp_path / "three", "3.9")
    assert {path.name for path in tmp_path.iterdir()} == {"one.tar", "two.tar"}, "nothing else is left"


def test_a_bundle_for_another_python_holds_its_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_pins = pins("3.12")
    monkeypatch.setattr("squall.cluster.deploy.bundle.pins", lambda _: {"psutil": all_pins["psutil"]})
    monkeypatch.setattr("squall.cluster.deploy.bundle.cached_home", lambda: None)
    fill(tmp_path / "b", "3.12")
    assert (tmp_path / "b" / "python-version").read_text() == "3.12\n"
    assert {path.name.partition("-")[0] for path in (tmp_path / "b" / "wheels").iterdir()} == {
        "psutil",
        "squall",
    }
