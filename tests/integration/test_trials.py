"""A request is tried before the load: what no server takes is said before Ray; a load that fails says why meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway import Gateway
from tests.integration.live_runs import Bench, planned_rows, scenario_mapping
from tests.null_process import NullProcess

pytestmark = [pytest.mark.slow, pytest.mark.beside]


def mapping_for(port: int, **clients: Any) -> dict[str, Any]:
    mapping = scenario_mapping(model={"name": "linear_head"}, server={"url": f"http://127.0.0.1:{port}"})
    mapping["clients"] |= {"try_first": True, **clients}
    return mapping


def refused(bench: Bench, mapping: dict[str, Any], code: int = 1) -> str:
    """The one line of a run that ended before Ray was started; nothing was sent but what was tried."""
    live = bench.start_run(mapping)
    assert live.end() == code, live.lines
    assert "starting Ray" not in "\n".join(live.lines)
    assert bench.aborted().tables() == []
    return live.error_line()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("fault", "said", "mend"),
    [
        ("400:1", "failed: server_error: ", "clients.inputs"),
        ("wrong:1", "failed: bad_reply: ", "the model whose configuration the server tells"),
        ("close:1", "failed: transport_error: the server closed the connection", "the server's log"),
    ],
)
def test_what_no_server_takes_ends_before_ray(
    with_own_ray: Bench, protocol: str, fault: str, said: str, mend: str
) -> None:
    with NullProcess(f"--fault={fault}") as null:
        mapping = mapping_for(null.ports["http"], protocol=protocol)
        mapping["server"]["grpc_port"] = null.ports["grpc"]
        line = refused(with_own_ray, mapping)
    assert "the request that is tried before the load (server-0, linear_head, 1 row)" in line
    assert said in line
    if fault != "400:1" or protocol == "http":  # over gRPC that fault is a reset
        assert mend in line
    assert "clients.try_first: false" in line


def test_a_refusal_and_a_closed_port_say_what_helps(with_own_ray: Bench) -> None:
    with NullProcess() as null, Gateway(null.ports["http"], "X-Key", "abcdef", ("/infer",)) as gateway:
        mapping = mapping_for(gateway.port, headers={"X-Key": "abcdef"})
        line = refused(with_own_ray, mapping)
    assert "server_error: 403 \\x1b[31mnot for [left out]" in line
    assert "clients.headers" in line


def test_a_grpc_port_that_nothing_listens_at_is_said(with_own_ray: Bench) -> None:
    with NullProcess() as null:
        mapping = mapping_for(null.ports["http"], protocol="grpc")
        mapping["server"]["grpc_port"] = 9
        line = refused(with_own_ray, mapping)
    assert "connect: Connection refused" in line
    assert "server.grpc_port" in line


def test_a_server_that_fails_at_times_or_rejects_is_loaded_and_the_try_is_in_no_table(alone: Bench) -> None:
    with NullProcess("--service=constant:1ms", "--fault=500:0.4") as null:
        live = alone.start_run(mapping_for(null.ports["http"]), "--json")
        live.end()
    store = alone.store()
    assert set(planned_rows(store)["outcome"]) == {"ok", "server_error"}
    (tried,) = store.manifest.tried
    assert (tried.server, tried.model, tried.rows, tried.outcome) == ("server-0", "linear_head", 1, "ok")


def test_a_load_that_fails_entirely_says_why_meanwhile_and_stops_where_asked(alone: Bench) -> None:
    with NullProcess("--fault=400:1") as null:
        mapping = mapping_for(null.ports["http"], try_first=False)
        mapping["phases"][1] |= {"duration": "40s", "arrivals": {"kind": "poisson", "rate": "50/s"}}
        mapping["stop_when_failing"] = "8s"
        live = alone.start_run(mapping, "--json")
        assert live.end() in (3, 99), live.lines
    said = "\n".join(live.lines)
    assert "s failed (" in said
    assert "most with: 400 " in said
    assert " failed, most: 400 " in said
    assert "the load stops, as stop_when_failing says" in said
    outcomes = planned_rows(alone.store())["outcome"]
    assert outcomes.count("unsent") > len(outcomes) / 4
    assert any("stop_when_failing" in note for note in alone.store().manifest.notes)


def test_of_a_server_that_squall_starts_the_first_request_is_tried_before_the_phases(alone: Bench) -> None:
    mapping = scenario_mapping()
    mapping["clients"]["try_first"] = True
    live = alone.start_run(mapping, "--json")
    assert live.end() in (0, 3), live.lines
    store = alone.store()
    (tried,) = store.manifest.tried
    assert (tried.model, tried.rows, tried.outcome) == ("seqlen_head", 1, "ok")
    n_ok = planned_rows(store)["outcome"].count("ok")
    summary = json.loads(alone.stdout())
    assert summary["run"]
    counted = store.read("triton_samples").column("request_count").to_pylist()
    assert sum(counted) == n_ok
    ids = {one for ones in store.read("batches").column("request_ids").to_pylist() for one in ones}
    assert max(ids) < 10**11
