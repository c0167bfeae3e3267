"""What profiling changed: runs of the same scenario and seed with and without profilers, compared pair by pair.

A pair is whole when both of its runs ended VALID and were made of the same scenario but for `profile`. Only whole
pairs count; what is left out is said. See `squall.analysis.statistics.paired` for the interval,
`squall.analysis.verdict.run_figures` for the figures, `squall.analysis.verdict.overhead_file` for what it is kept in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squall.analysis.statistics.paired import LEAST_PAIRS, paired_ratio
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.overhead_file import Change, Changes, Overhead, PairRun, RunEntry
from squall.analysis.verdict.run_figures import METRICS, Reading, RunFigures, run_figures
from squall.analysis.wording import share_text
from squall.scenarios.errors import AnalysisError, SquallError

SWITCHED = ("nsys", "nvml", "gpm", "triton_trace", "threads")
"""Collectors that are off in a bare run."""
_LATE_RATIO = 0.01
LABELS = {
    "p50_ns": "p50", "p95_ns": "p95", "p99_ns": "p99", "throughput_hz": "throughput",
    "client_cpu_per_request_ns": "client CPU per request", "server_cpu_per_request_ns": "server CPU per request",
}  # fmt: skip


@dataclass(frozen=True)
class _Judged:
    """A run with its manifest, which is empty where it cannot be read."""

    entry: RunEntry
    manifest: Manifest
    latency_name: str | None = None


def evaluate(folder: Path, plans: Sequence[PairRun], n_pairs_planned: int) -> Overhead:
    """What the runs tell of the cost of profiling.

    `plans` are the runs that were begun, in that order; their directories lie in `folder`. Never raises for a run that
    is missing, damaged, aborted or invalid.
    """
    judged = [_judge(folder, plan) for plan in plans]
    pairs, left_out = _whole_pairs(judged)
    latency_name = pairs[0][0].latency_name if pairs else None
    pooled = _changes(pairs, "pooled")
    sentences = [_sentence(metric, change, latency_name) for metric, change in pooled.items()]
    return Overhead(
        n_pairs_planned=n_pairs_planned,
        n_pairs=len(pairs),
        is_complete=len(pairs) == n_pairs_planned,
        latency_name=latency_name,
        runs=tuple(one.entry for one in judged),
        left_out=tuple(left_out),
        notes=(*_failed_notes(judged), *_notes(pairs, left_out)),
        pooled=pooled,
        by_phase={phase: _changes(pairs, phase) for phase in _phases(pairs)},
        sentences=tuple(sentences),
        verdict=sentences[METRICS.index("p99_ns")],
    )


def _judge(folder: Path, plan: PairRun) -> _Judged:
    found: RunFigures | None = None
    manifest, reason = Manifest(), f"made no run: {plan.error}"
    if plan.run:
        try:
            store = RunStore.open(folder / plan.run)
            verdict = store.manifest.verdict or Verdict(status="not sealed")
            why = "; ".join(verdict.reasons[:1]) or plan.error
            reason = f"is {verdict.status}{f': {why}' if why else ''}"
            if verdict.status == "VALID":
                found, reason = run_figures(store), _not_profiled(plan, store.manifest)
            manifest = store.manifest
        except (SquallError, OSError, KeyError, ValueError) as error:
            reason = f"cannot be read: {error}"
    on = tuple(sorted(name for name, state in manifest.collectors.items() if state.status == "on"))
    entry = RunEntry(
        **vars(plan),
        status=manifest.verdict.status if manifest.verdict is not None else None,
        reason=reason,
        collectors_on=on,
        figures=None if found is None else {"pooled": found.pooled, **found.by_phase},
    )
    return _Judged(entry, manifest, found.latency_name if found is not None else None)


def _not_profiled(plan: PairRun, manifest: Manifest) -> str:
    """Why a profiled run is none: nsys was to record, and missed a phase."""
    phases = manifest.profiled_phases if plan.is_profiled else {}
    missed = {name: one for name, one in phases.items() if not one.is_profiled}
    return "; ".join(f"phase {name} was not profiled: {one.reason}" for name, one in missed.items())


def _failed_notes(judged: Sequence[_Judged]) -> list[str]:
    """Of each run that counts and whose server failed more than is expected: its figures are not to be read without."""
    verdicts = [(one.entry, one.manifest.verdict) for one in judged if not one.entry.reason]
    return [
        f"{one.called}: {verdict.failures.sentence.rstrip('.')}"
        for one, verdict in verdicts
        if verdict is not None and verdict.failures is not None and verdict.failures.is_beyond
    ]


def _whole_pairs(judged: Sequence[_Judged]) -> tuple[list[tuple[_Judged, _Judged]], list[str]]:
    """(profiled, bare) of each whole pair, and a line on each pair left out."""
    pairs, left_out = [], []
    reference = next((_scenario(one) for one in judged if one.entry.figures is not None), None)
    for number in sorted({one.entry.pair for one in judged}):
        own = [one for one in judged if one.entry.pair == number]
        reasons = [f"{one.entry.called} {one.entry.reason}" for one in own if one.entry.reason]
        reasons += [
            f"{one.entry.called} is of another scenario"
            for one in own
            if one.entry.figures is not None and _scenario(one) != reference
        ]
        if len(own) < 2:
            reasons.append("it has one run only")
        if reasons:
            left_out.append(f"pair {number + 1}: {'; '.join(reasons)}")
            continue
        profiled, bare = sorted(own, key=lambda one: not one.entry.is_profiled)
        pairs.append((profiled, bare))
    return pairs, left_out


def _scenario(one: _Judged) -> dict[str, Any]:
    """What the runs of all pairs must share."""
    scenario = one.manifest.scenario or {}
    return {key: value for key, value in scenario.items() if key != "profile"}


def _phases(pairs: Sequence[tuple[_Judged, _Judged]]) -> list[str]:
    figures = (pairs[0][0].entry.figures if pairs else None) or {}
    return [name for name in figures if name != "pooled"]


def _changes(pairs: Sequence[tuple[_Judged, _Judged]], phase: str) -> Changes:
    """The change of every metric in a phase, or pooled."""
    both = [(profiled.entry, bare.entry) for profiled, bare in pairs]
    return {metric: _change(both, phase, metric) for metric in METRICS}


def _reading(one: RunEntry, phase: str, metric: str) -> Reading:
    assert one.figures is not None
    return one.figures[phase][metric]


def _change(pairs: Sequence[tuple[RunEntry, RunEntry]], phase: str, metric: str) -> Change:
    """profiled / bare with its interval, or why it is not assessed."""
    profiled, bare = ([_reading(pair[side], phase, metric).value for pair in pairs] for side in (0, 1))
    n, figures = len(pairs), (tuple(profiled), tuple(bare))
    reason = _lacking([(one, _reading(one, phase, metric)) for pair in pairs for one in pair])
    try:
        if not reason:
            found = paired_ratio([one or 0.0 for one in profiled], [one or 0.0 for one in bare])
            return Change(n, *figures, found.ratio, found.low, found.high, found.is_distinguishable, "")
    except AnalysisError as error:
        reason = str(error)
    return Change(n, *figures, None, None, None, None, reason)


def _lacking(readings: Sequence[tuple[RunEntry, Reading]]) -> str:
    """The first run that lacks the figure, and why; empty where all have it.

    It makes the metric not assessed, rather than costing that pair: a quantile is infinite in the slowest runs, and
    without those the rest would look better than it is.
    """
    for one, reading in readings:
        if reading.value is None:
            what = "infinite" if reading.is_infinite else "absent"
            return f"{what} in {one.run or f'#{one.position + 1}'}: {reading.reason}"
    return ""


def _notes(pairs: Sequence[tuple[_Judged, _Judged]], left_out: Sequence[str]) -> list[str]:
    """What a reader of the intervals must know beside them."""
    notes = []
    if pairs:
        profiled, bare = (
            set.intersection(*(set(pair[side].entry.collectors_on) for pair in pairs)) for side in (0, 1)
        )
        both = ", ".join(sorted(profiled & bare)) or "none"
        only = ", ".join(sorted(profiled - bare)) or "thread samples alone"
        notes.append(f"on in both: {both}; only in the profiled runs: {only}")
        wanted = (pairs[0][0].manifest.scenario or {}).get("profile", {})
        notes += [
            f"{name} was not on in the profiled runs: {state.reason}; its cost is not in these figures"
            for name, state in pairs[0][0].manifest.collectors.items()
            if name in SWITCHED and state.status == "missing" and wanted.get(name) != "off"
        ]
    notes += [line for profiled, _ in pairs for line in _late(profiled)]
    if left_out:
        notes.append(
            "pairs are left out: if profiling is what made their runs invalid, it costs more than this"
        )
    if len(pairs) % 2 and len(pairs) >= LEAST_PAIRS:
        notes.append(
            f"over {len(pairs)} pairs, an odd number, a steady drift of the machine does not cancel; "
            "the interval holds it"
        )
    return notes


def _late(one: _Judged) -> list[str]:
    """Phases whose beginning nsys missed: their figures hold less of its cost than they should."""
    lengths_ns = {span.name: span.end_ns - span.start_ns for span in measure_spans(one.manifest)}
    found = []
    for phase, state in one.manifest.profiled_phases.items():
        late_ns = state.profiled_after_ns or 0
        if phase in lengths_ns and late_ns > _LATE_RATIO * lengths_ns[phase]:
            share = share_text(late_ns / lengths_ns[phase])
            found.append(
                f"{one.entry.run}: nsys missed the first {share} of phase {phase}; a longer phase before it helps"
            )
    return found


def _sentence(metric: str, change: Change, latency_name: str | None) -> str:
    """One claim with its interval: what a reader may repeat."""
    what = LABELS[metric]
    if metric in ("p50_ns", "p95_ns", "p99_ns"):
        what += f" of the {latency_name or 'response'} time"
    if change.ratio is None or change.low_ratio is None or change.high_ratio is None:
        return f"{what}: not assessed, {change.reason}"
    low, high = percent(change.low_ratio), percent(change.high_ratio)
    verdict = "distinguishable from none" if change.is_distinguishable else "not distinguishable from none"
    return (
        f"profiling changed {what} by {percent(change.ratio)} % (95 %: {low} to {high} %) over "
        f"{change.n_pairs} pairs; {verdict}"
    )


def percent(ratio: float) -> str:
    """profiled / bare as a signed change in percent, with as many digits as tell it from none: `+3.1`, `-0.04`."""
    change = 100.0 * (ratio - 1.0)
    digits = 1 if abs(change) >= 0.1 else 2
    return f"{change:+.{digits}f}"
