"""Several models under load: what each got of it, how it answered, and what is known of its own batches.

    asked      the share of the arrivals that the scenario asks of a model
    planned    its share of the plan; of a closed loop, of what was issued

A request asks one model, its `request_kind`. Quantiles are of the raw rows of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from squall.analysis.join.counts import Accounting, JoinCounts, join_figures
from squall.analysis.requests.load_share import load_share
from squall.analysis.requests.requests import Requests, model_names, rows_in
from squall.analysis.requests.streams import of_requests, stream_figures
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.measured import (
    QUANTILES,
    RunTables,
    batch_figures,
    latency_figures,
    outcome_figures,
    rows_of_model,
    triton_figures,
)
from squall.analysis.verdict.phase_figures import ModelLoad
from squall.scenarios.units import NS_PER_S


def by_model(
    tables: RunTables, spans: Sequence[RunPhase], accounts: Mapping[str, Accounting | None]
) -> dict[str, ModelLoad] | None:
    """The models of a run over its requests of the phases `spans`; None of a run of one model. `accounts`: where the
    time of each model's went."""
    names = model_names(tables.requests, tables.manifest)
    if len(names) < 2:
        return None
    phases = [span.name for span in spans]
    own = tables.requests.in_phases(phases)
    timed = own if tables.undisturbed is None else tables.undisturbed.in_phases(phases)
    batches, samples = rows_in(tables.batches, phases), rows_in(tables.triton_samples, phases)
    asked = _asked_ratios(names, own, tables.manifest)
    length_ns = sum(span.end_ns - span.start_ns for span in spans)
    found = {}
    for name in names:
        requests = own.of_model(name)
        counts = _counts_of(tables.joined, name)
        found[name] = ModelLoad(
            **vars(load_share(requests, own, asked[name])),
            servers=tuple(sorted(requests.target.counts())),
            throughput_hz=_rate(int(requests.is_ok.sum()), length_ns),
            rows_hz=_rate(int(requests.rows[requests.is_ok].sum(dtype="int64")), length_ns),
            latency=latency_figures(timed.of_model(name)),
            outcomes=outcome_figures(requests),
            batches=batch_figures(rows_of_model(batches, name)),
            triton=triton_figures(rows_of_model(samples, name)),
            join=join_figures(counts, phases, accounts.get(name)),
            join_levels=None if counts is None else _levels(counts, phases),
            streams=stream_figures(of_requests(tables.responses, requests), requests, spans, QUANTILES),
        )
    return found


def _asked_ratios(names: Sequence[str], own: Requests, manifest: Manifest) -> dict[str, float | None]:
    """By model the share that the scenario asks, phases weighed by their requests; None where it does not say it."""
    asked = dict.fromkeys(names, 0.0)
    for phase, n in own.phase.counts().items():
        shares = _shares(phase, manifest)
        whole = sum(shares.get(name, 0.0) for name in names)
        if not shares or whole <= 0:
            return dict.fromkeys(names)
        for name in names:
            asked[name] += n / len(own) * shares.get(name, 0.0) / whole
    return {name: asked[name] if len(own) else None for name in names}


def _shares(phase: str, manifest: Manifest) -> dict[str, float]:
    """By model, as the phase states them, else the models; empty where neither does."""
    stated = manifest.stated_models
    for one in (manifest.scenario or {}).get("phases") or ():
        if one.get("name") == phase and one.get("shares"):
            return {str(name): float(share) for name, share in one["shares"].items()}
    if any("share" not in one for one in stated.values()):
        return {}
    return {name: float(one["share"]) for name, one in stated.items()}


def _counts_of(
    joined: Mapping[str, Sequence[JoinCounts]] | None, name: str
) -> dict[str, list[JoinCounts]] | None:
    if joined is None:
        return None
    return {phase: [one for one in counts if one.model == name] for phase, counts in joined.items()}


def _levels(counts: Mapping[str, Sequence[JoinCounts]], phases: Sequence[str]) -> dict[str, int]:
    levels: Counter[str] = Counter()
    for phase in phases:
        for one in counts.get(phase, ()):
            levels.update(one.n_ok_by_level)
    return dict(levels)


def _rate(n: int, length_ns: int) -> float | None:
    return n * NS_PER_S / length_ns if length_ns else None
