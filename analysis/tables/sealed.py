"""Sections of the manifest that the seal writes: tables with checksums, the verdict, what is left to be fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict

from squall.analysis.record import Number


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


class _Record(BaseModel):
    """A part of the verdict: built by what judges, read from manifest.json and summary.json, shown as it is."""

    model_config = ConfigDict(frozen=True)


class CheckResult(_Record):
    """A figure of a run against its limit."""

    name: Annotated[str, "of `python -m squall.analysis.verdict.checks`"]
    value: Annotated[Number | None, "the figure; null: not known"] = None
    limit: Annotated[Number | None, "the most that it may be"] = None
    unit: Annotated[str, "unit of both"] = ""
    is_met: Annotated[bool, "within the limit"] = False
    meaning: Annotated[str, "what the figure is"] = ""
    reason: Annotated[str, "why it makes the run INVALID; empty where it does not"] = ""
    not_assessed: Annotated[str, "why it decides nothing; empty where it does"] = ""

    @property
    def is_unmet(self) -> bool:
        """It makes the run INVALID."""
        return not self.is_met and not self.not_assessed


class Cause(_Record):
    """One cause of an INVALID run."""

    kind: Annotated[str, "of `analysis/verdict/causes.py`"]
    sentence: Annotated[str, "what a reader is told"]


class FailureGroup(_Record):
    """Requests that failed alike."""

    kind: Annotated[str, "who failed, and how: `analysis/requests/failures.py`"]
    outcome: Annotated[str, "outcome of their rows"]
    detail: Annotated[str, "detail of their rows"]
    n: Annotated[int, "how many"]


class Failures(_Record):
    """The measured requests that failed. What was not sent for the client's sake says nothing of the server."""

    n: Annotated[int, "measured requests"] = 0
    n_failed: Annotated[int, "of these, failed"] = 0
    n_unreached: Annotated[int, "failed before they could be sent: no connection"] = 0
    failed_ratio: Annotated[float, "share of those sent, or without a connection, that failed"] = 0.0
    allowed_ratio: Annotated[float, "`expect.failures`"] = 0.0
    is_beyond: Annotated[bool, "more than that, or nothing ended ok"] = False
    kind: Annotated[str, "kind of most failures"] = ""
    sentence: Annotated[str, "what a reader is told; empty where nothing failed"] = ""
    groups: Annotated[tuple[FailureGroup, ...], "the most frequent first"] = ()
    model: Annotated[str, "of several models the one that nearly all of them ask"] = ""
    n_never: Annotated[int, "of the measured ones, never sent or without a record"] = 0


class Bottleneck(_Record):
    """Why the client was the limit."""

    cause: Annotated[str, "worker cpu, max_in_flight, sequence order, node cpu, slow path or stall"] = ""
    sentence: Annotated[str, "what a reader is told"]
    evidence: Annotated[str, "the figures that say so"] = ""
    advice: Annotated[str, "what helps"]


class Starvation(_Record):
    """What starved the server on a node in a phase."""

    starved_by: Annotated[
        str, "others, clients (other parts of the run included), quota, none or not assessed"
    ]
    ratio: Annotated[float | None, "share that was taken; of a quota, of periods in which it was used up"] = (
        None
    )
    sentence: Annotated[str, "what a reader is told"] = ""
    advice: Annotated[str, "what helps"] = ""
    node: Annotated[str, "where"] = ""
    phase: Annotated[str, "in which measured phase"] = ""


class Verdict(_Record):
    """Whether the run measured what it was to measure: VALID where no check is unmet, else INVALID with a sentence for
    each that is. Sentences of the causes lead the reasons; a VALID run has one where its server failed more than is
    expected.

    The manifest holds what was set: of an aborted run, status and reasons alone.
    """

    status: Annotated[str, "VALID, INVALID or ABORTED"]
    reasons: Annotated[tuple[str, ...], "the first one is the verdict's first line"] = ()
    causes: Annotated[tuple[Cause, ...], "what lies behind the reasons"] = ()
    failures: Annotated[Failures | None, "of measured requests"] = None
    checks: Annotated[tuple[CheckResult, ...], "all that was held to a limit"] = ()
    client_bottleneck: Annotated[Bottleneck | None, "null: the client was not the limit"] = None
    starvation: Annotated[Starvation | None, "null: not looked at, or none"] = None


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """Rows that the sealed run has not: `squall resume` finishes it."""

    folders: Annotated[Mapping[str, str], "scratch folders that hold them, by node"] = field(
        default_factory=dict
    )
    why: Annotated[Mapping[str, str], "why each was not fetched"] = field(default_factory=dict)
    is_aborted: Annotated[bool, "the run was aborted for another reason"] = False
