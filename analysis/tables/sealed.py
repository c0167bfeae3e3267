"""Sections of the manifest that the seal writes: tables with checksums, the verdict, what is left to be fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from squall.analysis.tables.document import LEFT_OUT, With


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """A part of a table at the seal."""

    path: Annotated[str, "from the run directory"]
    rows: Annotated[int, "its rows"] = 0
    bytes: Annotated[int, "its size"]
    sha256: Annotated[str, "of its content"] = ""


@dataclass(frozen=True, kw_only=True)
class SealedTable:
    """A table at the seal."""

    rows: Annotated[int, "rows of all parts"] = 0
    files: Annotated[tuple[SealedFile, ...], "its parts, in order"] = ()


@dataclass(frozen=True, kw_only=True)
class SealedCheck:
    """A figure against its limit."""

    name: Annotated[str, "its name in docs/checks.md"]
    value: Annotated[float | None, "the figure; null: not known"] = None
    limit: Annotated[float | None, "the most that it may be"] = None
    unit: Annotated[str, "unit of both"] = ""
    is_met: Annotated[bool, "within the limit"] = False
    meaning: Annotated[str, "what the figure is"] = ""
    reason: Annotated[str, "why it makes the run INVALID; empty where it does not"] = ""
    not_assessed: Annotated[str, "why it decides nothing; empty where it does"] = ""


@dataclass(frozen=True, kw_only=True)
class SealedCause:
    """One cause of an INVALID run."""

    kind: Annotated[str, "of `analysis/verdict/causes.py`"]
    sentence: Annotated[str, "what a reader is told"]


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Requests that failed alike."""

    kind: Annotated[str, "who failed, and how: `analysis/requests/failures.py`"]
    outcome: Annotated[str, "outcome of their rows"]
    detail: Annotated[str, "detail of their rows"]
    n: Annotated[int, "how many"]


@dataclass(frozen=True, kw_only=True)
class SealedFailures:
    """The measured requests that failed."""

    n: Annotated[int, "measured requests"] = 0
    n_failed: Annotated[int, "of these, failed"] = 0
    n_unreached: Annotated[int, "failed before they could be sent: no connection"] = 0
    failed_ratio: Annotated[float | None, "share of those sent, or without a connection, that failed"] = None
    allowed_ratio: Annotated[float | None, "`expect.failures`"] = None
    is_beyond: Annotated[bool, "more than that"] = False
    kind: Annotated[str, "kind of the most frequent group"] = ""
    sentence: Annotated[str, "what a reader is told; empty where nothing failed"] = ""
    groups: Annotated[tuple[FailureGroup, ...], "the most frequent first"] = ()
    model: Annotated[str, LEFT_OUT, "of several models the one that nearly all of them ask"] = ""
    n_never: Annotated[int, LEFT_OUT, "of the measured ones, never sent or without a record"] = 0


@dataclass(frozen=True, kw_only=True)
class ClientBottleneck:
    """Why the client was the limit."""

    cause: Annotated[str, "worker cpu, max_in_flight, sequence order, node cpu or stall"] = ""
    sentence: Annotated[str, "what a reader is told"]
    evidence: Annotated[str, "the figures that say so"] = ""
    advice: Annotated[str, "what helps"]


@dataclass(frozen=True, kw_only=True)
class SealedStarvation:
    """Who took the server's CPU."""

    starved_by: Annotated[str, "others, clients, quota, none or not assessed"]
    ratio: Annotated[float | None, "share that was taken; of a quota, of periods in which it was used up"] = (
        None
    )
    sentence: Annotated[str, "what a reader is told"] = ""
    advice: Annotated[str, "what helps"] = ""
    node: Annotated[str, "where"] = ""
    phase: Annotated[str, "in which measured phase"] = ""


@dataclass(frozen=True, kw_only=True)
class SealedVerdict:
    """Whether the run measured what it was to measure. Of an aborted run, status and reasons alone."""

    status: Annotated[str, "VALID, INVALID or ABORTED"]
    reasons: Annotated[tuple[str, ...], "the first one is the verdict's first line"] = ()
    causes: Annotated[tuple[SealedCause, ...], With("checks"), "what lies behind the reasons"] = ()
    failures: Annotated[SealedFailures | None, With("checks"), "of measured requests"] = None
    checks: Annotated[tuple[SealedCheck, ...], LEFT_OUT, "all that was held to a limit"] = ()
    client_bottleneck: Annotated[
        ClientBottleneck | None, With("checks"), "null: the client was not the limit"
    ] = None
    starvation: Annotated[SealedStarvation | None, With("checks"), "null: not looked at"] = None


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """Rows that the sealed run has not: `squall resume` finishes it."""

    folders: Annotated[Mapping[str, str], "scratch folders that hold them, by node"] = field(
        default_factory=dict
    )
    why: Annotated[Mapping[str, str], "why each was not fetched"] = field(default_factory=dict)
    is_aborted: Annotated[bool, "the run was aborted for another reason"] = False
