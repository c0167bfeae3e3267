"""The answer of an experiment in words, and the lines and cells of its tables."""

from __future__ import annotations

import math
from itertools import pairwise

from squall.analysis.experiments.cell_figures import CellFigures, MeanFigure
from squall.analysis.experiments.result import Sweep
from squall.analysis.experiments.rivals import Rival, apart, values_of
from squall.analysis.experiments.rows import CELL, LATENCIES, SweepRow
from squall.analysis.wording import change_text, duration_text, names_text, rate_text


def answer(sweep: Sweep) -> str:
    """One sentence that says which cell is best and which cannot be told apart from it."""
    so_far = "" if sweep.is_complete else f"so far, after {sweep.n_ended} of {sweep.design.n_planned} runs: "
    return so_far + _drift_text(sweep) + _best_text(sweep)


def facts(sweep: Sweep) -> list[str]:
    """What the answer rests on, a line each."""
    return [*_unlucky(sweep), *_instances(sweep), *_confirmed(sweep), *_drift_fact(sweep), *_sites(sweep)]


def cell_lines(sweep: Sweep) -> list[str]:
    """A line for each cell, from the best on: its objectives, how it compares, how its runs ended."""
    ranking = sweep.ranking
    rivals = {one.cell: one for one in ranking.others}
    lines = []
    for number in ranking.order:
        one = sweep.cells[number]
        figures = [f"{name} {mean_text(one.objectives[name], name)}" for name in sweep.design.objectives]
        against = "not ranked" if number in ranking.unranked else rival_text(rivals.get(number))
        ended = f"{one.n_valid} of {one.n_planned} runs valid"
        lines.append(f"{one.label}: {'; '.join([*figures, against, ended])}")
    return lines


def value_text(value: float | None, objective: str) -> str:
    """A figure of an objective with its unit."""
    if value is not None and math.isinf(value):
        return "infinite"
    return duration_text(value) if objective in LATENCIES else rate_text(value)


def mean_text(figure: MeanFigure, objective: str) -> str:
    """A mean with its interval."""
    if figure.n_infinite:
        return f"infinite in {figure.n_infinite} of {figure.n} runs"
    text = value_text(figure.mean, objective)
    if figure.low is None or figure.high is None:
        return text
    return f"{text} ({value_text(figure.low, objective)} … {value_text(figure.high, objective)})"


def rival_text(one: Rival | None) -> str:
    """How a cell compares with the best."""
    if one is None:
        return "best"
    if one.ratio is None or one.low is None or one.high is None:
        return f"open: {one.n_pairs} common seeds"
    word = "differs" if one.is_apart else "cannot be told apart"
    return f"{change_text(one.ratio - 1)} ({change_text(one.low - 1)} … {change_text(one.high - 1)}): {word}"


def reason_text(row: SweepRow) -> str:
    """How a run ended."""
    return row.outcome if not row.reason else f"{row.outcome}: {row.reason}"


def _best_text(sweep: Sweep) -> str:
    ranking, objective = sweep.ranking, sweep.design.objectives[0]
    if ranking.best is None:
        return f"no cell has a finite {objective} in its valid runs"
    best = sweep.cells[ranking.best]
    figure = f"{objective} {mean_text(best.objectives[objective], objective)}"
    rivals = [sweep.cells[cell].label for cell in ranking.rivals]
    worse = [one for one in ranking.others if one.is_apart]
    if not ranking.others:
        only = "" if len(sweep.cells) == 1 else "only "
        return f"{only}{best.label} has figures: {figure}" if only else f"{best.label}: {figure}"
    if not worse:
        n = len(ranking.others) + 1
        none = (
            "the two cells cannot be told apart"
            if n == 2
            else f"none of {n} cells can be told apart from the best"
        )
        return f"by {objective} {none}; lowest is {best.label}, {figure}" if objective in LATENCIES else (
            f"by {objective} {none}; highest is {best.label}, {figure}")  # fmt: skip
    next_best = worse[0]
    assert next_best.ratio is not None
    behind = (
        f"the next that differs is {sweep.cells[next_best.cell].label}, {change_text(next_best.ratio - 1)}"
    )
    if rivals:
        return f"best by {objective}: {best.label}, {figure}, not to be told apart from {names_text(rivals)}; {behind}"
    return f"best by {objective}: {best.label}, {figure}; {behind}"


def _drift_text(sweep: Sweep) -> str:
    """Before all else, where the machine changed by more than the cells differ."""
    drift = sweep.drift
    if drift is None or drift.ratio is None or not drift.is_drifting:
        return ""
    change = change_text(drift.ratio - 1)
    effects = [
        abs(math.log(one.ratio)) for one in sweep.ranking.others if one.is_apart and one.ratio is not None
    ]
    head = f"the machine drifted: {sweep.design.objectives[0]} of the reference cell by {change}"
    if not effects:
        return f"{head}; "
    return f"{head}, more than cells differ by; " if abs(math.log(drift.ratio)) > min(effects) else ""


def _drift_fact(sweep: Sweep) -> list[str]:
    drift, objective = sweep.drift, sweep.design.objectives[0]
    if drift is None:
        return ["No reference cell: what the machine drifted by is not known."]
    if drift.ratio is None or drift.low is None or drift.high is None:
        return [f"Drift: {drift.reason}."]
    interval = f"{change_text(drift.low - 1)} … {change_text(drift.high - 1)}"
    claim = "the machine drifted" if drift.is_drifting else "no drift shown"
    return [
        f"Drift: {objective} of the reference cell changed by {change_text(drift.ratio - 1)} ({interval}) over the"
        f" sweep, by {drift.n} runs: {claim}."
    ]


def _confirmed(sweep: Sweep) -> list[str]:
    found, objective = sweep.confirmation, sweep.design.objectives[0]
    if found is None:
        return []
    text = f"With {found.figure.n} fresh seeds {sweep.cells[found.cell].label} has {objective} "
    text += mean_text(found.figure, objective)
    if found.expected_low is None or found.expected_high is None:
        return [f"{text}."]
    expected = f"{value_text(found.expected_low, objective)} … {value_text(found.expected_high, objective)}"
    claim = (
        "as the runs that chose it led to expect"
        if found.is_expected
        else "not what the runs that chose it led to expect"
    )
    return [f"{text}: {claim} ({expected})."]


def _instances(sweep: Sweep) -> list[str]:
    """What more instances were measured to do, a line for each two cells that differ in nothing but one count of
    instances, with no count between; by the geometric means of the first objective."""
    objective = sweep.design.objectives[0]
    values = values_of([row for row in sweep.runs if row.role == CELL], objective)
    known = [one for one in sweep.cells if one.objectives[objective].mean is not None]
    differ = apart(values, [one.cell for one in known])
    groups: dict[tuple[str, str], list[tuple[int, CellFigures]]] = {}
    for one in known:
        for key, count in one.factors.items():
            if key.rpartition(".")[2] == "instances" and isinstance(count, int):
                rest = {name: value for name, value in one.factors.items() if name != key}
                groups.setdefault((key, repr(rest)), []).append((count, one))
    lines = []
    for (key, _), counted in groups.items():
        counted.sort(key=lambda each: each[0])
        for (fewer, one), (more, other) in pairwise(counted):
            figure, before = (value_text(each.objectives[objective].mean, objective) for each in (other, one))
            pair = (min(one.cell, other.cell), max(one.cell, other.cell))
            claim = "" if pair in differ else ", which cannot be told apart"
            lines.append(
                f"{key}: {more} were measured at {objective} {figure} against {before} of {fewer}"
                f" ({other.label} against {one.label}){claim}."
            )
    return lines


def _unlucky(sweep: Sweep) -> list[str]:
    lines = []
    invalid = sum(one.n_invalid for one in sweep.cells)
    failed = sum(one.n_failed for one in sweep.cells)
    if invalid:
        lines.append(f"{invalid} runs are INVALID, also when run once more: they count nowhere.")
    if failed:
        lines.append(f"{failed} runs failed: they count nowhere.")
    unranked = [sweep.cells[cell].label for cell in sweep.ranking.unranked if sweep.is_complete]
    if unranked and len(unranked) < len(sweep.cells):
        objective = sweep.design.objectives[0]
        lines.append(
            f"Without a finite {objective} in all valid runs, and so not ranked: {names_text(unranked)}."
        )
    return lines


def _sites(sweep: Sweep) -> list[str]:
    if len(sweep.sites) < 2:
        return [f"On {host}." for host in sweep.sites.values()]
    return [
        f"On {len(sweep.sites)} hosts or versions, compared within each: {'; '.join(sweep.sites.values())}."
    ]
