"""`check.html`: whether a scenario's promises are kept, seed by seed. Rendering only."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from squall.analysis.decisions.checked import UNFINISHED, Checked, decision_text, failed_lines
from squall.analysis.decisions.figures import BROKEN, INVALID, KEPT, UNDECIDED, PromiseFigures
from squall.analysis.decisions.over_seeds import PromiseDecision
from squall.analysis.render.decision_page import DecisionPage, DecisionTable
from squall.analysis.render.plots_data import Plot, Points, Series
from squall.analysis.render.promise_lines import breach_lines, value_text
from squall.analysis.render.trace_plots import Styled
from squall.analysis.wording import count_text, duration_text, share_text

_MOST_PLOTS = 8
_PER_CENT = 100.0


def check_page(checked: Checked, commands: Sequence[str] = (), folder: str = "") -> DecisionPage:
    """The page of a check, of at least one run or of one that is unfinished. `commands`: what makes it again;
    `folder`: that of the runs, as it is reached from where the commands are typed."""
    broken = [one for one in checked.promises if one.verdict == BROKEN]
    shown = [*broken, *(one for one in checked.promises if one.verdict != BROKEN)]
    promises = DecisionTable(
        "Promises",
        (
            "promise",
            "verdict",
            "late",
            "95 % bounds",
            "allowed",
            "budget used",
            "runs within it",
            "why not",
        ),
        tuple(map(_promise_row, checked.promises)),
        "Late: mean over the seeds of the share of requests that were late, failed or never sent. Budget used: of the"
        " late requests that are allowed.",
    )
    return DecisionPage(
        title=f"{checked.scenario}: are the promises kept?",
        answer=_answer(checked),
        is_good=True
        if checked.verdict == KEPT
        else None
        if checked.verdict in (UNDECIDED, UNFINISHED)
        else False,
        facts=(
            *failed_lines(checked),
            *(f"{one.verdict}: {one.promise}: {decision_text(one)}" for one in checked.promises),
        ),
        notes=tuple(_notes(checked)),
        plots=tuple(_plot(one) for one in shown[:_MOST_PLOTS]),
        tables=(
            promises,
            *map(_breaches, broken),
            *(map(_seeds, shown) if checked.n_seeds_planned is None else ()),
            _runs(checked),
        ),
        commands=(*commands, *_reports(checked, folder)),
    )


def _answer(checked: Checked) -> str:
    """The verdict as a sentence."""
    if checked.verdict == UNFINISHED:
        return f"Unfinished: {checked.seeds_text} of {checked.scenario}; there is no verdict yet."
    n = checked.n_seeds
    over = f"over {count_text(n)} seeds" if n > 1 else "in one run"
    concerned = [one.promise for one in checked.promises if one.verdict == checked.verdict]
    if checked.verdict == KEPT:
        what = concerned[0] if len(concerned) == 1 else f"all {len(concerned)} promises"
        return f"Yes: {checked.scenario} kept {what}, {over}."
    named = concerned[0] if concerned else ""
    rest = f" and {len(concerned) - 1} more" if len(concerned) > 1 else ""
    if checked.verdict == BROKEN and not concerned:
        return f"No: {checked.scenario} failed, {over}: {failed_lines(checked)[0]}"
    if checked.verdict == BROKEN:
        return f"No: {checked.scenario} broke {named}{rest}, {over}."
    if checked.verdict == INVALID:
        return (
            f"Not judged: a run of {checked.scenario} is not VALID, so that its figures are of another load."
        )
    return f"Undecided {over}: {named}{rest}."


def _notes(checked: Checked) -> list[str]:
    found = [
        f"seed {one.seed}, {one.run}: {one.status}, run again" for one in checked.runs if one.is_replaced
    ]
    found += [
        f"seed {one.seed}, {one.run}: {one.status}"
        for one in checked.runs
        if one.status != "VALID" and not one.is_replaced
    ]
    return [
        *found,
        *(
            f"seed {one.seed}, {one.run}: its load ended when the promises were decided"
            for one in checked.runs
            if one.is_decided
        ),
    ]


def _promise_row(one: PromiseDecision) -> tuple[str, ...]:
    bounds = "-"
    if one.late_low_ratio is not None and one.late_high_ratio is not None:
        bounds = f"{share_text(max(0.0, one.late_low_ratio))} … {share_text(one.late_high_ratio)}"
    used = one.late_ratio / one.allowed_ratio if one.late_ratio is not None and one.allowed_ratio else None
    kept = f"{one.n_kept} of {one.n_seeds}"
    late, allowed = (share_text(ratio) for ratio in (one.late_ratio, one.allowed_ratio))
    return one.promise, one.verdict, late, bounds, allowed, share_text(used), kept, one.reason or "-"


def _plot(one: PromiseDecision) -> Plot:
    """Late share of each seed's run, with what is allowed, and the bounds of the mean."""
    shares = [own.figures.late_ratio for own in one.runs]
    if one.is_of_each_run:
        shares = [own.figures.used_ratio for own in one.runs]
    if all(share is None for share in shares):
        return Plot(one.promise, "seed", "late, %", "line", absent="no run has a share of late requests")
    x = [float(place) for place in range(len(shares))]
    y = [None if share is None else _PER_CENT * share for share in shares]
    ends = [-0.5, len(shares) - 0.5]
    series: list[Series] = [Points("a seed's run", x, y, [], [])]
    limit = 1.0 if one.is_of_each_run else one.allowed_ratio
    levels = {
        "allowed": limit,
        "mean": one.late_ratio,
        "lower bound": one.late_low_ratio,
        "upper bound": one.late_high_ratio,
    }
    series += [
        Styled(name, ends, [_PER_CENT * max(0.0, level)] * 2, "reference")
        for name, level in levels.items()
        if level is not None
    ]
    label = "budget used, %" if one.is_of_each_run else "late, % of requests"
    note = (
        f"{one.verdict}; the bounds are one-sided, of the mean over seeds"
        if one.late_high_ratio
        else one.verdict
    )
    return Plot(
        one.promise,
        "seed",
        label,
        "line",
        tuple(series),
        note,
        x_ticks=tuple(str(own.seed) for own in one.runs),
    )


def _breaches(one: PromiseDecision) -> DecisionTable:
    """Where and when each run broke it, and what its late requests have in common."""
    rows = [
        (
            str(own.seed),
            _certain_text(own.figures),
            _worst_text(own.figures),
            "; ".join(breach_lines(own.figures)[1:]) or "-",
        )
        for own in one.runs
        if own.figures.verdict == BROKEN
    ]
    return DecisionTable(
        f"Where, when and why {one.promise} broke",
        ("seed", "certain", "worst", "the late requests"),
        tuple(rows),
        "Of the runs that broke it by themselves.",
    )


def _certain_text(one: PromiseFigures) -> str:
    if one.certain is None:
        return "-"
    return (
        f"{duration_text(one.certain.offset_ns)} into {one.certain.phase}, request {one.certain.request_id}"
    )


def _worst_text(one: PromiseFigures) -> str:
    if one.worst is None:
        return "-"
    late = f"{count_text(one.worst.n_late)} of {count_text(one.worst.n)} late"
    length, at = duration_text(one.worst.duration_ns), duration_text(one.worst.offset_ns)
    return f"{length} at {at} of {one.worst.phase}: {late}"


def _seeds(one: PromiseDecision) -> DecisionTable:
    rows = [
        (
            str(own.seed),
            own.figures.verdict,
            value_text(own.figures) if own.figures.n else "-",
            count_text(own.figures.n_late),
            count_text(own.figures.n),
            count_text(own.figures.n_allowed),
            share_text(own.figures.used_ratio),
            own.figures.reason or "-",
        )
        for own in one.runs
    ]
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
    return DecisionTable(f"{one.promise}, seed by seed", heads, tuple(rows))


def _runs(checked: Checked) -> DecisionTable:
    rows = [
        (
            one.run,
            str(one.seed),
            one.status,
            f"{one.seconds:.0f} s",
            "run again" if one.is_replaced else _kept(one.promises),
        )
        for one in checked.runs
    ]
    return DecisionTable("Runs", ("run", "seed", "status", "took", "promises met"), tuple(rows))


def _kept(promises: Sequence[PromiseFigures]) -> str:
    return f"{sum(one.verdict == KEPT for one in promises)} of {len(promises)}"


def _reports(checked: Checked, folder: str) -> list[str]:
    """The report of each run that broke a promise."""
    return [
        shlex.join(["squall", "report", os.path.join(folder, one.run)])
        for one in checked.runs
        if any(own.verdict == BROKEN for own in one.promises)
    ]
