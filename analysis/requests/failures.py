"""What became of the measured requests that did not end ok: whose failures they are, in which words, how many.

A failure of the server is data: it counts as infinitely slow and makes no run INVALID. What was never sent for the
client's own sake (`unsent`), or of which the record is gone, is no failure of the server; nor is the rest of a sequence
that was cut, which one explains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from squall.analysis.arrays import Bools
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.storage.sealed import FailureGroup, Failures
from squall.analysis.wording import macros
from squall.scenarios.sequences import CUT

ABSENT, REFUSES, WRONG, SLOW, CLIENT = (
    "server not there", "server refuses", "server answers wrongly", "server does not answer", "client",
)  # fmt: skip
SERVER_KINDS = (ABSENT, REFUSES, WRONG, SLOW)
"""Whose fault a failure is, in the order in which one explains the next."""

ANSWERED = ("ok", "rejected", "server_error", "bad_reply", "unsent")
"""Outcomes after which the server has nothing more of the request."""
SILENT = ("timeout", "cancelled")
"""Outcomes of requests that nobody answered."""
_KINDS = {
    "transport_error": ABSENT,
    "rejected": REFUSES,
    "server_error": REFUSES,
    "bad_reply": WRONG,
    **dict.fromkeys(SILENT, SLOW),
}
BROKE = "connections broke"
_CLAIMS = {
    BROKE: "the server's connections broke",
    ABSENT: "the server was not there",
    REFUSES: "the server refused",
    WRONG: "the server answered wrongly",
    SLOW: "the server gave no answer in time",
    CLIENT: "the client's node had no room for a connection",
}
_OWN_LIMITS = ("Too many open files", "Cannot assign requested address")
"""The kernel's words for a connection that the client's own node cannot make."""
_ALONE_RATIO = 0.95
"""Of the failures: a server, or a model, of several that has so many of them, and fewer of the requests, is named as
the one that failed. The others may have a stray one."""
MOST_DETAIL = 500
"""Characters that are kept of a detail: a run of others may have any."""
_MOST_CHARACTERS = 60
_DEFAULT_ALLOWED = 0.01
"""Of a manifest from before `expect.failures`."""
_STATUS = re.compile(r"^\d+ ")


def failures_of(measured: Requests, scenario: Mapping[str, Any] | None = None) -> Failures:
    """The failures among the measured requests; `scenario` is that of the manifest, for what is expected."""
    groups = _groups(measured)
    server = _failed_alone(measured, measured.target)
    of_server = measured.at_server(server) if server else measured
    has_answered = any(one.kind != SLOW for one in _groups(of_server)) or bool(of_server.is_ok.any())
    if not has_answered:  # nobody ever said anything: not slow, not there
        groups = [replace(one, kind=ABSENT) if one.kind == SLOW else one for one in groups]
    own = scenario or {}
    allowed_ratio = float((own.get("expect") or {}).get("failures", _DEFAULT_ALLOWED))
    n_failed, n_ok = sum(one.n for one in groups), int(measured.is_ok.sum())
    n_unreached = int(is_unreached(measured).sum())
    n_never = int(measured.outcome.is_any_of(["unsent", "lost"]).sum())
    n_tried = len(measured) - n_never
    failed_ratio = n_failed / n_tried if n_tried else 0.0
    by_kind = {kind: sum(one.n for one in groups if one.kind == kind) for kind in (*SERVER_KINDS, CLIENT)}
    kind = (
        max(by_kind, key=lambda kind: by_kind[kind]) if groups else ""
    )  # of equally many the first in order
    has_broken = has_answered and kind == ABSENT and n_ok > 0 and 2 * n_unreached < by_kind[ABSENT]
    model = _failed_alone(of_server, of_server.request_kind)
    claim = _CLAIMS.get(BROKE if has_broken else kind, "").replace("the server", server or "the server")
    is_grpc = (own.get("clients") or {}).get("protocol") == "grpc"
    words = [(one.n, failure_words(one, is_grpc)) for one in groups]
    return Failures(
        n=len(measured),
        n_failed=n_failed,
        n_unreached=n_unreached,
        failed_ratio=failed_ratio,
        allowed_ratio=allowed_ratio,
        is_beyond=failed_ratio > allowed_ratio or (n_failed > 0 and not n_ok),
        kind=kind,
        sentence=macros("squall.analysis.requests", "failures.j2").failed(
            failed_ratio, n_tried, model, claim, words, n_never
        )
        if groups
        else "",
        groups=tuple(groups),
        model=model,
        n_never=n_never,
    )


def failure_words(group: FailureGroup, is_grpc: bool = False) -> str:
    """How these requests failed, in the server's or the transport's words."""
    detail = " ".join(group.detail.split()).removeprefix("connect: ") or group.outcome
    if group.kind == REFUSES and _STATUS.match(detail):
        detail = f"{'gRPC status' if is_grpc else 'HTTP'} {detail}"
    short = detail if len(detail) <= _MOST_CHARACTERS else f"{detail[: _MOST_CHARACTERS - 1].rstrip()}…"
    return short.rstrip(".")


def _failed_alone(measured: Requests, labels: Labels) -> str:
    """Of several servers, or models, the one that nearly all failures are of; empty where there is none such. `labels`:
    that of each request."""
    at_all = labels.counts()
    failed = labels.take(measured.outcome.is_any_of(_KINDS)).counts()
    worst = max(failed, key=lambda name: failed[name], default="")
    if len(at_all) < 2 or not worst:
        return ""
    is_alone = failed[worst] >= _ALONE_RATIO * sum(failed.values())
    return worst if is_alone and at_all[worst] < _ALONE_RATIO * len(measured) else ""


def is_unreached(requests: Requests) -> Bools:
    """Whether each failed before it could be sent: no connection to the server was to be had, refused or in vain."""
    return requests.outcome.is_any_of(["transport_error", *SILENT]) & ~requests.is_sent


def is_cut(requests: Requests) -> Bools:
    """Whether each was not sent since a request before it in its sequence had failed: no fault of the client's."""
    words = [word for word in requests.detail.words if word.startswith(CUT)]
    return requests.outcome.is_any_of(["unsent"]) & requests.detail.is_any_of(words)


def is_lost(requests: Requests) -> Bools:
    """Whether the record of each is gone, so that nobody knows what became of it."""
    return requests.outcome.is_any_of(["lost"])


def _groups(measured: Requests) -> list[FailureGroup]:
    """The commonest first."""
    failed = measured.take(measured.outcome.is_any_of(_KINDS))
    outcomes, details = failed.outcome, failed.detail
    pairs, counts = np.unique(
        outcomes.codes.astype(np.int64) * max(1, len(details.words)) + details.codes, return_counts=True
    )
    found = [
        (n, outcomes.words[pair // len(details.words)], details.words[pair % len(details.words)])
        for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return [
        FailureGroup(kind=_kind(outcome, detail), outcome=outcome, detail=detail[:MOST_DETAIL], n=n)
        for n, outcome, detail in sorted(found, key=lambda one: (-one[0], *one[1:]))
    ]


def _kind(outcome: str, detail: str) -> str:
    is_own = outcome == "transport_error" and any(words in detail for words in _OWN_LIMITS)
    return CLIENT if is_own else _KINDS[outcome]
