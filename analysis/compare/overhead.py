"""What profiling changed: runs of the same scenario and seed with and without profilers, compared pair by pair.

A pair is whole when both of its runs ended VALID and were made of the same scenario but for `profile`. Only whole
pairs count; what is left out is said. See `squall.analysis.statistics.paired` for the interval,
`squall.analysis.verdict.run_figures` for the figures, `squall.analysis.verdict.overhead_file` for what it is kept in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from squall.analysis.statistics.paired import LEAST_PAIRS, paired_ratio
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import measure_spans
from squall.analysis.verdict.overhead_file import Change, Overhead, PairRun, RunEntry
from squall.analysis.verdict.run_figures import LATENCIES, METRICS, Reading, RunFigures, run_figures
from squall.analysis.wording import share_text
from squall.scenarios.errors import AnalysisError, SquallError
from squall.scenarios.records import Frozen

SWITCHED = ("nsys", "nvml", "gpm", "triton_trace", "threads")
"""Collectors that are off in a bare run."""
_LATE_RATIO = 0.01
LABELS = {
    "p50_ns": "p50", "p95_ns": "p95", "p99_ns": "p99", "throughput_hz": "throughput",
    "client_cpu_per_request_ns": "client CPU per request", "server_cpu_per_request_ns": "server CPU per request",
}  # fmt: skip


class _Judged(Frozen):
    """A run with its manifest, which is empty where it cannot be read."""

    entry: RunEntry
    manifest: Manifest
    latency_name: str | None = None

    @property
    def scenario(self) -> dict[str, Any]:
        """What the runs of all pairs must share."""
        return {key: value for key, value in (self.manifest.scenario or {}).items() if key != "profile"}

    def reading(self, phase: str, metric: str) -> Reading:
        """A figure of a run that has figures; `phase`: of a measured phase, or pooled."""
        assert self.entry.figures is not None
        return self.entry.figures[phase][metric]


_Pairs = Sequence[tuple[_Judged, _Judged]]
"""(profiled, bare) of each whole pair."""


def evaluate(folder: Path, plans: Sequence[PairRun], n_pairs_planned: int) -> Overhead:
    """What the runs tell of the cost of profiling.

    `plans` are the runs that were begun, in that order; their directories lie in `folder`. Never raises for a run that
    is missing, damaged, aborted or invalid.
    """
    judged = [_judge(folder, plan) for plan in plans]
    pairs, left_out = _whole_pairs(judged)
    latency_name, phases = None, list[str]()
    if pairs:
        latency_name, figures = pairs[0][0].latency_name, pairs[0][0].entry.figures or {}
        phases = [name for name in figures if name != "pooled"]
    changes = {
        phase: {metric: _change(pairs, phase, metric) for metric in METRICS} for phase in ("pooled", *phases)
    }
    pooled = changes.pop("pooled")
    sentences = {metric: _sentence(metric, change, latency_name) for metric, change in pooled.items()}
    return Overhead(
        n_pairs_planned=n_pairs_planned,
        n_pairs=len(pairs),
        is_complete=len(pairs) == n_pairs_planned,
        latency_name=latency_name,
        runs=tuple(one.entry for one in judged),
        left_out=tuple(left_out),
        notes=tuple(_notes(judged, pairs, left_out)),
        pooled=pooled,
        by_phase=changes,
        sentences=tuple(sentences.values()),
        verdict=sentences["p99_ns"],
    )


def _judge(folder: Path, plan: PairRun) -> _Judged:
    found: RunFigures | None = None
    manifest, reason = Manifest(), f"made no run: {plan.error}"
    if plan.run:
        try:
            store = RunStore.open(folder / plan.run)
            verdict = store.manifest.verdict or Verdict(status="not sealed")
            reason = ": ".join([f"is {verdict.status}", *filter(None, [*verdict.reasons, plan.error][:1])])
            if verdict.status == "VALID":
                found = run_figures(store)
                # nsys was to record, and missed a phase
                phases = store.manifest.profiled_phases if plan.is_profiled else {}
                missed = {name: one.reason for name, one in phases.items() if not one.is_profiled}
                reason = "; ".join(f"phase {name} was not profiled: {why}" for name, why in missed.items())
            manifest = store.manifest
        except (SquallError, OSError, KeyError, ValueError) as error:
            reason = f"cannot be read: {error}"
    entry = RunEntry(
        **vars(plan),
        status=manifest.verdict.status if manifest.verdict is not None else None,
        reason=reason,
        collectors_on=tuple(sorted(name for name, one in manifest.collectors.items() if one.status == "on")),
        figures=None if found is None else {"pooled": found.pooled, **found.by_phase},
    )
    return _Judged(entry, manifest, found.latency_name if found is not None else None)


def _whole_pairs(judged: Sequence[_Judged]) -> tuple[_Pairs, list[str]]:
    """The whole pairs, and a line on each that is left out."""
    pairs, left_out = [], []
    reference = next((one.scenario for one in judged if one.entry.figures is not None), None)
    for number in sorted({one.entry.pair for one in judged}):
        own = [one for one in judged if one.entry.pair == number]
        reasons = [f"{one.entry.called} {one.entry.reason}" for one in own if one.entry.reason]
        reasons += [
            f"{one.entry.called} is of another scenario"
            for one in own
            if one.entry.figures is not None and one.scenario != reference
        ]
        if len(own) < 2:
            reasons.append("it has one run only")
        if reasons:
            left_out.append(f"pair {number + 1}: {'; '.join(reasons)}")
        else:
            profiled, bare = sorted(own, key=lambda one: not one.entry.is_profiled)
            pairs.append((profiled, bare))
    return pairs, left_out


def _change(pairs: _Pairs, phase: str, metric: str) -> Change:
    """profiled / bare with its interval, or why it is not assessed.

    A run that lacks the figure makes the metric not assessed, rather than costing that pair: a quantile is infinite in
    the slowest runs, and without those the rest would look better than it is.
    """
    readings = [(one, one.reading(phase, metric)) for pair in pairs for one in pair]
    values = [reading.value for _, reading in readings]
    head = len(pairs), tuple(values[::2]), tuple(values[1::2])
    for one, reading in readings:
        if reading.value is None:
            what, run = "infinite" if reading.is_infinite else "absent", one.entry
            reason = f"{what} in {run.run or f'#{run.position + 1}'}: {reading.reason}"
            return Change(*head, None, None, None, None, reason)
    known = [value or 0.0 for value in values]
    try:
        found = paired_ratio(known[::2], known[1::2])
    except AnalysisError as error:
        return Change(*head, None, None, None, None, str(error))
    return Change(*head, found.ratio, found.low, found.high, found.is_distinguishable, "")


def _notes(judged: Sequence[_Judged], pairs: _Pairs, left_out: Sequence[str]) -> Iterator[str]:
    """What a reader of the intervals must know beside them: of each run that counts and whose server failed more than
    is expected, of collectors, of pairs that do not count."""
    for one in judged:
        verdict = one.manifest.verdict
        if not one.entry.reason and verdict and verdict.failures and verdict.failures.is_beyond:
            yield f"{one.entry.called}: {verdict.failures.sentence.rstrip('.')}"
    if pairs:
        profiled, bare = (
            set.intersection(*(set(one.entry.collectors_on) for one in side))
            for side in zip(*pairs, strict=True)
        )
        both = ", ".join(sorted(profiled & bare)) or "none"
        only = ", ".join(sorted(profiled - bare)) or "thread samples alone"
        yield f"on in both: {both}; only in the profiled runs: {only}"
        first = pairs[0][0].manifest
        wanted = (first.scenario or {}).get("profile", {})
        for name, state in first.collectors.items():
            if name in SWITCHED and state.status == "missing" and wanted.get(name) != "off":
                yield (
                    f"{name} was not on in the profiled runs: {state.reason}; its cost is not in these figures"
                )
    for one, _ in pairs:  # phases whose beginning nsys missed hold less of its cost than they should
        for span in measure_spans(one.manifest):
            seen, length_ns = one.manifest.profiled_phases.get(span.name), span.end_ns - span.start_ns
            late_ns = seen.profiled_after_ns or 0 if seen is not None else 0
            if late_ns > _LATE_RATIO * length_ns:
                yield (
                    f"{one.entry.run}: nsys missed the first {share_text(late_ns / length_ns)} of phase {span.name};"
                    " a longer phase before it helps"
                )
    if left_out:
        yield "pairs are left out: if profiling is what made their runs invalid, it costs more than this"
    if len(pairs) % 2 and len(pairs) >= LEAST_PAIRS:
        yield (
            f"over {len(pairs)} pairs, an odd number, a steady drift of the machine does not cancel; the interval"
            " holds it"
        )


def _sentence(metric: str, change: Change, latency_name: str | None) -> str:
    """One claim with its interval: what a reader may repeat."""
    what = LABELS[metric]
    if metric in LATENCIES:
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
