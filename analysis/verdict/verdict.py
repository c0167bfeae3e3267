"""The verdict as the manifest of a sealed run and its summary hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from squall.analysis.record import from_json, to_json
from squall.analysis.requests.failures import FailureFigures
from squall.analysis.verdict.bottleneck import Bottleneck
from squall.analysis.verdict.causes import Cause
from squall.analysis.verdict.check import Check
from squall.analysis.verdict.starvation import StarvationFigures


@dataclass(frozen=True)
class VerdictFigures:
    """What `validity.Verdict` says, of a run that was judged. `status`: VALID, INVALID or ABORTED."""

    status: str
    reasons: tuple[str, ...]
    causes: tuple[Cause, ...]
    failures: FailureFigures
    checks: tuple[Check, ...]
    client_bottleneck: Bottleneck | None
    starvation: StarvationFigures | None


def as_sealed(judged: VerdictFigures, sealed: Mapping[str, Any]) -> VerdictFigures:
    """`judged` with what the run was sealed with in its place: the seal of an aborted run has status and reasons alone,
    that of an open one nothing. Raises AnalysisError where `sealed` is no verdict."""
    return from_json(VerdictFigures, {**to_json(judged), **sealed}) if sealed else judged
