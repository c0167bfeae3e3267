"""What each of several servers got of the load, how much of it each did, and how alike they answered.

    asked      the share that routing asks of a server: by weight, or as much of one as of any other; of several models
               under load the share of each model's requests, among the servers that serve it
    planned    its share of the plan; of a closed loop, and where workers choose, of what was issued
    work       its share of the rows that were answered ok, by all servers together; of the requests where servers serve
               different models, whose rows do not compare

Work over asked is 1 where a server did what was asked of it; below, another did it in its place, or nobody. The order
of servers by p95 is of raw rows of each: no quantile of one is averaged with that of another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from squall.analysis.requests.load_share import LoadShare, load_share
from squall.analysis.requests.requests import Requests, server_names
from squall.analysis.statistics.latency import Quantile, quantiles
from squall.analysis.statistics.stretches import run_lengths
from squall.analysis.statistics.student import student_quantile
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import over
from squall.scenarios.records import Frozen

QUANTILES = (0.50, 0.95, 0.99)
_P95 = QUANTILES.index(0.95)
_N_SECTIONS = 10
_LEAST_OF_SECTION = 40
"""Requests of a server in a section: two are beyond its p95."""


class ServerLoad(LoadShare):
    """A server's part of the requests of some phases: those for it. `work_ratio`: its share of what was answered ok;
    `quantiles`: of its latency, a request that did not end ok counts as infinitely slow. `least_p95_ratio`: see
    `_least_p95_ratios`."""

    work_ratio: float | None
    work_of_asked_ratio: float | None
    quantiles: tuple[Quantile, ...]
    least_p95_ratio: float | None = None


class ServersFigures(Frozen):
    """Several servers by name. `p95_ratio`: the largest p95 over the smallest, None where one has none."""

    servers: Mapping[str, ServerLoad]
    p95_ratio: float | None


def by_server(
    requests: Requests, undisturbed: Requests | None, phases: Sequence[str], manifest: Manifest
) -> ServersFigures | None:
    """The servers of a run over its requests of `phases`; None of a run of one server.

    `undisturbed`: the requests that latencies are of, where these are not all.
    """
    names = server_names(requests, manifest)
    if len(names) < 2:
        return None
    own = requests.in_phases(phases)
    timed = own if undisturbed is None else undisturbed.in_phases(phases)
    asked = asked_ratios(names, manifest, own)
    is_by_rows = len(set(served_models(names, manifest).values())) < 2
    n_done = _done(own, is_by_rows)
    ratios = _least_p95_ratios(timed, names)
    found = {}
    for name in names:
        of_server, at_server = own.at_server(name), timed.at_server(name)
        share = load_share(of_server, own, asked[name])
        work = _done(of_server, is_by_rows) / n_done if n_done else None
        spread = quantiles(
            at_server.latency_ns, QUANTILES, ~at_server.is_ok, run_lengths(at_server.phase.codes)
        )
        found[name] = ServerLoad(
            **vars(share),
            work_ratio=work,
            work_of_asked_ratio=None if work is None or not share.asked_ratio else work / share.asked_ratio,
            quantiles=tuple(spread),
            least_p95_ratio=ratios.get(name),
        )
    p95s = [one.quantiles[_P95].value_ns for one in found.values()]
    known = [one for one in p95s if one is not None]
    is_whole = len(known) == len(p95s) and min(known) > 0
    return ServersFigures(found, max(known) / min(known) if is_whole else None)


def _done(own: Requests, is_by_rows: bool) -> int:
    """Rows, or else requests, that were answered ok."""
    return int(own.rows[own.is_ok].sum(dtype="int64") if is_by_rows else own.is_ok.sum())


_P95_RATIOS = f"""
WITH placed AS (
    SELECT target, latency_ns, ({_N_SECTIONS} * (place + 1) - 1) // count(*) OVER () AS section FROM requests),
sections AS (
    SELECT section, target, count(*) AS n, quantile_disc(latency_ns, 0.95) AS p95_ns
    FROM placed WHERE list_contains($servers, target) GROUP BY section, target),
others AS (
    SELECT one.section, one.target, median(other.p95_ns) AS p95_ns
    FROM sections one JOIN sections other ON one.section = other.section AND one.target <> other.target
    GROUP BY one.section, one.target),
ratios AS (
    SELECT target, ln(greatest(sections.p95_ns, 1) / greatest(others.p95_ns, 1)) AS log_ratio
    FROM sections JOIN others USING (section, target)
    -- no server has too few in any section, or a p95 that falls on a failure
    WHERE (SELECT count(*) = {_N_SECTIONS} * len($servers) AND min(n) >= {_LEAST_OF_SECTION}
        AND min(p95_ns) > 0 AND max(p95_ns) < 'infinity'::DOUBLE FROM sections))
SELECT target, avg(log_ratio), stddev_samp(log_ratio) / sqrt({_N_SECTIONS}) FROM ratios GROUP BY target
"""


def _least_p95_ratios(timed: Requests, names: Sequence[str]) -> dict[str, float]:
    """Of each server the least that its p95 is beyond the median of the others': the lower bound, one-sided at 1 %, of
    the mean log ratio over ten sections of the requests (Student). Empty where a section is too short for one.

    A queue near its limit follows itself through a whole run, which then has no interval of its p95; what the servers
    of one router did in the same section is a pair all the same.
    """
    latency_ns = np.where(timed.is_ok, timed.latency_ns.astype(np.float64), np.inf)
    table = timed.table("target", latency_ns=latency_ns, place=np.arange(len(timed)))
    with over({"requests": table}) as connection:
        found = connection.execute(_P95_RATIOS, {"servers": list(names)}).fetchall()
    n_errors = student_quantile(0.99, _N_SECTIONS - 1)
    return {name: math.exp(mean - n_errors * error) for name, mean, error in found}


def asked_ratios(names: Sequence[str], manifest: Manifest, own: Requests) -> dict[str, float]:
    """By server the share of the load `own` that the scenario's routing asks of it; `names` in the order of its
    entries."""
    weights = _weights(names, manifest.scenario)
    serving = served_models(names, manifest)
    whole = {frozenset(names): 1.0}
    if len(set(serving.values())) > 1 and len(own):
        n_by_model = own.request_kind.counts()
        parts = [
            (frozenset(name for name in names if model in serving[name]) or frozenset(names), n / len(own))
            for model, n in n_by_model.items()
        ]
        whole = {servers: sum(part for one, part in parts if one == servers) for servers, _ in parts}
    return {
        name: sum(
            part * weights[name] / sum(weights[one] for one in servers)
            for servers, part in whole.items()
            if name in servers
        )
        for name in names
    }


def served_models(names: Sequence[str], manifest: Manifest) -> dict[str, frozenset[str]]:
    """By server the models under load that it serves; all there are of one that the manifest does not know."""
    known = {
        name: frozenset(one.model for one in server.models if one.model is not None)
        for name, server in manifest.servers.items()
    }
    every = frozenset[str]().union(*known.values())
    return {name: known.get(name) or every for name in names}


def _weights(names: Sequence[str], scenario: Mapping[str, Any] | None) -> dict[str, float]:
    from squall.scenarios.config.client import WEIGHED

    routing = ((scenario or {}).get("clients") or {}).get("routing") or {}
    entries = (scenario or {}).get("servers")
    weights = [1.0] * len(names)
    if routing.get("kind") in WEIGHED and isinstance(entries, list | tuple) and len(entries) == len(names):
        weights = [float(one.get("weight", 1.0)) for one in entries]
    return dict(zip(names, weights, strict=True))
