"""`check.html`: whether a scenario's promises are kept, seed by seed. Rendering only."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from squall.analysis.compare.checked import UNFINISHED, Checked, decision_text, failed_lines
from squall.analysis.compare.figures import BROKEN, KEPT, UNDECIDED, PromiseFigures
from squall.analysis.compare.over_seeds import PromiseDecision
from squall.analysis.report.decision_page import DecisionPage
from squall.analysis.report.plots import Plot, curve, points
from squall.analysis.report.templates import sentences

_MOST_PLOTS = 8
_PER_CENT = 100.0


def check_page(checked: Checked, commands: Sequence[str] = (), folder: str = "") -> DecisionPage:
    """The page of a check, of at least one run or of one that is unfinished. `commands`: what makes it again;
    `folder`: that of the runs, as it is reached from where the commands are typed."""
    failed = failed_lines(checked)
    shown = sorted(checked.promises, key=lambda one: one.verdict != BROKEN)
    is_open = checked.verdict in (UNDECIDED, UNFINISHED)
    return DecisionPage(
        title=f"{checked.scenario}: are the promises kept?",
        answer=" ".join(sentences("check_answer", checked, failed)),
        is_good=None if is_open else checked.verdict == KEPT,
        facts=(
            *failed,
            *(f"{one.verdict}: {one.promise}: {decision_text(one)}" for one in checked.promises),
        ),
        notes=tuple(sentences("check_notes", checked)),
        plots=tuple(_plot(one) for one in shown[:_MOST_PLOTS]),
        tables=(),
        commands=(*commands, *_reports(checked, folder)),
        template="check.html.j2",
        values={"checked": checked, "shown": shown, "told": _told},
    )


def _told(macro: str, one: PromiseFigures) -> str:
    return "; ".join(sentences(macro, one)) or "-"


def _plot(one: PromiseDecision) -> Plot:
    """Late share of each seed's run, with what is allowed, and the bounds of the mean."""
    limit: float | None
    if one.is_of_each_run:
        label, limit, shares = "budget used, %", 1.0, [own.figures.used_ratio for own in one.runs]
    else:
        label, limit = "late, % of requests", one.allowed_ratio
        shares = [own.figures.late_ratio for own in one.runs]
    if all(share is None for share in shares):
        return Plot(one.promise, "seed", label, "line", absent="no run has a share of late requests")
    y = [None if share is None else _PER_CENT * share for share in shares]
    levels = {
        "allowed": limit,
        "mean": one.late_ratio,
        "lower bound": one.late_low_ratio,
        "upper bound": one.late_high_ratio,
    }
    ends = (-0.5, len(shares) - 0.5)
    lines = [
        curve(name, ends, [_PER_CENT * max(0.0, level)] * 2, "reference")
        for name, level in levels.items()
        if level is not None
    ]
    bounds = "; the bounds are one-sided, of the mean over seeds" if one.late_high_ratio else ""
    return Plot(
        one.promise,
        "seed",
        label,
        "line",
        [points("a seed's run", [*range(len(shares))], y), *lines],
        one.verdict + bounds,
        x_ticks=[str(own.seed) for own in one.runs],
    )


def _reports(checked: Checked, folder: str) -> list[str]:
    """The report of each run that broke a promise."""
    return [
        shlex.join(["squall", "report", os.path.join(folder, one.run)])
        for one in checked.runs
        if any(own.verdict == BROKEN for own in one.promises)
    ]
