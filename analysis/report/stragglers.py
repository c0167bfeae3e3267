"""Servers that answer more slowly than the others of their run, and what of them is otherwise than of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pyarrow as pa

from squall.analysis.metrics.measures import NO_CLOCK_LIMIT
from squall.analysis.report.sampled import HostFigures
from squall.analysis.requests.by_server import QUANTILES, ServerLoad, ServersFigures, served_models
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import over
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


_CLOCKS = f"""
-- of GPUs: mean SM clock, and share of samples with a reason that holds clocks back
SELECT avg(sm_clock_hz),
    count(*) FILTER (throttle_reasons & ~{NO_CLOCK_LIMIT} <> 0) / nullif(count(throttle_reasons), 0)
FROM samples WHERE list_contains($gpus, gpu_uuid)
"""


@dataclass(frozen=True)
class Straggler:
    """`p95_ratio`: its p95 over the median of the others', None where it has none for its failures. `reasons`: how it
    differs from the others, most direct first; empty: nothing that was recorded tells it apart."""

    server: str
    p95_ratio: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Difference:
    """How a server may be otherwise than the others by a figure of `_figures`: it against the median of theirs.

    `unknown`: what stands for theirs where none of them has it; None: nothing is told then. `words` have places for
    it (`own`), for theirs (`rest`), which follows a comma, and for the `ratio` of both.
    """

    figure: str
    is_beyond: Callable[[float, float], bool]
    words: str
    unknown: float | None = None
    shown: Callable[[float], str] = share_text


def _clock_text(hz: float) -> str:
    return f"{hz / 1e6:,.0f} MHz"


_OF_LOAD_AND_GPUS = (
    _Difference(
        "failed_ratio",
        lambda own, rest: own > rest,
        "{own} of its requests did not end ok, of the others' {rest}",
    ),
    _Difference(
        "planned_ratio",
        lambda own, rest: own > LOAD_BEYOND * rest,
        "it was sent {own} of the requests, the others {rest}",
    ),
    _Difference(
        "foreign_ratio",
        lambda own, rest: own > rest + FOREIGN_BEYOND,
        "other processes had {own} of its GPU's time, of the others' {rest}",
        unknown=0.0,
    ),
    _Difference(
        "clock_hz",
        lambda own, rest: own < CLOCK_BELOW * rest,
        "its GPU ran at {own}, the others' at {rest}",
        shown=_clock_text,
    ),
    _Difference(
        "throttled_ratio",
        lambda own, rest: own > rest + THROTTLED_BEYOND,
        "its GPU was held back in {own} of its samples, the others' in {rest}",
        unknown=0.0,
    ),
    _Difference(
        "pcie",
        lambda own, rest: own < rest,
        "the PCIe link of its GPU carries {ratio} times what the others' do",
    ),
)
_OF_HOST = _Difference(
    "busy_ratio",
    lambda own, rest: own > rest + BUSY_BEYOND,
    "the CPU of its node was {own} busy, of the others' {rest}",
)


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
    if figures is None or len(set(served_models(list(figures.servers), manifest).values())) > 1:
        return ()
    of_server = {
        name: _figures(name, load, samples, shares, hosts or {}, manifest)
        for name, load in figures.servers.items()
    }
    found = []
    for name, load in figures.servers.items():
        slower = _beyond(load, [other for server, other in figures.servers.items() if server != name])
        if slower is not None:
            others = [own for server, own in of_server.items() if server != name]
            found.append(Straggler(name, slower or None, tuple(_reasons(of_server[name], others))))
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
        is_beyond = (load.least_p95_ratio or 0.0) > P95_BEYOND
    else:
        is_beyond = own.low_ns > max(P95_BEYOND * median(values), median(highs))
    return own.value_ns / median(values) if is_beyond else None


def _figures(
    server: str,
    load: ServerLoad,
    samples: pa.Table | None,
    shares: Sequence[GpuShares],
    hosts: Mapping[str, HostFigures],
    manifest: Manifest,
) -> dict[str, Any]:
    """What servers are told apart by, of one of them; None where it is not known. Of its GPUs: the largest share of the
    time of one that other processes had, mean SM clock, share of samples held back, slowest PCIe link, NUMA nodes."""
    facts = manifest.servers.get(server)
    node = manifest.nodes.get(facts.node) if facts is not None else None
    host = hosts.get(facts.node) if facts is not None else None
    of_node = {one.uuid: one for one in node.gpu_places} if node is not None else {}
    uuids = list(facts.gpus if facts is not None and facts.gpus else of_node)
    places = [of_node[one] for one in uuids if one in of_node]
    links = [rate for one in places if (rate := _pcie(one)) is not None]
    foreign = [one.foreign_ratio for one in shares if server in one.servers and one.foreign_ratio is not None]
    clock_hz = throttled_ratio = None
    if samples is not None:
        with over({"samples": samples}) as connection:
            ((clock_hz, throttled_ratio),) = connection.execute(_CLOCKS, {"gpus": uuids}).fetchall()
    return {
        "failed_ratio": load.n_failed / load.n if load.n else 0.0,
        "planned_ratio": load.planned_ratio or 0.0,
        "foreign_ratio": max(foreign, default=None),
        "clock_hz": clock_hz,
        "throttled_ratio": throttled_ratio,
        "pcie": min(links, default=None),
        "numa_nodes": {one.numa_node for one in places if one.numa_node is not None},
        "busy_ratio": host.cpu_busy_mean if host is not None else None,
    }


def _pcie(place: GpuPlace) -> int | None:
    if place.pcie_generation is None or place.pcie_lanes is None:
        return None
    return _LANE_RATES.get(place.pcie_generation, 0) * place.pcie_lanes or None


def _reasons(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What of a server is otherwise than of the others, most direct first."""
    for one in _OF_LOAD_AND_GPUS:
        yield from _told(one, own, others)
    nodes, rest = own["numa_nodes"], [one["numa_nodes"] for one in others]
    if nodes and all(rest) and nodes not in rest:
        yield f"its GPU is on NUMA node {', '.join(map(str, sorted(nodes)))}, the others' are not"
    yield from _told(_OF_HOST, own, others)


def _told(one: _Difference, own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    value = own[one.figure]
    known = [other[one.figure] for other in others if other[one.figure] is not None]
    rest = median(known) if known else one.unknown
    if value is not None and rest is not None and one.is_beyond(value, rest):
        words = one.words if known else one.words.partition(",")[0]
        ratio = digits_text(value / rest, 2) if rest else ""
        yield words.format(own=one.shown(value), rest=one.shown(rest), ratio=ratio)
