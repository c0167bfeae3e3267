"""Figures of sequences of requests: how many there were, what cut them, how long they took as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from squall.analysis.requests.at_once import at_once
from squall.analysis.requests.failures import is_cut
from squall.analysis.requests.requests import Requests
from squall.analysis.statistics.latency import Quantile, quantiles
from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.query import over, rows
from squall.analysis.storage.timeline import RunPhase
from squall.scenarios.records import Frozen
from squall.scenarios.sequences import SequenceRule, Sequences


class SequenceFigures(Frozen):
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


RunSequences: TypeAlias = pa.Table
"""A row for each sequence of a run, as `_SEQUENCES` says."""

_SEQUENCES = """
-- of each sequence the first of its requests here
SELECT number, arg_min(phase, step) AS phase, arg_min(begin_ns, step) AS begin_ns, arg_min(sent_ns, step) AS sent_ns,
    -- whether that is its first at all, and was sent
    min(step) = 0 AND arg_min(is_sent, step) AS has_begun,
    -- requests as drawn, and those that ended ok
    any_value(length) AS length, count(*) FILTER (outcome = 'ok') AS n_ok,
    -- outcome of the first that failed, not for the end of the run; null where none did
    arg_min(outcome, step) FILTER (outcome <> 'ok' AND (is_cut OR outcome NOT IN ('unsent', 'cancelled'))) AS failed,
    greatest(coalesce(max(done_ns) FILTER (is_sent AND is_done), 0), arg_min(sent_ns, step)) AS done_ns
FROM requests GROUP BY number
"""
_BEGUN = """
CREATE TEMP TABLE begun AS
SELECT *, n_ok = length AS is_ended, failed IS NOT NULL AS is_failed, done_ns - begin_ns AS took_ns
FROM sequences WHERE has_begun AND list_contains($phases, phase)
"""
_FIGURES = """
SELECT count(*) AS n_begun, count(*) FILTER (is_ended) AS n_ended, count(*) FILTER (is_failed) AS n_cut,
    coalesce(avg(length), 0) AS length_asked_mean_count, coalesce(avg(n_ok), 0) AS length_got_mean_count,
    avg(took_ns) FILTER (is_ended) AS duration_mean_ns
FROM begun
"""
_CUT_BY = "SELECT failed, count(*) FROM begun WHERE is_failed GROUP BY failed"
_DURATIONS = "SELECT took_ns, is_failed FROM begun WHERE is_ended OR is_failed ORDER BY begin_ns, number"


def sequence_figures(
    every: RunSequences | None, spans: Sequence[RunPhase], qs: Sequence[float]
) -> SequenceFigures | None:
    """Of the phases `spans`; None where requests are of no sequences."""
    if every is None:
        return None
    with over({"sequences": every}) as connection:
        connection.execute(_BEGUN, {"phases": [span.name for span in spans]})
        (figures,) = rows(connection, _FIGURES)
        cut_by = dict(connection.execute(_CUT_BY).fetchall())
        took = connection.execute(_DURATIONS).fetchnumpy()
        all_begun = connection.execute("SELECT sent_ns, done_ns FROM sequences WHERE has_begun").fetchnumpy()
    durations = quantiles(took["took_ns"], qs, took["is_failed"]) if len(took["took_ns"]) else ()
    mean, most = at_once(all_begun["sent_ns"], all_begun["done_ns"], spans)
    return SequenceFigures(
        **figures, cut_by=cut_by, durations=tuple(durations), at_once_mean_count=mean, at_once_most_count=most
    )


def sequence_rule_of(manifest: Manifest) -> SequenceRule | None:
    """How the run's requests were laid out as sequences; None where they were not."""
    scenario = manifest.scenario or {}
    stated = (scenario.get("clients") or {}).get("sequences")
    if stated is None:
        return None
    from squall.scenarios.config.client import SequencesConfig  # few runs have any

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
    names = ("phase", "outcome", "begin_ns", "sent_ns", "done_ns", "is_sent", "is_done")
    placed = requests.table(*names, number=number, step=step, length=length, is_cut=is_cut(requests))
    with over({"requests": placed}) as connection:
        return connection.sql(_SEQUENCES).to_arrow_table()
