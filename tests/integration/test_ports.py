"""A peer without the token gets nowhere: every port that is open in a run, tried from a host that is no node.

Triton's own ports are the exception that docs/security.md names.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import RAY_AUTH, Bench, planned_rows, scenario_mapping, unmet
from tests.integration.namespaces import Cluster, Host, cluster

pytestmark = [pytest.mark.slow]

_TRIED_WITHIN_S = 120.0
_HEAD_RAY = """
import sys
from ray._raylet import GcsClient
print(len(GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10)))
"""
_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "security.md"
Door = tuple[str, str, int]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("grpc")
    with cluster(tmp_path_factory.mktemp("ports"), "gpu0", "client0") as made:
        yield made


def _doors(host: Host) -> dict[Door, str]:
    """What listens on a host beyond its loopback, and the name of the process."""
    found: dict[Door, str] = {}
    for line in host.run("ss", "-ltnupH").splitlines():
        kind, _, _, _, local, _, *users = line.split()
        address, _, port = local.rpartition(":")
        if address.strip("[]").removeprefix("::ffff:").startswith("127."):
            continue
        (pid,) = set(re.findall(r"pid=(\d+)", users[0]))
        words = host.run("cat", f"/proc/{pid}/cmdline").replace("\0", " ")
        found[kind, host.address, int(port)] = _who(words)
    return found


def _who(words: str) -> str:
    """The row of the page that a command line belongs to."""
    names = {
        "tritonserver": "Triton", "gcs_server": "GCS", "raylet/raylet": "raylet",
        "ray::RuntimeEnvAgent": "runtime env agent", "ray::": "Ray worker",
        "ray.util.client.server": "Ray client server", "squall.cluster.entry": "driver in Ray",
        "squall.cluster.remote.served Observer": "clock responder",
    }  # fmt: skip
    return next((name for part, name in names.items() if part in words), words)


@pytest.fixture(autouse=True)
def _nothing_is_left(site: Cluster) -> Iterator[None]:
    yield
    site.sweep()


@contextlib.contextmanager
def _tries(stranger: Host, doors: list[Door]) -> Iterator[dict[str, dict[str, Any]]]:
    """What the stranger found; its silent connections stay open as long."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [*stranger.within, "nice", "-n", "19", sys.executable, "-m", "tests.integration.stranger"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=bare | {"HOME": str(stranger.tmp), "PYTHONPATH": str(_ROOT)},
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"doors": doors}) + "\n")
        process.stdin.flush()
        said = process.stdout.readline()
        assert said == "in\n", said or process.communicate(timeout=10)[1]
        yield json.loads(process.stdout.readline())
        _, errors = process.communicate("", timeout=_TRIED_WITHIN_S)
        assert process.returncode == 0, errors
    finally:
        process.kill()
        process.communicate()


def _assert_closed(found: dict[str, dict[str, Any]], who: dict[str, str]) -> None:
    """Each port but Triton's refused whatever it was asked, and those of Ray did so for want of the token."""
    for door, tried in found.items():
        name = who[door]
        if name == "Triton":
            continue
        told = f"{door}, {name}: {tried}"
        if door.startswith("udp"):
            assert tried == {"udp answers": 0}, told
            continue
        assert tried["channel"] != "let in", told
        assert tried.get("http", [401]) == [401], told
        assert tried.get("http, wrong token", [403]) == [403], told
        for ends in (tried["grpc"], tried["grpc, wrong token"]):
            assert set(ends) <= {"UNAUTHENTICATED", "UNIMPLEMENTED"}, told
            if name not in ("clock responder", "runtime env agent"):
                assert ends.get("UNAUTHENTICATED"), told
        if name == "clock responder":
            assert tried["garbage"] == 0, told
        if name == "runtime env agent":
            assert tried["http"] == [401], told


def _asks_the_gcs(host: Host, address: str, auth: dict[str, str]) -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [*host.within, sys.executable, "-c", _HEAD_RAY, address], capture_output=True, text=True, check=False,
        env=bare | {"HOME": str(host.tmp)} | auth, timeout=60,
    )  # fmt: skip


def test_in_a_run_no_port_but_tritons_answers_a_host_without_the_token(site: Cluster, tmp_path: Path) -> None:
    bench = Bench(tmp_path, site.tmp, site.ray, within=site.head.within)
    mapping = scenario_mapping(server={"listen": "cluster"})
    mapping["phases"][1] |= {"duration": "20s"}
    live = bench.start_run(mapping)
    bench.wait_for_phase("burst", 0.5)
    doors = {door: name for host in site.hosts.values() for door, name in _doors(host).items()}
    expected = {
        "Triton", "GCS", "raylet", "Ray worker", "runtime env agent", "Ray client server", "clock responder",
        "driver in Ray",
    }  # fmt: skip
    assert set(doors.values()) == expected
    page = _PAGE.read_text()
    assert all(f"| {name} |" in page for name in expected), "the page has a row for each"
    with site.stranger() as stranger, _tries(stranger, [*doors]) as found:
        _assert_closed(found, {f"{kind} {host}:{port}": name for (kind, host, port), name in doors.items()})
        assert any(200 in one.get("http", []) for one in found.values()), "Triton's ports ask nobody"
        for auth in ({}, {**RAY_AUTH, "RAY_AUTH_TOKEN": "0" * 64}):
            refused = _asks_the_gcs(stranger, site.ray, auth)
            assert refused.returncode != 0
            assert "authenticat" in refused.stderr.lower(), refused.stderr
        assert _asks_the_gcs(stranger, site.ray, RAY_AUTH).stdout == "3\n", (
            "with the token it would be let in"
        )
        assert live.end() in (0, 3), live.lines
    store = bench.store()
    _assert_unharmed(store)
    site.wait_until_clean()


def _assert_unharmed(store: RunStore) -> None:
    """All was sent and answered. A stranger that takes CPU of the same machine may make it INVALID, and is named."""
    assert unmet(store) == [], store.manifest.verdict
    assert (store.manifest.losses, store.manifest.unfinished) == ((), None)
    assert set(planned_rows(store)["outcome"]) == {"ok"}
    assert store.verify() == []


@pytest.mark.long
def test_a_ray_that_squall_starts_asks_for_a_token_that_nobody_was_told(
    site: Cluster, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, site.tmp, within=site.head.within)
    mapping = scenario_mapping()
    mapping["phases"][1] |= {"duration": "20s"}
    site.head.run("ip", "route", "replace", "default", "dev", "eth0")  # without a route Ray stays on loopback
    before = set(_doors(site.head))
    live = bench.start_run(mapping, "--ray", "local")
    bench.wait_for_phase("burst", 0.5)
    doors = {door: name for door, name in _doors(site.head).items() if door not in before}
    assert set(doors.values()) == {"GCS", "raylet", "Ray worker", "runtime env agent", "driver in Ray"}
    (gcs,) = (door for door, name in doors.items() if name == "GCS")
    with site.stranger() as stranger, _tries(stranger, [*doors]) as found:
        _assert_closed(found, {f"{kind} {host}:{port}": name for (kind, host, port), name in doors.items()})
        for auth in ({}, RAY_AUTH):
            assert _asks_the_gcs(stranger, f"{gcs[1]}:{gcs[2]}", auth).returncode != 0
        assert live.end() in (0, 3), live.lines
    _assert_unharmed(bench.store())
