"""Servers that are slower than the others, and why, from figures that are written down here."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from squall.analysis.requests.by_server import QUANTILES, ServerLoad, ServersFigures
from squall.analysis.statistics.latency import Quantile
from squall.analysis.summary.sampled import HostFigures
from squall.analysis.summary.stragglers import Straggler, stragglers
from squall.analysis.tables.deployed import NodeFacts, ServerFacts
from squall.analysis.tables.manifest import Manifest
from squall.analysis.verdict.gpu_shares import GpuShares
from squall.scenarios.records import GpuPlace

MS = 1_000_000
IDLE, HELD_BACK = 0x1, 0x4


def quantile(q: float, value_ms: float | None, width_ms: float = 1.0) -> Quantile:
    if value_ms is None:
        return Quantile(q, 1_000, 100, 1_000, None, None, None, is_infinite=True)
    value, width = round(value_ms * MS), round(width_ms * MS)
    return Quantile(q, 1_000, 0, 1_000, value, value - width, value + width)


def load(p95_ms: float | None, n_failed: int = 0, planned: float = 0.5, width_ms: float = 1.0) -> ServerLoad:
    quantiles = tuple(quantile(q, p95_ms, width_ms) for q in QUANTILES)
    return ServerLoad(1_000, planned, 1_000, planned, n_failed, {}, 0.5, 0.5, 1.0, quantiles)


def servers(*loads: ServerLoad) -> ServersFigures:
    return ServersFigures({f"server-{at}": one for at, one in enumerate(loads)}, None)


def manifest(*places: GpuPlace, nodes: int = 1) -> Manifest:
    return Manifest(
        nodes={f"node-{at}": NodeFacts(gpu_places=places) for at in range(nodes)},
        servers={
            f"server-{at}": ServerFacts(node=f"node-{at % nodes}", gpus=(one.uuid,))
            for at, one in enumerate(places)
        },
    )


def samples(**gpus: tuple[float, int]) -> pa.Table:
    """Of each GPU 10 with that clock in MHz and those reasons."""
    rows: list[dict[str, Any]] = [
        {"gpu_uuid": uuid, "sm_clock_hz": mhz * 1e6, "throttle_reasons": reasons}
        for uuid, (mhz, reasons) in gpus.items()
        for _ in range(10)
    ]
    return pa.Table.from_pylist(rows)


ALIKE = tuple(GpuPlace(uuid=one, pcie_generation=5, pcie_lanes=16, numa_node=0) for one in "ab")


def reasons_of(
    places: tuple[GpuPlace, ...] = ALIKE,
    table: pa.Table | None = None,
    shares: tuple[GpuShares, ...] = (),
    **named: Any,
) -> tuple[str, ...]:
    """Of the second of two servers, which is twice as slow as the first."""
    figures = servers(load(10), load(20, **named))
    (found,) = stragglers(figures, table, shares, None, manifest(*places))
    assert found.server == "server-1"
    assert found.p95_ratio == pytest.approx(2.0)
    return found.reasons


def test_one_server_and_servers_that_are_alike_have_none() -> None:
    assert stragglers(None, None, (), None, manifest()) == ()
    assert stragglers(servers(load(10), load(10.9)), None, (), None, manifest(*ALIKE)) == ()


def test_what_may_be_chance_is_none() -> None:
    assert stragglers(servers(load(10), load(14, width_ms=3.5)), None, (), None, manifest(*ALIKE)) == ()
    assert stragglers(servers(load(10, width_ms=5), load(14)), None, (), None, manifest(*ALIKE)) == ()


def test_a_clock_that_is_held_back() -> None:
    clock, held = reasons_of(table=samples(a=(1_980, IDLE), b=(1_400, HELD_BACK)))
    assert clock == "its GPU ran at 1,400 MHz, the others' at 1,980 MHz"
    assert held == "its GPU was held back in 100 % of its samples, the others' in 0 %"


def test_another_process_on_its_gpu_comes_before_the_clock_that_it_holds_down() -> None:
    shares = tuple(
        GpuShares("node-0", "load", uuid, (f"server-{at}",), 15, foreign_ratio=ratio)
        for at, (uuid, ratio) in enumerate([("a", 0.0), ("b", 0.845)])
    )
    told = reasons_of(table=samples(a=(1_980, IDLE), b=(1_556, HELD_BACK)), shares=shares)
    assert told[0] == "other processes had 84.5 % of its GPU's time, of the others' 0 %"
    assert len(told) == 3


def test_a_narrow_link_and_another_numa_node() -> None:
    narrow = GpuPlace(uuid="b", pcie_generation=4, pcie_lanes=8, numa_node=1)
    assert reasons_of((ALIKE[0], narrow)) == (
        "the PCIe link of its GPU carries 0.25 times what the others' do",
        "its GPU is on NUMA node 1, the others' are not",
    )


def test_more_load_and_failures() -> None:
    told = reasons_of(n_failed=100, planned=0.75)
    assert told == (
        "10.0 % of its requests did not end ok, of the others' 0 %",
        "it was sent 75.0 % of the requests, the others 50.0 %",
    )


def test_a_busy_node() -> None:
    def host(busy: float) -> HostFigures:
        return HostFigures(10, 4, busy, busy, 0.0, 0.0, 1.0, 1.0, 0)

    hosts = {"node-0": host(0.3), "node-1": host(0.9)}
    (found,) = stragglers(servers(load(10), load(20)), None, (), hosts, manifest(*ALIKE, nodes=2))
    assert found.reasons == ("the CPU of its node was 90.0 % busy, of the others' 30.0 %",)


def test_nothing_tells_it_apart() -> None:
    assert reasons_of(table=samples(a=(1_980, IDLE), b=(1_975, IDLE))) == ()


def test_a_p95_that_falls_on_failures() -> None:
    (found,) = stragglers(servers(load(10), load(None, n_failed=100)), None, (), None, manifest(*ALIKE))
    assert found == Straggler(
        "server-1", None, ("10.0 % of its requests did not end ok, of the others' 0 %",)
    )
    assert stragglers(servers(load(None), load(None)), None, (), None, manifest(*ALIKE)) == ()
