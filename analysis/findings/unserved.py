"""Findings about phases in which no batch began, and the rows of requests that no batch took."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from squall.analysis.findings.confidence import RunState
from squall.analysis.findings.finding import UNASSESSED, Finding, Scope, link, lowered, make_finding
from squall.analysis.findings.rule import Rule, classify
from squall.analysis.findings.sent import SentRequests, sent_measures
from squall.analysis.findings.tried import RULES
from squall.analysis.metrics.requests import IS_ANSWERED, IS_UNSERVED
from squall.analysis.storage.parquet import literal
from squall.analysis.storage.query import rows
from squall.analysis.wording import macros

if TYPE_CHECKING:
    import duckdb

REFUSED, UNSERVED = RULES["refused"], RULES["unserved"]


def absent_finding(
    connection: duckdb.DuckDBPyConnection, scope: Scope, model: str, sent: SentRequests, state: RunState
) -> Finding:
    """The finding of the window level about an instance, or a server, that began no batch in a phase.

    `refused` where the server answered requests to it without serving them, `unserved` where it did not answer, else
    not assessed. Of a server whose batches are not known in
    any phase, none may be missing: there it takes a phase in which no request ended ok.
    """
    own = sent.of(scope.phase, scope.server, model)
    is_idle = sent.knows_batches(scope.server, model) or (own.n_sent > 0 and not own.n_ok)
    known = {**sent_measures(own), "n_batches": 0.0, "wall_exec_ratio": 0.0 if is_idle else None}
    rules = (REFUSED, UNSERVED) if 2 * own.n_refused >= own.n_unserved else (UNSERVED, REFUSED)
    found = classify(rules, known)
    finding = make_finding("window", scope, found, known, state, {})
    say = macros(__package__, "unserved.j2")
    if found.named is not None:
        rule = found.named.rule
        own_rows = unserved_filter(scope, model, sent, rule)
        said = rows(connection, _WORDS.format(own_rows)) if rule is REFUSED else []
        claim = say.claim(own, bool(scope.instance), True, said)
        return replace(finding, claim=claim, rows=link(connection, own_rows, **dict(rule.rows)))
    claim = say.claim(own, bool(scope.instance), False, [])
    step = (
        "See whether the load was meant for it, and whether its batches are recorded: by the model, "
        "or Triton's trace."
    )
    return lowered(Finding(UNASSESSED, "window", scope, claim, step), [("low", "no batch in this phase")])


def unserved_filter(scope: Scope, model: str, sent: SentRequests, rule: Rule) -> str:
    """SQL condition for the rows of `joined` that no batch of the scope's server and model took: those that the server
    answered all the same, or for `UNSERVED` those that it did not."""
    own = f"phase = {literal(scope.phase)} AND target = {literal(scope.server)} AND {IS_UNSERVED}"
    own += f" AND {'' if rule is REFUSED else 'NOT '}{IS_ANSWERED}"
    return f"{own} AND request_kind = {literal(model)}" if sent.names(scope.server, model) else own


_WORDS = """
-- What the server answered, in its own words.
SELECT r.outcome, r.detail, count(*) AS n FROM requests r
WHERE r.request_id IN (SELECT request_id FROM joined WHERE {})
GROUP BY ALL ORDER BY n DESC, r.detail LIMIT 2
"""
