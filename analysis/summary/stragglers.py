"""Servers that answer more slowly than the others of their run, and what of them is otherwise than of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.metrics.measures import NO_CLOCK_LIMIT
from squall.analysis.requests.by_server import QUANTILES, ServerLoad, ServersFigures, served_models
from squall.analysis.summary.sampled import HostFigures
from squall.analysis.tables.manifest import Manifest
from squall.analysis.verdict.gpu_shares import GpuShares
from squall.analysis.wording import share_text
from squall.scenarios.records import GpuPlace
from squall.scenarios.units import digits_text

P95_BEYOND = 1.1
"""Times the median p95 of the others, by the lower end of its interval: what is less is no reason to look."""
LOAD_BEYOND = 1.05
CLOCK_BELOW = 0.97
"""Of the others' SM clock: a GPU that is not held back differs by less from its like."""
THROTTLED_BEYOND = 0.05
FOREIGN_BEYOND = 0.05
"""Of the GPU's time, beyond the others'."""
BUSY_BEYOND = 0.2
"""Ratio of the CPU of its node, beyond the others'."""
_P95 = QUANTILES.index(0.95)
_LANE_RATES = {1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 6: 32}
"""Of a PCIe lane, relative to the first generation (PCI Express Base Specification)."""


@dataclass(frozen=True)
class Straggler:
    """`p95_ratio`: its p95 over the median of the others', None where it has none for its failures. `reasons`: how it
    differs from the others, most direct first; empty: nothing that was recorded tells it apart."""

    server: str
    p95_ratio: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Gpus:
    """Of the GPUs of a server: the largest share of the time of one that other processes had, mean SM clock, share of
    samples held back, slowest PCIe link, NUMA nodes."""

    foreign_ratio: float | None
    clock_hz: float | None
    throttled_ratio: float | None
    pcie: int | None
    numa_nodes: tuple[int, ...]


def stragglers(
    figures: ServersFigures | None,
    samples: pa.Table | None,
    shares: Sequence[GpuShares],
    hosts: Mapping[str, HostFigures] | None,
    manifest: Manifest,
) -> tuple[Straggler, ...]:
    """Of a run of several servers those whose p95 is beyond the others', and not by chance: its 95 % interval is above
    theirs, or where there is none it is beyond theirs section by section (`by_server`). `samples`: rows of gpu_samples
    of the measure phases; `shares`: of each GPU in them; `hosts`: by node, of the same.
    """
    if figures is None:
        return ()
    names = list(figures.servers)
    if len(set(served_models(names, manifest).values())) > 1:
        return ()
    gpus = {name: _gpus_of(name, samples, shares, manifest) for name in names}
    found = []
    for name in names:
        others = [one for one in names if one != name]
        own = figures.servers[name]
        slower = _beyond(own, [figures.servers[one] for one in others])
        if slower is None:
            continue
        reasons = [
            *_load_reasons(own, [figures.servers[one] for one in others]),
            *_gpu_reasons(gpus[name], [gpus[one] for one in others]),
            *_host_reasons(name, others, hosts or {}, manifest),
        ]
        found.append(Straggler(name, slower or None, tuple(reasons)))
    return tuple(found)


def _beyond(load: ServerLoad, loads: list[ServerLoad]) -> float | None:
    """Its p95 over the median of the others' where it is beyond them; 0 where it falls on failures, and theirs do not;
    None where it is not beyond."""
    own, others = load.quantiles[_P95], [one.quantiles[_P95] for one in loads]
    values = [one.value_ns for one in others if one.value_ns is not None]
    highs = [one.high_ns for one in others if one.high_ns is not None]
    if own.is_infinite:
        return 0.0 if len(values) == len(others) else None
    if own.value_ns is None or not values:
        return None
    if own.low_ns is None or not highs:
        return own.value_ns / median(values) if (load.least_p95_ratio or 0.0) > P95_BEYOND else None
    return (
        own.value_ns / median(values)
        if own.low_ns > max(P95_BEYOND * median(values), median(highs))
        else None
    )


def _load_reasons(own: ServerLoad, others: list[ServerLoad]) -> list[str]:
    reasons = []
    if own.n_failed and own.n:
        failed, theirs = (
            own.n_failed / own.n,
            median(one.n_failed / one.n if one.n else 0.0 for one in others),
        )
        if failed > theirs:
            reasons.append(
                f"{share_text(failed)} of its requests did not end ok, of the others' {share_text(theirs)}"
            )
    asked = median(one.planned_ratio or 0.0 for one in others)
    if own.planned_ratio is not None and own.planned_ratio > LOAD_BEYOND * asked:
        reasons.append(
            f"it was sent {share_text(own.planned_ratio)} of the requests, the others {share_text(asked)}"
        )
    return reasons


def _gpus_of(server: str, samples: pa.Table | None, shares: Sequence[GpuShares], manifest: Manifest) -> _Gpus:
    facts = manifest.servers.get(server)
    node = manifest.nodes.get(facts.node) if facts is not None else None
    of_node = {one.uuid: one for one in node.gpu_places} if node is not None else {}
    uuids = facts.gpus if facts is not None and facts.gpus else tuple(of_node)
    places = [of_node[one] for one in uuids if one in of_node]
    links = [rate for one in places if (rate := _pcie(one)) is not None]
    clock, throttled = _clock(uuids, samples)
    foreign = [one.foreign_ratio for one in shares if server in one.servers and one.foreign_ratio is not None]
    return _Gpus(
        foreign_ratio=max(foreign, default=None),
        clock_hz=clock,
        throttled_ratio=throttled,
        pcie=min(links, default=None),
        numa_nodes=tuple(sorted({one.numa_node for one in places if one.numa_node is not None})),
    )


def _pcie(place: GpuPlace) -> int | None:
    if place.pcie_generation is None or place.pcie_lanes is None:
        return None
    return _LANE_RATES.get(place.pcie_generation, 0) * place.pcie_lanes or None


def _clock(uuids: Iterable[str], samples: pa.Table | None) -> tuple[float | None, float | None]:
    """Mean SM clock, and share of samples with a reason that holds clocks back."""
    if samples is None:
        return None, None
    wanted = pa.array(list(uuids), pa.string())
    own = samples.filter(pc.is_in(samples.column("gpu_uuid").cast(pa.string()), wanted))
    clocks = np.asarray(own.column("sm_clock_hz").drop_null().to_numpy(), dtype=np.float64)
    bits = np.asarray(own.column("throttle_reasons").drop_null().to_numpy(), dtype=np.int64)
    return (
        float(clocks.mean()) if len(clocks) else None,
        float(((bits & ~NO_CLOCK_LIMIT) != 0).mean()) if len(bits) else None,
    )


def _median(others: list[_Gpus], figure: Callable[[_Gpus], float | None]) -> float | None:
    known = [value for one in others if (value := figure(one)) is not None]
    return median(known) if known else None


def _gpu_reasons(own: _Gpus, others: list[_Gpus]) -> list[str]:
    reasons = []
    foreign = _median(others, lambda one: one.foreign_ratio)
    if own.foreign_ratio is not None and own.foreign_ratio > (foreign or 0.0) + FOREIGN_BEYOND:
        theirs = f", of the others' {share_text(foreign)}" if foreign is not None else ""
        reasons.append(f"other processes had {share_text(own.foreign_ratio)} of its GPU's time{theirs}")
    clock = _median(others, lambda one: one.clock_hz)
    if own.clock_hz is not None and clock is not None and own.clock_hz < CLOCK_BELOW * clock:
        reasons.append(f"its GPU ran at {own.clock_hz / 1e6:,.0f} MHz, the others' at {clock / 1e6:,.0f} MHz")
    throttled = _median(others, lambda one: one.throttled_ratio)
    if own.throttled_ratio is not None and own.throttled_ratio > (throttled or 0.0) + THROTTLED_BEYOND:
        theirs = f", the others' in {share_text(throttled)}" if throttled is not None else ""
        reasons.append(f"its GPU was held back in {share_text(own.throttled_ratio)} of its samples{theirs}")
    link = _median(others, lambda one: one.pcie)
    if own.pcie is not None and link is not None and own.pcie < link:
        reasons.append(
            f"the PCIe link of its GPU carries {digits_text(own.pcie / link, 2)} times what the others' do"
        )
    rest = {one.numa_nodes for one in others}
    if own.numa_nodes and own.numa_nodes not in rest and () not in rest:
        told = ", ".join(map(str, own.numa_nodes))
        reasons.append(f"its GPU is on NUMA node {told}, the others' are not")
    return reasons


def _host_reasons(
    server: str, others: list[str], hosts: Mapping[str, HostFigures], manifest: Manifest
) -> list[str]:
    def busy(name: str) -> float | None:
        facts = manifest.servers.get(name)
        host = hosts.get(facts.node) if facts is not None else None
        return host.cpu_busy_mean if host is not None else None

    own, rest = busy(server), [value for one in others if (value := busy(one)) is not None]
    if own is None or not rest or own <= median(rest) + BUSY_BEYOND:
        return []
    return [f"the CPU of its node was {share_text(own)} busy, of the others' {share_text(median(rest))}"]
