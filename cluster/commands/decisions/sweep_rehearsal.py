"""What a sweep would run, without running it: cells, order, minutes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from squall.analysis.wording import counted_text
from squall.cluster.commands.decisions.minutes import Beside, phases_s
from squall.cluster.commands.decisions.runnable_cells import refuse_unrunnable
from squall.cluster.commands.decisions.site import Site
from squall.cluster.commands.decisions.sweep_identity import refuse_changed
from squall.cluster.commands.decisions.sweep_journal import Plan, State, read_state
from squall.cluster.commands.decisions.sweep_plans import cells_to_run, choosing_plans
from squall.scenarios.experiment import Experiment
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S


class Rehearsal(Frozen):
    """`runs` in their order, those that are finished marked; `seconds_left` is the least it can be before any run was
    measured. `confirm`: fresh runs of the cell that will be chosen, as long as the longest."""

    cells: tuple[str, ...]
    runs: tuple[dict[str, Any], ...]
    confirm: int
    beside: Beside
    seconds_left: float

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "cells": list(self.cells), "runs": list(self.runs), "confirm": self.confirm, "start_s": self.beside.seconds,
            "n_measured": self.beside.n_runs, "seconds_left": self.seconds_left,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """For the screen."""
        found = [counted_text(len(self.cells), "cell")]
        found += [f"  {number:>3}  {label}" for number, label in enumerate(self.cells)]
        done = sum(run["is_finished"] for run in self.runs)
        found += [f"{counted_text(len(self.runs), 'run')}, {done} finished"]
        found += [_line(run) for run in self.runs]
        if self.confirm:
            found.append(f"and {self.confirm} of the cell that will be chosen, with fresh seeds")
        return [*found, self.beside.minutes_text(self.seconds_left, ": --resume FOLDER --dry-run")]


def rehearse(
    experiment: Experiment, resume: Path | None, path: Path, site: Site, is_forced: bool
) -> Rehearsal:
    """Raises ScenarioError where the sweep in `resume` is of another experiment, or damaged, and for a cell that cannot
    be run."""
    state = State()
    if resume is not None:
        state = read_state(resume)
        refuse_changed(experiment, state.experiment, resume, path)
    plans = choosing_plans(experiment, state, site.digest, is_forced)
    refuse_unrunnable(cells_to_run(experiment, state, plans, is_forced), path)
    cells_s = [phases_s(cell.scenario) for cell in experiment.cells]
    beside = _beside(state, cells_s)
    pause_s = experiment.file.cooldown.pause_ns / NS_PER_S if experiment.file.cooldown is not None else 0.0
    runs = tuple(_described(plan, experiment, state, is_forced, cells_s, beside.seconds) for plan in plans)
    left = [run["seconds"] for run in runs if not run["is_finished"]]
    n_confirm = experiment.file.confirm if len(experiment.cells) > 1 else 0
    n_pauses = max(0, len(left) + n_confirm - 1)
    seconds = sum(left) + n_confirm * (max(cells_s) + beside.seconds) + pause_s * n_pauses
    labels = tuple(cell.label for cell in experiment.cells)
    return Rehearsal(labels, runs, n_confirm, beside, seconds)


def _described(
    plan: Plan,
    experiment: Experiment,
    state: State,
    is_forced: bool,
    cells_s: Sequence[float],
    start_s: float,
) -> dict[str, Any]:
    return {
        "position": plan.position, "role": plan.role, "cell": plan.cell, "label": experiment.cells[plan.cell].label,
        "block": plan.block, "seed": plan.seed, "seconds": cells_s[plan.cell] + start_s,
        "is_finished": state.is_settled(plan.key) and not is_forced,
    }  # fmt: skip


def _beside(state: State, cells_s: Sequence[float]) -> Beside:
    """Of the runs that are done."""
    rows = [row for rows in state.rows.values() for row in rows]
    return Beside.of((row.wall_s, cells_s[row.cell]) for row in rows if row.outcome == "done")


def _line(run: dict[str, Any]) -> str:
    purpose = f", {run['role']}" if run["role"] != "cell" else f", block {run['block']}"
    finished = ", finished" if run["is_finished"] else f", {run['seconds']:.0f} s"
    return f"  {run['position'] + 1:>3}  {run['label']}, seed {run['seed']}{purpose}{finished}"
