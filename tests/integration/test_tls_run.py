"""Whole runs against a server over TLS: its control and its load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.server import TritonServer, triton_options
from squall.scenarios.config.loader import scenario_from_mapping
from tests.certificates import Authority
from tests.integration.live_runs import Bench, scenario_mapping
from tests.null_process import NullProcess

pytestmark = pytest.mark.beside


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "tls"
    folder.mkdir()
    return Authority(folder)


def mapping_over_tls(protocol: str, tls: dict[str, Any]) -> dict[str, Any]:
    mapping = scenario_mapping(model={"name": "linear_head", "max_batch_size": 8})
    mapping["clients"] |= {"protocol": protocol, "tls": tls}
    return mapping


def outcomes_of(bench: Bench) -> list[str]:
    column = bench.store().read("requests", ["outcome"]).column("outcome")
    return list(column.cast(pa.string()).to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [pytest.param("http", marks=pytest.mark.long), "grpc"])
def test_a_run_over_mutual_tls_counts_what_the_server_counts(
    alone: Bench, authority: Authority, protocol: str
) -> None:
    server, client = authority.issue("server", "DNS:triton.example"), authority.issue("client", "DNS:client")
    tls = {
        "ca": authority.ca, "certificate": client.certificate, "key": client.key,
        "server_name": "triton.example",
    }  # fmt: skip
    options = [f"--tls-certificate={server.certificate}", f"--tls-key={server.key}"]
    with NullProcess(*options, f"--tls-client-ca={authority.ca}") as null:
        mapping = mapping_over_tls(protocol, tls)
        mapping["server"] = {"grpc_port": null.ports["grpc"]}
        url = f"https://127.0.0.1:{null.ports['http']}"
        live = alone.start_run(mapping, "--server", url, "--json")
        assert live.end() in (0, 3), live.lines
    store = alone.store()
    outcomes = outcomes_of(alone)
    assert outcomes.count("ok") == len(outcomes) > 100
    counted = store.read("triton_samples", ["request_count"]).column("request_count").to_numpy()
    assert np.sum(counted) == len(outcomes)
    assert store.manifest.losses == ()
    assert [note for note in store.manifest.notes if "triton_samples" in note] == []
    alone.wait_until_gone()


@pytest.fixture
def triton_with_grpc_over_tls(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Endpoint]:
    """A real Triton with HTTP in the clear and gRPC over mutual TLS, as Triton itself offers it."""
    own = authority.issue("server", "DNS:triton.example")
    options = [
        "--grpc-use-ssl=1", "--grpc-use-ssl-mutual=1", f"--grpc-server-cert={own.certificate}",
        f"--grpc-server-key={own.key}", f"--grpc-root-cert={authority.ca}",
    ]  # fmt: skip
    monkeypatch.setattr(
        "squall.cluster.node.server.triton_options", lambda *given: [*triton_options(*given), *options]
    )
    scenario = scenario_from_mapping(scenario_mapping(), "test")
    (tmp_path / "triton").mkdir()
    server = TritonServer(
        [scenario.models[0].model], scenario.server, tmp_path / "triton", None, has_gpu=False
    )
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.mark.slow
def test_a_real_triton_is_loaded_over_grpc_with_mutual_tls(
    alone: Bench, authority: Authority, triton_with_grpc_over_tls: Endpoint
) -> None:
    client = authority.issue("client", "DNS:client")
    mapping = scenario_mapping(server={"grpc_port": triton_with_grpc_over_tls.grpc_port})
    mapping["clients"] |= {
        "protocol": "grpc",
        "tls": {
            "ca": authority.ca, "certificate": client.certificate, "key": client.key,
            "server_name": "triton.example",
        },
    }  # fmt: skip
    live = alone.start_run(mapping, "--server", triton_with_grpc_over_tls.url, "--json")
    assert live.end() in (0, 3), live.lines
    outcomes = outcomes_of(alone)
    assert outcomes.count("ok") == len(outcomes) > 100
    alone.wait_until_gone()


def test_a_server_that_is_not_trusted_ends_the_run_with_one_line(alone: Bench, authority: Authority) -> None:
    server = authority.issue("server", "IP:127.0.0.1")
    with NullProcess(f"--tls-certificate={server.certificate}", f"--tls-key={server.key}") as null:
        url = f"https://127.0.0.1:{null.ports['http']}"
        live = alone.start_run(mapping_over_tls("http", {}), "--server", url)
        assert live.end() == 1, live.lines
    line = live.error_line()
    assert line.startswith(
        f"squall: no Triton is ready at {url}: TLS: the server's certificate is not trusted"
    )
    alone.aborted()
    alone.wait_until_gone()
