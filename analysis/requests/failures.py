"""What became of the measured requests that did not end ok: whose failures they are, in which words, how many.

A failure of the server is data: it counts as infinitely slow and makes no run INVALID. What was never sent for the
client's own sake (`unsent`), or of which the record is gone, is no failure of the server; nor is the rest of a sequence
that was cut, which one explains.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from squall.analysis.arrays import Bools
from squall.analysis.requests.requests import Labels, Requests
from squall.analysis.wording import count_text, share_text
from squall.scenarios.sequences import CUT

ABSENT, REFUSES, WRONG, SLOW, CLIENT = (
    "server not there", "server refuses", "server answers wrongly", "server does not answer", "client",
)  # fmt: skip
SERVER_KINDS = (ABSENT, REFUSES, WRONG, SLOW)
"""Whose fault a failure is, in the order in which one explains the next."""

ANSWERED = ("ok", "rejected", "server_error", "bad_reply", "unsent")
"""Outcomes after which the server has nothing more of the request."""
_KINDS = {
    "transport_error": ABSENT,
    "rejected": REFUSES,
    "server_error": REFUSES,
    "bad_reply": WRONG,
    "timeout": SLOW,
    "cancelled": SLOW,
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
_MOST_GROUPS = 2
_MOST_CHARACTERS = 60
_DEFAULT_ALLOWED = 0.01
"""Of a manifest from before `expect.failures`."""
_STATUS = re.compile(r"^\d+ ")


@dataclass(frozen=True)
class Group:
    """Requests that failed alike. `kind`: one of `SERVER_KINDS`, or the client."""

    kind: str
    outcome: str
    detail: str
    n: int


@dataclass(frozen=True)
class FailureFigures:
    """`Failures` with what follows from them: of `n` measured requests those that failed, commonest group first;
    `model`: of several the one that nearly all of them ask, else empty. `failed_ratio`: of those that were sent, or
    found no connection; `n_never`: the others, never sent or without a record."""

    n: int
    n_failed: int
    n_unreached: int
    failed_ratio: float
    allowed_ratio: float
    is_beyond: bool
    kind: str
    sentence: str
    groups: tuple[Group, ...]
    model: str = ""
    n_never: int = 0


@dataclass(frozen=True)
class Failures:
    """Of `n` measured requests those that failed, the most frequent group first.

    `n_unreached`: failed before they could be sent, since there was no connection to the server. `allowed_ratio`:
    `expect.failures`. `protocol`: http or grpc. `server`: of several the one that failed alone, else empty; `model`:
    likewise of several models that are asked, of that server if there is
    one; `has_answered`: it, or any, ever did. `n_never`: of `n` those that were never sent for the client's sake, or
    whose record is gone, which say nothing of the server.
    """

    n: int
    n_ok: int
    n_unreached: int
    groups: tuple[Group, ...]
    allowed_ratio: float = _DEFAULT_ALLOWED
    protocol: str = "http"
    server: str = ""
    model: str = ""
    has_answered: bool = True
    n_never: int = 0

    @property
    def n_failed(self) -> int:
        """All groups together."""
        return sum(one.n for one in self.groups)

    @property
    def n_tried(self) -> int:
        """Those that were sent, or found no connection."""
        return self.n - self.n_never

    @property
    def ratio(self) -> float:
        """Share of those tried that failed; 0 of none."""
        return self.n_failed / self.n_tried if self.n_tried else 0.0

    @property
    def is_beyond(self) -> bool:
        """More failed than the user expects, or nothing ended ok."""
        return self.ratio > self.allowed_ratio or (self.n_failed > 0 and not self.n_ok)

    @property
    def unreached_ratio(self) -> float:
        """Share of the requests for which there was no connection; 0 of none."""
        return self.n_unreached / self.n if self.n else 0.0

    @property
    def kind(self) -> str:
        """The kind of most failures, of equally many the first in order; empty without any."""
        counts = {
            kind: sum(one.n for one in self.groups if one.kind == kind) for kind in (*SERVER_KINDS, CLIENT)
        }
        return max(counts, key=lambda kind: counts[kind]) if self.groups else ""

    @property
    def sentence(self) -> str:
        """`73.1 % of 2,447 requests failed, the server refused: 1,789 x HTTP 503 …`; empty without any. What was
        never sent is told behind it."""
        if not self.groups:
            return ""
        claim = _CLAIMS[BROKE if self._broke else self.kind].replace(
            "the server", self.server or "the server"
        )
        whose = f", nearly all that did ask {self.model}" if self.model else ""
        head = f"{share_text(self.ratio)} of {count_text(self.n_tried)} requests failed{whose}, {claim}"
        shown = ", ".join(f"{count_text(one.n)} x {self.words(one)}" for one in self.groups[:_MOST_GROUPS])
        n_rest = sum(one.n for one in self.groups[_MOST_GROUPS:])
        never = f"; {never_text(self.n_never)}" if self.n_never else ""
        return f"{head}: {shown}{f', {count_text(n_rest)} x other' if n_rest else ''}{never}."

    @property
    def _broke(self) -> bool:
        """Connections that a server took and then lost, while it answered others."""
        if not self.has_answered:
            return False
        n_absent = sum(one.n for one in self.groups if one.kind == ABSENT)
        return self.kind == ABSENT and self.n_ok > 0 and 2 * self.n_unreached < n_absent

    def words(self, group: Group) -> str:
        """How these requests failed, in the server's or the transport's words."""
        detail = " ".join(group.detail.split()).removeprefix("connect: ") or group.outcome
        if group.kind == REFUSES and _STATUS.match(detail):
            detail = f"{'gRPC status' if self.protocol == 'grpc' else 'HTTP'} {detail}"
        short = detail if len(detail) <= _MOST_CHARACTERS else f"{detail[: _MOST_CHARACTERS - 1].rstrip()}…"
        return short.rstrip(".")

    def figures(self) -> FailureFigures:
        """As summary and verdict hold them."""
        return FailureFigures(
            n=self.n,
            n_failed=self.n_failed,
            n_unreached=self.n_unreached,
            failed_ratio=self.ratio,
            allowed_ratio=self.allowed_ratio,
            is_beyond=self.is_beyond,
            kind=self.kind,
            sentence=self.sentence,
            groups=self.groups,
            model=self.model,
            n_never=self.n_never,
        )


def never_text(n: int) -> str:
    """`62 more never sent, or without a record`."""
    return f"{count_text(n)} more never sent, or without a record"


def failures_of(measured: Requests, scenario: Mapping[str, Any] | None = None) -> Failures:
    """The failures among the measured requests; `scenario` is that of the manifest, for what is expected."""
    groups = _groups(measured)
    server = _failed_alone(measured, measured.target)
    of_server = measured.at_server(server) if server else measured
    has_answered = any(one.kind != SLOW for one in _groups(of_server)) or bool(of_server.is_ok.any())
    if not has_answered:  # nobody ever said anything: not slow, not there
        groups = [replace(one, kind=ABSENT) if one.kind == SLOW else one for one in groups]
    own = scenario or {}
    return Failures(
        n=len(measured),
        n_ok=int(measured.is_ok.sum()),
        n_unreached=int(is_unreached(measured).sum()),
        groups=tuple(groups),
        allowed_ratio=float((own.get("expect") or {}).get("failures", _DEFAULT_ALLOWED)),
        protocol=str((own.get("clients") or {}).get("protocol", "http")),
        server=server,
        model=_failed_alone(of_server, of_server.request_kind),
        has_answered=has_answered,
        n_never=int(measured.outcome.is_any_of(["unsent", "lost"]).sum()),
    )


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
    return requests.outcome.is_any_of(["transport_error", "timeout", "cancelled"]) & ~requests.is_sent


def is_cut(requests: Requests) -> Bools:
    """Whether each was not sent since a request before it in its sequence had failed: no fault of the client's."""
    words = [word for word in requests.detail.words if word.startswith(CUT)]
    return requests.outcome.is_any_of(["unsent"]) & requests.detail.is_any_of(words)


def is_lost(requests: Requests) -> Bools:
    """Whether the record of each is gone, so that nobody knows what became of it."""
    return requests.outcome.is_any_of(["lost"])


def _groups(measured: Requests) -> list[Group]:
    is_failed = measured.outcome.is_any_of(_KINDS)
    outcome, detail = measured.outcome.take(is_failed), measured.detail.take(is_failed)
    n_words = max(1, len(detail.words))
    pairs, counts = np.unique(outcome.codes.astype(np.int64) * n_words + detail.codes, return_counts=True)
    found = [
        _group(outcome.words[pair // n_words], detail.words[pair % n_words], n)
        for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return _commonest(found)


def _group(outcome: str, detail: str, n: int) -> Group:
    is_own = outcome == "transport_error" and any(words in detail for words in _OWN_LIMITS)
    return Group(CLIENT if is_own else _KINDS[outcome], outcome, detail[:MOST_DETAIL], n)


def _commonest(groups: Sequence[Group]) -> list[Group]:
    return sorted(groups, key=lambda one: (-one.n, one.outcome, one.detail))
