"""Nodes of a cluster without squall, or with another: the driver's is brought to them for the run.

The hosts' Ray runs in environments of their own, which have all that squall needs, and no package index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import squall
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping, unmet
from tests.integration.namespaces import Cluster, cluster

pytestmark = [pytest.mark.beside, pytest.mark.slow]

_ABSENT, _OTHER, _LACKING = "client0", "client1", "client2"
_LEFT_OUT = "duckdb"


def _environment(folder: Path, but: str | None = None) -> Path:
    """The Python of a new environment with this one's libraries, without squall and `but`. Nothing is copied."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    theirs = Path(sysconfig.get_path("purelib"))
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for path in theirs.iterdir():
        name = path.name.lower().removeprefix("_")
        if not name.startswith(("squall", "_editable_", *([but] if but else []))) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


def _other_squall(python: Path) -> None:
    """A squall whose source is another in one file."""
    (site,) = python.parents[1].glob("lib/*/site-packages")
    source = Path(squall.__path__[0])
    (site / "squall").mkdir()
    shutil.copy(source / "__init__.py", site / "squall")
    for room in ("scenarios", "models", "actors", "analysis", "cluster"):
        shutil.copytree(source / room, site / "squall" / room, ignore=shutil.ignore_patterns("__pycache__"))
    with (site / "squall" / "cluster" / "progress.py").open("a") as file:
        file.write("\nraise AssertionError('of another squall')\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("shipping")
    with cluster(folder, _ABSENT, _OTHER, _LACKING) as made:
        for name in (_ABSENT, _OTHER, _LACKING):
            python = _environment(folder / f"environment-of-{name}", _LEFT_OUT if name == _LACKING else None)
            if name == _OTHER:
                _other_squall(python)
            made.hosts[name].stop_ray()
        yield made


def _start(site: Cluster, name: str) -> None:
    python = site.folder / f"environment-of-{name}" / "bin" / "python"
    site.hosts[name].start_ray(site.ray, ("env", "-u", "PYTHONPATH", "-C", "/", str(python)))


def test_a_node_without_squall_and_one_with_another_run_the_drivers(site: Cluster, tmp_path: Path) -> None:
    for name in (_ABSENT, _OTHER):
        _start(site, name)
    bench = Bench(tmp_path, site.tmp, site.ray, within=site.head.within)
    mapping = scenario_mapping(server={"listen": "cluster"})
    mapping["clients"]["workers_per_node"] = 1
    live = bench.start_run(mapping)
    assert live.end() in (0, 3), live.lines
    for label, what in (("node-1", "no squall"), ("node-2", "squall ")):
        assert any(f"brought to {label} for the run, which has {what}" in line for line in live.lines), (
            live.lines
        )
    store = bench.store()
    assert unmet(store) == [], store.manifest.verdict
    assert (store.manifest.losses, store.manifest.unfinished) == ((), None)
    rows = planned_rows(store)
    assert set(rows["outcome"]) == {"ok"}
    assert set(rows["node"]) == {"node-0", "node-2"}, "the server is on node-1"
    if any(Path(squall.__path__[0]).glob("actors/_batches*")):
        joined = store.read("joined", ["join_level"]).to_pydict()["join_level"]
        assert np.mean(np.array(joined) == "exact") == 1, "its batches were recorded: the C parts came along"
    assert store.verify() == []


@pytest.mark.long
def test_a_node_that_lacks_a_library_is_named_with_the_mend_before_the_run(
    site: Cluster, tmp_path: Path
) -> None:
    _start(site, _LACKING)
    try:
        bench = Bench(tmp_path, site.tmp, site.ray, within=site.head.within)
        live = bench.start_run(scenario_mapping(server={"listen": "cluster"}))
        assert live.end() == 1, live.lines
        words = r"node-\d cannot run squall \(lacks duckdb>=[\d.]+: pip install 'duckdb>="
        assert re.search(words, live.error_line()), live.lines
    finally:
        site.hosts[_LACKING].stop_ray()
