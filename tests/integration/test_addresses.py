"""Real runs against a name with several addresses: every one has its share, one that is dead is left out and said."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.live_runs import Bench, scenario_mapping
from tests.null_process import NullProcess

pytestmark = [pytest.mark.slow, pytest.mark.long]
NAME = "headless.example"


def within_hosts(folder: Path, addresses: list[str]) -> tuple[str, ...]:
    """Words before a command for which `NAME` has these addresses: a mount namespace with /etc/hosts of its own."""
    hosts = folder / "hosts"
    own = "".join(f"{address} {NAME}\n" for address in addresses)
    hosts.write_text(Path("/etc/hosts").read_text() + own)
    within = ("unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh")
    look = f"import socket; print(sorted({{one[4][0] for one in socket.getaddrinfo({NAME!r}, 1)}}))"
    found = subprocess.run([*within, sys.executable, "-c", look], capture_output=True, text=True, check=False)
    if found.stdout.strip() != str(sorted(addresses)):
        pytest.skip(f"no mount namespace with hosts of its own here: {found.stderr.strip()}")
    return within


@pytest.fixture
def nulls() -> Iterator[list[NullProcess]]:
    """Two servers, of the same ports at 127.0.0.1 and 127.0.0.2."""
    with ExitStack() as stack:
        first = stack.enter_context(NullProcess("--service=constant:1ms"))
        second = NullProcess("--service=constant:1ms", "--host=127.0.0.2")
        second.ports = dict(first.ports)
        stack.enter_context(second)
        yield [first, second]


def answered(host: str, port: int) -> int:
    """Requests that the server there has answered, by its own statistics."""
    with socket.create_connection((host, port), 5) as sock:
        sock.sendall(b"GET /v2/models/stats HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        data = b""
        while piece := sock.recv(65_536):
            data += piece
            head, _, body = data.partition(b"\r\n\r\n")
            if body and b"content-length" in head.lower():
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                if len(body) >= length:
                    break
    (model,) = json.loads(body)["model_stats"]
    return int(model["inference_stats"]["success"]["count"])


def run_at(bench: Bench, port: int, protocol: str, **clients: Any) -> tuple[list[dict[str, Any]], str]:
    """Runs against `NAME`; addresses of the workers as the manifest has them, and what was said."""
    server: dict[str, Any] = {"url": f"http://{NAME}:{port}", "grpc_port": clients.pop("grpc_port")}
    mapping = scenario_mapping(model={"name": "linear_head"}, server=server)
    mapping["clients"] |= {"protocol": protocol, "connections": 4, "priority": "normal", **clients}
    live = bench.start_run(mapping, "--json")
    assert live.end() in (0, 3), live.lines
    store = bench.store()
    outcomes = store.read("requests").column("outcome").to_pylist()
    assert set(outcomes) == {"ok"}, outcomes
    manifest = json.loads((store.run_dir / "manifest.json").read_text())
    return [one for worker in manifest["workers"] for one in worker["addresses"]], "\n".join(live.lines)


@pytest.mark.parametrize(
    ("protocol", "clients"),
    [("http", {}), ("grpc", {}), ("http", {"max_in_flight": 1_000})],
    ids=["http", "grpc", "http-without-lane"],
)
def test_every_address_of_a_name_has_its_share(
    alone: Bench, nulls: list[NullProcess], protocol: str, clients: dict[str, Any]
) -> None:
    alone.within = within_hosts(alone.folder, ["127.0.0.1", "127.0.0.2"])
    ports = nulls[0].ports
    used, said = run_at(alone, ports["http"], protocol, grpc_port=ports["grpc"], **clients)
    shares = [answered(host, ports["http"]) for host in ("127.0.0.1", "127.0.0.2")]
    assert min(shares) > 0.2 * sum(shares) > 0, shares  # of equal connections those are asked that are free
    port = ports[protocol]
    assert {one["address"] for one in used} == {f"127.0.0.1:{port}", f"127.0.0.2:{port}"}
    assert min(one["n_connections"] for one in used) >= 2, used
    assert "server-0 has 2 addresses" in said
    assert "2 servers answer to the name" in said
    assert not alone.store().has("triton_samples") or not alone.store().read("triton_samples").num_rows


@pytest.mark.parametrize(
    ("protocol", "clients"),
    [("http", {}), ("grpc", {}), ("http", {"max_in_flight": 1_000})],
    ids=["http", "grpc", "http-without-lane"],
)
def test_one_server_at_an_ipv4_and_an_ipv6_address_has_its_load_at_both_and_its_statistics(
    alone: Bench, protocol: str, clients: dict[str, Any]
) -> None:
    alone.within = within_hosts(alone.folder, ["127.0.0.1", "::1"])
    with NullProcess("--service=constant:1ms", "--host=::") as null:  # it takes those to IPv4 addresses, too
        ports = null.ports
        used, said = run_at(alone, ports["http"], protocol, grpc_port=ports["grpc"], **clients)
        n_answered = answered("127.0.0.1", ports["http"])
    port = ports[protocol]
    assert {one["address"] for one in used} == {f"127.0.0.1:{port}", f"[::1]:{port}"}
    assert min(one["n_connections"] for one in used) >= 2, used
    assert "server-0 has 2 addresses" in said
    assert "servers answer to the name" not in said
    store = alone.store()
    assert n_answered == store.read("requests").num_rows
    assert store.read("triton_samples").num_rows


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_address_that_takes_no_connection_is_left_out_and_said(alone: Bench, protocol: str) -> None:
    alone.within = within_hosts(alone.folder, ["127.0.0.2", "::1", "127.0.0.1"])
    with NullProcess("--service=constant:1ms", "--host=127.0.0.2") as null:
        ports = null.ports
        used, said = run_at(alone, ports["http"], protocol, grpc_port=ports["grpc"])
    port = ports[protocol]
    left_out = {one["address"]: one["why_left_out"] for one in used if one["why_left_out"]}
    assert left_out == {f"127.0.0.1:{port}": "Connection refused", f"[::1]:{port}": "Connection refused"}
    assert f"127.0.0.1:{port} of server-0 is left out by 2 workers: Connection refused" in said
    assert sum(one["n_connections"] for one in used if one["address"] == f"127.0.0.2:{port}") >= 8
    assert alone.store().read("triton_samples").num_rows
