"""Several models under load: what each got of it, how it answered, and what is known of its own batches.

    asked      the share of the arrivals that the scenario asks of a model
    planned    its share of the plan; of a closed loop, of what was issued

A request asks one model, its `request_kind`. Quantiles are of the raw rows of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.join.counts import Accounting, JoinCounts, join_figures
from squall.analysis.requests.load_share import load_share
from squall.analysis.requests.requests import model_names, rows_in
from squall.analysis.verdict.measured import (
    RunTables,
    batch_figures,
    latency_figures,
    outcome_figures,
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
    asked = _asked_ratios(names, tables.manifest.stated_models)
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
        )
    return found


def rows_of_model(table: pa.Table | None, name: str) -> pa.Table | None:
    """The rows of a model; None where there are none, as it has no such record."""
    if table is None:
        return None
    own = table.filter(pc.equal(table.column("model").cast(pa.string()), name))
    return own if own.num_rows else None


def _asked_ratios(names: Sequence[str], stated: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """By model the share that the scenario asks of it; None where it does not say it of each."""
    shares = {name: stated.get(name, {}).get("share") for name in names}
    known = {name: float(share) for name, share in shares.items() if isinstance(share, int | float)}
    whole = sum(known.values())
    is_told = len(known) == len(names) and whole > 0
    return {name: known[name] / whole if is_told else None for name in names}


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
