"""Sections of the manifest that the seal writes: tables with checksums, the verdict, what is left to be fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from squall.analysis.record import SubPath
from squall.scenarios.records import Float, Int, Led, LeftOut, Listed, Record


class SealedFile(Record):
    """A part of a table at the seal."""

    path: SubPath
    """from the run directory"""
    rows: Int = 0
    """its rows"""
    bytes: Int
    """its size"""
    sha256: str = ""
    """of its content"""


class SealedTable(Record):
    """A table at the seal."""

    rows: Int = 0
    """rows of all parts"""
    files: Listed[SealedFile] = ()
    """its parts, in order"""


class CheckResult(Record):
    """A figure of a run against its limit."""

    name: str
    """of `python -m squall.analysis.verdict.checks`"""
    value: Float | None = None
    """the figure; null: not known"""
    limit: Float | None = None
    """the most that it may be"""
    unit: str = ""
    """unit of both"""
    is_met: bool = False
    """within the limit"""
    meaning: str = ""
    """what the figure is"""
    reason: str = ""
    """why it makes the run INVALID; empty where it does not"""
    not_assessed: str = ""
    """why it decides nothing; empty where it does"""

    @property
    def is_unmet(self) -> bool:
        """It makes the run INVALID."""
        return not self.is_met and not self.not_assessed


class Cause(Record):
    """One cause of an INVALID run."""

    kind: str
    """of `analysis/verdict/causes.py`"""
    sentence: str
    """what a reader is told"""


class FailureGroup(Record):
    """Requests that failed alike."""

    kind: str
    """who failed, and how: `analysis/requests/failures.py`"""
    outcome: str
    """outcome of their rows"""
    detail: str
    """detail of their rows"""
    n: Int
    """how many"""


class Failures(Record):
    """The measured requests that failed. What was not sent for the client's sake says nothing of the server."""

    n: Int = 0
    """measured requests"""
    n_failed: Int = 0
    """of these, failed"""
    n_unreached: Int = 0
    """failed before they could be sent: no connection"""
    failed_ratio: Float = 0.0
    """share of those sent, or without a connection, that failed"""
    allowed_ratio: Float = 0.0
    """`expect.failures`"""
    is_beyond: bool = False
    """more than that, or nothing ended ok"""
    kind: str = ""
    """kind of most failures"""
    sentence: str = ""
    """what a reader is told; empty where nothing failed"""
    groups: Listed[FailureGroup] = ()
    """the most frequent first"""
    model: LeftOut[str] = ""
    """of several models the one that nearly all of them ask"""
    n_never: LeftOut[Int] = 0
    """of the measured ones, never sent or without a record"""


class Bottleneck(Record):
    """Why the client was the limit."""

    cause: str = ""
    """worker cpu, max_in_flight, sequence order, node cpu, slow path or stall"""
    sentence: str
    """what a reader is told"""
    evidence: str = ""
    """the figures that say so"""
    advice: str
    """what helps"""


class Starvation(Record):
    """What starved the server on a node in a phase."""

    starved_by: str
    """others, clients (other parts of the run included), quota, none or not assessed"""
    ratio: Float | None = None
    """share that was taken; of a quota, of periods in which it was used up"""
    sentence: str = ""
    """what a reader is told"""
    advice: str = ""
    """what helps"""
    node: str = ""
    """where"""
    phase: str = ""
    """in which measured phase"""


class Verdict(Record):
    """Whether the run measured what it was to measure: VALID where no check is unmet, else INVALID with a sentence for
    each that is. Sentences of the causes lead the reasons; a VALID run has one where its server failed more than is
    expected. Of an aborted run, status and reasons alone.
    """

    LEAD = "checks"

    status: str
    """VALID, INVALID or ABORTED"""
    reasons: Listed[str] = ()
    """the first one is the verdict's first line"""
    causes: Led[Listed[Cause]] = ()
    """what lies behind the reasons"""
    failures: Led[Failures | None] = None
    """of measured requests"""
    checks: LeftOut[Listed[CheckResult]] = ()
    """all that was held to a limit"""
    client_bottleneck: Led[Bottleneck | None] = None
    """null: the client was not the limit"""
    starvation: Led[Starvation | None] = None
    """null: not looked at, or none"""


class Unfinished(Record):
    """Rows that the sealed run has not: `squall resume` finishes it."""

    folders: Mapping[SubPath, str] = field(default_factory=dict)
    """scratch folders that hold them, by node"""
    why: Mapping[str, str] = field(default_factory=dict)
    """why each was not fetched"""
    is_aborted: bool = False
    """the run was aborted for another reason"""
