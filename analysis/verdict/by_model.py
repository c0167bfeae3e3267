"""Several models under load: what each got of it, how it answered, and what is known of its own batches.

    asked      the share of the arrivals that the scenario asks of a model
    planned    its share of the plan; of a closed loop, of what was issued

A request asks one model, its `request_kind`. Quantiles are of the raw rows of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from squall.analysis.join.counts import Accounting, JoinCounts
from squall.analysis.requests.load_share import load_share
from squall.analysis.requests.requests import Requests
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.timeline import RunPhase
from squall.analysis.verdict.measured import RunTables, answer_figures
from squall.analysis.verdict.phase_figures import ModelLoad
from squall.scenarios.units import NS_PER_S


def by_model(
    names: Sequence[str],
    measured: RunTables,
    spans: Sequence[RunPhase],
    accounts: Mapping[str, Accounting | None],
) -> dict[str, ModelLoad] | None:
    """The models of a run, `names`, over its tables of the phases `spans`; None of a run of one model. `accounts`:
    where the time of each model's requests went."""
    if len(names) < 2:
        return None
    asked = _asked_ratios(names, measured.requests, measured.manifest)
    length_ns = sum(span.end_ns - span.start_ns for span in spans)
    found = {}
    for name in names:
        own = measured.of_model(name)
        requests, counts = own.requests, own.joined
        found[name] = ModelLoad(
            **vars(load_share(requests, measured.requests, asked[name])),
            **answer_figures(own, spans, accounts.get(name)),
            servers=tuple(sorted(requests.target.counts())),
            throughput_hz=_rate(int(requests.is_ok.sum()), length_ns),
            rows_hz=_rate(int(requests.rows[requests.is_ok].sum(dtype="int64")), length_ns),
            join_levels=None if counts is None else _levels(counts, [span.name for span in spans]),
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


def _levels(counts: Mapping[str, Sequence[JoinCounts]], phases: Sequence[str]) -> dict[str, int]:
    levels: Counter[str] = Counter()
    for phase in phases:
        for one in counts.get(phase, ()):
            levels.update(one.n_ok_by_level)
    return dict(levels)


def _rate(n: int, length_ns: int) -> float | None:
    return n * NS_PER_S / length_ns if length_ns else None
