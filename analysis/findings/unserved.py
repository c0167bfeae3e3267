"""Findings about phases in which no batch began, and the rows of requests that no batch took."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.findings.classifier import classify
from analysis.findings.confidence import RunState
from analysis.findings.finding import UNASSESSED, Finding, Scope, make_finding
from analysis.findings.rows import link, literal
from analysis.findings.sent import Sent, SentRequests
from analysis.findings.window_rules import UNSERVED
from analysis.metrics.measures import ratio
from analysis.metrics.request_figures import IS_UNSERVED
from analysis.wording import count_text

if TYPE_CHECKING:
    import duckdb


def absent_finding(
    connection: duckdb.DuckDBPyConnection, scope: Scope, model: str, sent: SentRequests, state: RunState
) -> Finding:
    """The finding of the window level about an instance, or a server, that began no batch in a phase.

    `unserved` where requests to it were left unserved, else not assessed. Of a server whose batches are not known in
    any phase, none may be missing: there it takes a phase in which no request ended ok.
    """
    own = sent.of(scope.phase, scope.server, model)
    is_idle = sent.knows_batches(scope.server) or (own.n_sent > 0 and not own.n_ok)
    known: dict[str, float | None] = {
        "n_requests": float(own.n_sent),
        "n_batches": 0.0,
        "unserved_ratio": ratio(own.n_unserved, own.n_sent),
        "wall_exec_ratio": 0.0 if is_idle else None,
    }
    found = classify((UNSERVED,), known)
    finding = make_finding("window", scope, found, known, state, {})
    claim = (
        f"No batch {'of it ' if scope.instance else ''}is known to have begun in this phase; {_counts(own)}."
    )
    if found.named is not None:
        rows = link(connection, unserved_filter(scope, model, sent), UNSERVED.rows)
        return replace(finding, claim=claim, rows=rows)
    return Finding(
        UNASSESSED, "window", scope, f"Not assessed: {claim[:1].lower()}{claim[1:]}",
        "See whether the load was meant for it, and whether its batches are recorded: by the model, or Triton's trace.",
        "low", ("no batch in this phase",),
    )  # fmt: skip


def unserved_filter(scope: Scope, model: str, sent: SentRequests) -> str:
    """SQL condition for the rows of `joined` that no batch of the scope's server and model took."""
    own = f"phase = {literal(scope.phase)} AND target = {literal(scope.server)} AND {IS_UNSERVED}"
    return f"{own} AND request_kind = {literal(model)}" if sent.names(scope.server, model) else own


def _counts(own: Sent) -> str:
    if not own.n_sent:
        return "no request was sent to its server"
    text = (
        f"{count_text(own.n_sent)} requests were sent to its server, {count_text(own.n_ok)} of them ended ok"
    )
    return f"{text}, {count_text(own.n_unserved)} were left unserved" if own.n_unserved else text
