"""Servers that are slower than the others, and why, from figures that are written down beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from squall.analysis.report.sampled import HostFigures
from squall.analysis.report.stragglers import Straggler, stragglers
from squall.analysis.requests.by_server import QUANTILES, ServerLoad, ServersFigures
from squall.analysis.statistics.latency import Quantile
from squall.analysis.storage.deployed import NodeFacts, ServerFacts
from squall.analysis.storage.manifest import Manifest
from squall.analysis.verdict.gpu_shares import GpuShares
from squall.scenarios.records import GpuPlace

MS = 1_000_000


def load(p95_ms: float | None, width_ms: float) -> ServerLoad:
    value = (None, None, None)
    if p95_ms is not None:
        value = tuple(round(at * MS) for at in (p95_ms, p95_ms - width_ms, p95_ms + width_ms))  # type: ignore[assignment]
    quantiles = tuple(Quantile(q, 1_000, 0, 1_000, *value, is_infinite=p95_ms is None) for q in QUANTILES)
    return ServerLoad(1_000, 0.5, 1_000, 0.5, 0, {}, 0.5, 0.5, 1.0, quantiles)


@pytest.mark.parametrize(
    "case", yaml.safe_load((Path(__file__).parent / "stragglers.yaml").read_text()), ids=str
)
def test_the_slower_of_two_servers_is_named_with_what_tells_it_apart(case: dict[str, Any]) -> None:
    first, second = (load(*each) for each in zip(case["p95_ms"], case.get("width_ms", [1, 1]), strict=True))
    figures = ServersFigures(
        {"server-0": first, "server-1": replace(second, **case.get("of_second", {}))}, None
    )
    place: dict[str, Any] = {"pcie_generation": 5, "pcie_lanes": 16, "numa_node": 0}
    places = (GpuPlace(uuid="a", **place), GpuPlace(uuid="b", **{**place, **case.get("gpu", {})}))
    servers = {f"server-{at}": ServerFacts(node=f"node-{at}", gpus=(uuid,)) for at, uuid in enumerate("ab")}
    manifest = Manifest(nodes={f"node-{at}": NodeFacts(gpu_places=places) for at in (0, 1)}, servers=servers)
    samples = [
        {"gpu_uuid": uuid, "sm_clock_hz": mhz * 1e6, "throttle_reasons": reasons}
        for uuid, (mhz, reasons) in case.get("samples", {}).items()
        for _ in range(10)
    ]
    shares = tuple(
        GpuShares("node-0", "load", "ab"[at], (f"server-{at}",), 15, foreign_ratio=ratio)
        for at, ratio in enumerate(case.get("foreign", ()))
    )
    hosts = {
        f"node-{at}": HostFigures(10, 4, busy, busy, 0.0, 0.0, 1.0, 1.0, 0)
        for at, busy in enumerate(case.get("busy", ()))
    }
    found = stragglers(figures, pa.Table.from_pylist(samples) if samples else None, shares, hosts, manifest)
    expected = [Straggler("server-1", case["ratio"], tuple(case["reasons"]))] if "reasons" in case else []
    assert [*found] == expected
    assert stragglers(None, None, (), None, manifest) == ()
