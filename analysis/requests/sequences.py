"""Figures of sequences of requests: how many there were, what cut them, how long they took as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from squall.analysis.arrays import Bools, Int64s
from squall.analysis.clocks.timeline import RunPhase
from squall.analysis.requests.at_once import at_once
from squall.analysis.requests.failures import is_cut
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.statistics.latency import Quantile, quantiles
from squall.analysis.tables.manifest import Manifest
from squall.scenarios.config.client import SequencesConfig
from squall.scenarios.sequences import SequenceRule, Sequences


@dataclass(frozen=True)
class SequenceFigures:
    """Over the sequences whose first request is of some phases and was sent, `n_begun`; what follows may be later.

    `n_ended`: each request ended ok. `n_cut`: one failed, by its outcome in `cut_by`, the first that did. The rest had
    requests left when the load ended. `length_asked`: requests of a sequence as drawn; `length_got`: those that ended
    ok. `durations`: from the scheduled instant of the first request, in a closed loop from its send, to the end of the
    last, of sequences that ended or were cut, which count as infinitely slow. `at_once`: sequences between the send of
    their first request and the end of their last, over the phases.
    """

    n_begun: int
    n_ended: int
    n_cut: int
    cut_by: Mapping[str, int]
    length_asked_mean_count: float
    length_got_mean_count: float
    durations: tuple[Quantile, ...]
    duration_mean_ns: float | None
    at_once_mean_count: float
    at_once_most_count: int


@dataclass(frozen=True, eq=False)
class RunSequences:
    """Each sequence of a run, (n,) each, in the order in which they begin: phase of its first request and whether that
    was sent, its length as drawn, how many of its requests ended ok, and its instants.

    `failed`: outcome of its first request that failed; empty where none did.
    """

    phase: Labels
    has_begun: Bools
    length: Int64s
    n_ok: Int64s
    failed: Labels
    begin_ns: Int64s
    sent_ns: Int64s
    done_ns: Int64s

    def take(self, rows: Int64s) -> RunSequences:
        """Those at the places `rows`."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        taken: dict[str, Any] = {
            name: values.take(rows) if isinstance(values, Labels) else values[rows]
            for name, values in own.items()
        }
        return RunSequences(**taken)


def sequence_figures(
    every: RunSequences | None, spans: Sequence[RunPhase], qs: Sequence[float]
) -> SequenceFigures | None:
    """Of the phases `spans`; None where requests are of no sequences."""
    if every is None:
        return None
    own = every.has_begun & every.phase.is_any_of([span.name for span in spans])
    is_ended = own & (every.n_ok == every.length)
    is_failed = own & ~every.failed.is_any_of([""])
    is_judged = is_ended | is_failed
    took_ns = every.done_ns - every.begin_ns
    mean, most = at_once(every.sent_ns[every.has_begun], every.done_ns[every.has_begun], spans)
    return SequenceFigures(
        n_begun=int(own.sum()),
        n_ended=int(is_ended.sum()),
        n_cut=int(is_failed.sum()),
        cut_by=every.failed.take(is_failed).counts(),
        length_asked_mean_count=float(every.length[own].mean()) if own.any() else 0.0,
        length_got_mean_count=float(every.n_ok[own].mean()) if own.any() else 0.0,
        durations=tuple(quantiles(took_ns[is_judged], qs, is_failed[is_judged])) if is_judged.any() else (),
        duration_mean_ns=float(took_ns[is_ended].mean()) if is_ended.any() else None,
        at_once_mean_count=mean,
        at_once_most_count=most,
    )


def sequence_rule_of(manifest: Manifest) -> SequenceRule | None:
    """How the run's requests were laid out as sequences; None where they were not."""
    scenario = manifest.scenario or {}
    stated = (scenario.get("clients") or {}).get("sequences")
    if stated is None:
        return None
    config = SequencesConfig.model_validate(stated)
    n_lanes = config.concurrent or manifest.plan.n_users
    if n_lanes is None:
        return None
    return SequenceRule(n_lanes, config.length, int(scenario["seed"]), manifest.run)


def run_sequences(requests: Requests, manifest: Manifest) -> RunSequences | None:
    """The sequences of a run, of which `requests` are all; None where they are of none."""
    rule = sequence_rule_of(manifest)
    if rule is None or not len(requests):
        return None
    number, step, length = Sequences(rule).spread(requests.request_id)
    order = np.lexsort((step, number))
    number, step = number[order], step[order]
    first = np.flatnonzero(np.diff(number, prepend=-1))
    of = requests.take(order)
    is_ok = of.is_ok
    is_reached = of.is_sent & of.is_done
    is_left = of.outcome.is_any_of(["unsent", "cancelled"]) & ~is_cut(of)  # the run ended: nothing failed
    n, n_words = len(number), len(of.outcome.words)
    at = np.minimum.reduceat(np.where(is_ok | is_left, n, np.arange(n)), first)
    failed = np.where(at < n, of.outcome.codes[np.minimum(at, n - 1)], n_words)
    begin_ns = of.begin_ns[first]
    in_time = np.argsort(begin_ns, kind="stable")
    found = RunSequences(
        phase=of.phase.take(first),
        has_begun=of.is_sent[first] & (step[first] == 0),
        length=length[order][first],
        n_ok=np.add.reduceat(is_ok.astype(np.int64), first),
        failed=Labels(failed, (*of.outcome.words, "")),
        begin_ns=begin_ns,
        sent_ns=of.sent_ns[first],
        done_ns=np.maximum(
            np.maximum.reduceat(np.where(is_reached, of.done_ns, 0), first), of.sent_ns[first]
        ),
    )
    return found.take(in_time)
