"""Faults over hosts of a cluster (`namespaces`) that strike servers and Ray's head.

As in `test_cluster`, whose hosts and helpers these are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from squall.actors.inject.library import built_library
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.store import RunStore
from tests.integration.disks import assert_whole
from tests.integration.live_runs import RAY_AUTH, Bench, planned_rows, scenario_mapping, wait_until
from tests.integration.namespaces import Host, cluster
from tests.integration.test_cluster import ALL_OK, NODES, S, Site, _outcomes

pytestmark = [
    pytest.mark.skipif(
        built_library("batches") is None, reason="the batch library was not built: no C compiler"
    ),
    pytest.mark.slow,
    pytest.mark.long,
]
SECONDS = 6
LOADERS = {NODES["head"], NODES["client1"]}
"""Nodes with clients where squall starts servers on the two others."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("cluster")
    with cluster(folder, *list(NODES)[1:]) as made, made.triton("gpu0") as url:
        yield Site(made, url)


@pytest.fixture
def bench(site: Site, tmp_path: Path) -> Bench:
    """Its commands run on the head; Ray runs on every host again, whatever the test before did to it."""
    site.cluster.start_ray()
    site.cluster.sweep()
    return Bench(tmp_path, site.cluster.tmp, site.cluster.ray, within=site.cluster.head.within)


def started(servers: object) -> dict[str, Any]:
    """Squall starts the servers, server-0 on gpu0 and server-1 on client0; what is left of the hosts loads them."""
    mapping = scenario_mapping(server={"listen": "cluster"}, servers=servers)
    mapping["clients"] |= {"workers_per_node": 1, "deal": "hash", "timeout": "1s"}
    mapping["phases"][1] |= {"duration": f"{SECONDS}s", "arrivals": {"kind": "poisson", "rate": "90/s"}}
    return mapping


def named(host: Host, name: str) -> list[psutil.Process]:
    """Processes of a host by the name of their program."""
    found = []
    for process in host.processes():
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(name):
                found.append(process)
    return found


def ends_by_server(store: RunStore, from_ns: int = 0) -> dict[str, set[str]]:
    """Outcomes by target of what was due from then on, after the start instant."""
    rows, start_ns = planned_rows(store), store.manifest.start_ns
    assert start_ns is not None
    found: dict[str, set[str]] = {}
    for target, outcome, due_ns in zip(rows["target"], rows["outcome"], rows["scheduled_ns"], strict=True):
        if due_ns - start_ns >= from_ns:
            found.setdefault(target, set()).add(outcome)
    return found


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_of_two_tritons_one_that_is_gone_or_hangs_costs_its_own_requests(
    site: Site, bench: Bench, fault: signal.Signals
) -> None:
    """Stopped for good: no timeout of the run waits for it, and it is ended all the same."""
    live = bench.start_run(started({"count": 2}))
    bench.wait_for_phase("burst", 2)
    (server,) = [
        one
        for one in named(site.host("client0"), "tritonserver")
        if "supervisor" not in " ".join(one.cmdline())
    ]
    server.send_signal(fault)
    code = live.end()
    # one that does not answer had all that it was to be sent: a run that is VALID, and has more failures than expected
    assert code == 3 or (code == 99 and fault == signal.SIGSTOP), live.lines
    store = bench.store()
    assert set(_outcomes(store)) == LOADERS
    late = ends_by_server(store, 4 * S)
    assert late["server-0"] == {"ok"}, "the other goes on"
    assert late["server-1"] <= ({"transport_error"} if fault == signal.SIGKILL else {"timeout", "cancelled"})
    assert "ok" in ends_by_server(store)["server-1"], "what came before is kept"
    assert "server-1" in Summary.read(store).measure.failures.sentence
    assert_whole(store)
    site.cluster.wait_until_clean()


def test_a_gcs_that_is_killed_and_started_again_on_its_port_costs_nothing(site: Site, bench: Bench) -> None:
    """Without what it knew: to a run that has begun Ray is no matter."""
    head = site.cluster.head
    live = bench.start_run(site.scenario(SECONDS))
    bench.wait_for_phase("burst", 1)
    gcs = head.process("gcs/gcs_server")
    words, folder = gcs.cmdline(), gcs.cwd()
    gcs.kill()
    wait_until(lambda: not head.processes("gcs/gcs_server"), 20, "the end of the GCS")
    again = subprocess.Popen(
        [*head.within, *words], cwd=folder, env={**os.environ, **RAY_AUTH}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        bench.wait_for_phase("burst", 4)
        assert head.processes("gcs/gcs_server"), "it stands again"
        assert live.end() in (0, 3), live.lines
        store = bench.store()
        assert _outcomes(store) == ALL_OK
        assert store.manifest.losses == ()
        assert_whole(store)
        assert not any(line.startswith("squall: ") for line in live.lines), live.lines
    finally:
        for process in head.processes("gcs/gcs_server"):
            process.kill()
        again.wait(20)
    site.cluster.start_ray()  # what a Ray without its GCS keeps goes with that Ray
    site.cluster.wait_until_clean()


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_an_nsys_that_hangs_costs_the_profile_and_no_request(site: Site, bench: Bench) -> None:
    mapping = started([{}])
    mapping["profile"] = {"nsys": "auto", "nvml": "off", "trace": ["nvtx", "osrt"]}
    live = bench.start_run(mapping)
    bench.wait_for_phase("burst", 2)
    stopped = [process for process in named(site.host("gpu0"), "nsys") if process.is_running()]
    assert stopped, "the server runs under nsys"
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    assert live.end(240) in (0, 3), live.lines
    store = bench.store()
    ends = {one for of_node in _outcomes(store).values() for one in of_node}
    assert ends == {"ok"}
    told = [*store.manifest.notes, *store.manifest.losses, *map(str, store.manifest.collectors.values())]
    assert any("nsys" in line for line in told), told
    assert_whole(store)
    site.cluster.wait_until_clean()
    wait_until(lambda: not named(site.host("gpu0"), "nsys"), 20, "the end of nsys")
