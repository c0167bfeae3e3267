"""`check.html`: whether a scenario's promises are kept, seed by seed. Rendering only."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from squall.analysis.decisions.checked import UNFINISHED, Checked, decision_text, failed_lines
from squall.analysis.decisions.figures import BROKEN, KEPT, UNDECIDED, PromiseFigures
from squall.analysis.decisions.over_seeds import PromiseDecision
from squall.analysis.render.decision_page import DecisionPage, DecisionTable
from squall.analysis.render.plots import Plot, curve, points
from squall.analysis.render.templates import sentences
from squall.analysis.wording import count_text, share_text

_MOST_PLOTS = 8
_PER_CENT = 100.0


def check_page(checked: Checked, commands: Sequence[str] = (), folder: str = "") -> DecisionPage:
    """The page of a check, of at least one run or of one that is unfinished. `commands`: what makes it again;
    `folder`: that of the runs, as it is reached from where the commands are typed."""
    failed = failed_lines(checked)
    broken = [one for one in checked.promises if one.verdict == BROKEN]
    shown = [*broken, *(one for one in checked.promises if one.verdict != BROKEN)]
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
        tables=(
            _promises(checked.promises),
            *map(_breaches, broken),
            *(map(_seeds, shown) if checked.n_seeds_planned is None else ()),
            _runs(checked),
        ),
        commands=(*commands, *_reports(checked, folder)),
    )


def _promises(promises: Sequence[PromiseDecision]) -> DecisionTable:
    heads = [
        "promise",
        "verdict",
        "late",
        "95 % bounds",
        "allowed",
        "budget used",
        "runs within it",
        "why not",
    ]
    rows = []
    for one in promises:
        bounds, used = "-", None
        if one.late_low_ratio is not None and one.late_high_ratio is not None:
            bounds = f"{share_text(max(0.0, one.late_low_ratio))} … {share_text(one.late_high_ratio)}"
        if one.late_ratio is not None and one.allowed_ratio:
            used = one.late_ratio / one.allowed_ratio
        late, allowed = share_text(one.late_ratio), share_text(one.allowed_ratio)
        kept = f"{one.n_kept} of {one.n_seeds}"
        rows.append(
            (one.promise, one.verdict, late, bounds, allowed, share_text(used), kept, one.reason or "-")
        )
    note = (
        "Late: mean over the seeds of the share of requests that were late, failed or never sent. Budget used: of the"
        " late requests that are allowed."
    )
    return DecisionTable("Promises", tuple(heads), tuple(rows), note)


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


def _breaches(one: PromiseDecision) -> DecisionTable:
    """Where and when each run broke it, and what its late requests have in common."""
    rows = [
        (
            str(own.seed),
            *("; ".join(sentences(what, own.figures)) or "-" for what in ("certain", "worst", "causes")),
        )
        for own in one.runs
        if own.figures.verdict == BROKEN
    ]
    title = f"Where, when and why {one.promise} broke"
    heads = ("seed", "certain", "worst", "the late requests")
    return DecisionTable(title, heads, tuple(rows), "Of the runs that broke it by themselves.")


def _seeds(one: PromiseDecision) -> DecisionTable:
    heads = (
        "seed",
        "verdict",
        one.runs[0].figures.condition,
        "late",
        "requests",
        "allowed",
        "budget used",
        "why not",
    )
    return DecisionTable(
        f"{one.promise}, seed by seed", heads, tuple(_seed_row(own.seed, own.figures) for own in one.runs)
    )


def _seed_row(seed: int, one: PromiseFigures) -> tuple[str, ...]:
    value = sentences("promised", one)[0] if one.n else "-"
    counts = map(count_text, (one.n_late, one.n, one.n_allowed))
    return str(seed), one.verdict, value, *counts, share_text(one.used_ratio), one.reason or "-"


def _runs(checked: Checked) -> DecisionTable:
    rows = []
    for one in checked.runs:
        kept = f"{sum(own.verdict == KEPT for own in one.promises)} of {len(one.promises)}"
        met = "run again" if one.is_replaced else kept
        rows.append((one.run, str(one.seed), one.status, f"{one.seconds:.0f} s", met))
    return DecisionTable("Runs", ("run", "seed", "status", "took", "promises met"), tuple(rows))


def _reports(checked: Checked, folder: str) -> list[str]:
    """The report of each run that broke a promise."""
    return [
        shlex.join(["squall", "report", os.path.join(folder, one.run)])
        for one in checked.runs
        if any(own.verdict == BROKEN for own in one.promises)
    ]
