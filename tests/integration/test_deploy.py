"""Clusters that `squall deploy` describes, set up on hosts in namespaces, and a run on each."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.analysis.storage.store import RunStore
from squall.cluster.deploy.forms import filled
from squall.cluster.deploy.kinds import Kind
from tests.integration.live_runs import RAY_AUTH, Bench, planned_rows, scenario_mapping, unmet, wait_until
from tests.integration.namespaces import Cluster, cluster

pytestmark = [pytest.mark.beside, pytest.mark.slow]
_SRUN = """#!{python}
import os, signal, subprocess, sys
host = next(word.partition("=")[2] for word in sys.argv if word.startswith("--nodelist="))
step = subprocess.Popen([*{within}[host], *sys.argv[5:]], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: os.killpg(step.pid, signal.SIGTERM))
sys.exit(step.wait())
"""
"""As srun, it ends all processes of its step when it is told to end."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("deploy"), "gpu0", "client0") as made:
        yield made


@pytest.fixture(autouse=True)
def _no_ray(site: Cluster) -> Iterator[None]:
    for host in site.hosts.values():
        host.stop_ray(is_known=False)
    yield
    site.sweep()


def _assert_good(store: RunStore) -> None:
    assert unmet(store) == [], store.manifest.verdict
    rows = planned_rows(store)
    assert set(rows["outcome"]) == {"ok"}
    assert set(rows["node"]) == {"node-0", "node-2"}, "the server is on node-1"
    assert store.verify() == []


@pytest.mark.long
def test_ray_start_makes_a_cluster_that_asks_for_its_token_and_hinders_no_run(
    site: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "ray-start.sh"
    script.write_text(filled(Kind.RAY_START))
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    for host in site.hosts.values():
        role = ["head"] if host is site.head else ["node", site.head.address]
        small = ["--num-cpus=1", f"--temp-dir={host.tmp}/ray", "--object-store-memory=80000000"]
        host.run("env", path, f"NODE_ADDRESS={host.address}", "GPUS=0", "sh", str(script), *role, *small)
    bench = Bench(tmp_path, site.tmp, site.ray, within=site.head.within)
    live = bench.start_run(scenario_mapping(server={"listen": "cluster"}))
    assert live.end() in (0, 3), live.lines
    assert not any("squall doctor has the mend" in line for line in live.lines), live.lines
    _assert_good(bench.store())
    stranger = bench.start("doctor", "--ray", site.ray, env={**RAY_AUTH, "RAY_AUTH_TOKEN": "0" * 64})
    assert stranger.end() == 1
    assert "cannot join Ray" in bench.stdout()


@pytest.mark.long
def test_the_slurm_script_starts_ray_on_each_node_runs_and_leaves_nothing(
    site: Cluster, tmp_path: Path
) -> None:
    """srun and scontrol are stand-ins that bring commands to the hosts; all that they bring is real."""
    tools = tmp_path / "tools"
    tools.mkdir()
    by_name = {name: [*host.within] for name, host in site.hosts.items()}
    scripts = {
        "srun": _SRUN.format(python=sys.executable, within=repr(by_name)),
        "scontrol": "#!/bin/sh\n" + "".join(f"echo {name}\n" for name in site.hosts),
        "hostname": "#!/bin/sh\nip -4 -o address show eth0 | awk '{print $4}' | cut -d/ -f1\n",
        "python3": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n',
        "squall": f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m squall.cluster.entry "$@"\n',
    }
    for name, text in scripts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    bench = Bench(tmp_path, site.tmp)
    job = tmp_path / "slurm.sh"
    job.write_text(filled(Kind.SLURM))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}", "TMPDIR": str(site.tmp),
        "SLURM_JOB_NODELIST": "head,gpu0,client0", "RAY_TMPDIR": str(site.tmp),
    }  # fmt: skip
    words = [
        "bash",
        str(job),
        str(bench.write(scenario_mapping(server={"listen": "cluster"}))),
        "--out",
        str(bench.out),
    ]
    log = tmp_path / "slurm.log"
    with log.open("wb") as out:
        done = subprocess.run(words, env=environment, stdout=out, stderr=out, timeout=120, check=False)
    assert done.returncode in (0, 3), log.read_text()
    _assert_good(bench.store())
    hosts = site.hosts.values()
    wait_until(lambda: not any(host.processes("raylet/raylet") for host in hosts), 20, "the end of Ray")
