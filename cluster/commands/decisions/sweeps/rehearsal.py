"""What a sweep would run, without running it: cells, order, minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squall.analysis.wording import counted_text
from squall.cluster.commands.decisions.sweeps.identity import refuse_changed
from squall.cluster.commands.decisions.sweeps.journal import Plan, State, read_state
from squall.cluster.commands.decisions.sweeps.plans import cells_to_run, choosing_plans
from squall.cluster.commands.decisions.sweeps.runnable import refuse_unrunnable
from squall.cluster.commands.decisions.sweeps.site import Site
from squall.scenarios.experiments.experiment import Experiment
from squall.scenarios.units import NS_PER_S


@dataclass(frozen=True)
class Rehearsal:
    """`runs` in their order, those that are finished marked; `start_s`: what a run takes beside its phases (Ray,
    the server, the join), measured over `n_measured` runs; 0 before any, when `seconds_left` is the least
    it can be. `confirm`: fresh runs of the cell that will be chosen, as long as the longest."""

    cells: tuple[str, ...]
    runs: tuple[dict[str, Any], ...]
    confirm: int
    start_s: float
    n_measured: int
    seconds_left: float

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {**vars(self), "cells": list(self.cells), "runs": list(self.runs)}

    def lines(self) -> list[str]:
        """For the screen."""
        found = [counted_text(len(self.cells), "cell")]
        found += [f"  {number:>3}  {label}" for number, label in enumerate(self.cells)]
        done = sum(run["is_finished"] for run in self.runs)
        found += [f"{counted_text(len(self.runs), 'run')}, {done} finished"]
        found += [_line(run) for run in self.runs]
        if self.confirm:
            found.append(f"and {self.confirm} of the cell that will be chosen, with fresh seeds")
        minutes = f"{self.seconds_left / 60:.1f} minutes are left: the phases"
        if self.n_measured:
            measured = f"measured over {counted_text(self.n_measured, 'run')}"
            return [*found, f"{minutes}, and {self.start_s:.0f} s a run beside them ({measured})"]
        beside = "what a run takes beside them is known once one has run: --resume FOLDER --dry-run"
        return [*found, f"at least {minutes}; {beside}"]


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
    phases_s = [_phases_s(experiment, cell) for cell in range(len(experiment.cells))]
    start_s, n_measured = _start_s(state, phases_s)
    pause_s = experiment.file.cooldown.pause_ns / NS_PER_S if experiment.file.cooldown is not None else 0.0
    runs = tuple(_described(plan, experiment, state, is_forced, phases_s, start_s) for plan in plans)
    left = [run["seconds"] for run in runs if not run["is_finished"]]
    n_confirm = experiment.file.confirm if len(experiment.cells) > 1 else 0
    seconds = sum(left) + n_confirm * (max(phases_s) + start_s) + pause_s * max(0, len(left) + n_confirm - 1)
    labels = tuple(cell.label for cell in experiment.cells)
    return Rehearsal(labels, runs, n_confirm, start_s, n_measured, seconds)


def _described(
    plan: Plan,
    experiment: Experiment,
    state: State,
    is_forced: bool,
    phases_s: Sequence[float],
    start_s: float,
) -> dict[str, Any]:
    return {
        "position": plan.position, "role": plan.role, "cell": plan.cell, "label": experiment.cells[plan.cell].label,
        "block": plan.block, "seed": plan.seed, "seconds": phases_s[plan.cell] + start_s,
        "is_finished": state.is_settled(plan.key) and not is_forced,
    }  # fmt: skip


def _phases_s(experiment: Experiment, cell: int) -> float:
    return sum(phase.duration_ns for phase in experiment.cells[cell].scenario.phases) / NS_PER_S


def _start_s(state: State, phases_s: Sequence[float]) -> tuple[float, int]:
    """The mean of what runs took beside their phases."""
    took = [
        row.wall_s - phases_s[row.cell]
        for rows in state.rows.values()
        for row in rows
        if row.outcome == "done"
    ]
    return (max(0.0, sum(took) / len(took)), len(took)) if took else (0.0, 0)


def _line(run: dict[str, Any]) -> str:
    purpose = f", {run['role']}" if run["role"] != "cell" else f", block {run['block']}"
    finished = ", finished" if run["is_finished"] else f", {run['seconds']:.0f} s"
    return f"  {run['position'] + 1:>3}  {run['label']}, seed {run['seed']}{purpose}{finished}"
