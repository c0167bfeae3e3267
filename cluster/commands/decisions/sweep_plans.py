"""Which runs a sweep still needs on a site: their keys, and what other sites have done already. Pure over the
journal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from squall.analysis.studies.sweep_rows import CELL, CONFIRM
from squall.cluster.commands.decisions.sweep_journal import Plan, State
from squall.scenarios.experiment import Cell, Experiment, PlannedRun


def choosing_plans(experiment: Experiment, state: State, site: str, is_forced: bool) -> list[Plan]:
    """The runs that choose a cell, and those of the reference cell, in their order on `site`.

    Cells are compared within a block on one site: a block that another site has finished is not run again, one that it
    has begun is run here whole.
    """
    done = dict[tuple[str, int], set[int]]()  # settled cells of other sites, by site and block
    for key, plan in state.plans.items():
        if plan.site != site and plan.role == CELL and state.is_settled(key) and not is_forced:
            done.setdefault((plan.site, plan.block), set()).add(plan.cell)
    elsewhere = {block for (_, block), cells in done.items() if len(cells) == len(experiment.cells)}
    runs = [run for run in experiment.cell_runs() if run.block not in elsewhere]
    return _plans(experiment, experiment.with_reference(runs), site, 0)


def confirming_plans(
    experiment: Experiment, state: State, site: str, cell: int, is_forced: bool, first: int
) -> list[Plan]:
    """The runs of the chosen cell with fresh seeds that no site has finished, or that this one has."""
    finished_elsewhere = {
        (plan.cell, plan.block)
        for key, plan in state.plans.items()
        if plan.role == CONFIRM and plan.site != site and state.is_settled(key) and not is_forced
    }
    runs = [
        run for run in experiment.confirming_runs(cell) if (run.cell, run.block) not in finished_elsewhere
    ]
    return _plans(experiment, runs, site, first)


def cells_to_run(experiment: Experiment, state: State, plans: Sequence[Plan], is_forced: bool) -> list[Cell]:
    """The cells of which a command still runs something, in their order."""
    left = {plan.cell for plan in plans if is_forced or not state.is_settled(plan.key)}
    return [experiment.cells[number] for number in sorted(left)]


def n_ended_elsewhere(state: State, site: str) -> int:
    """Runs of other sites that count as ended, without fresh ones of a chosen cell."""
    return sum(
        plan.site != site and plan.role != CONFIRM and state.is_finished(key)
        for key, plan in state.plans.items()
    )


def _plans(experiment: Experiment, runs: Sequence[PlannedRun], site: str, first: int) -> list[Plan]:
    digests: dict[tuple[int, int], str] = {}
    found = []
    for position, run in enumerate(runs, first):
        of = (run.cell, run.seed)
        if of not in digests:
            digests[of] = experiment.cells[run.cell].with_seed(run.seed).digest()
        defined = json.dumps([digests[of], site, run.role, run.number])
        key = hashlib.sha256(defined.encode()).hexdigest()[:16]
        found.append(Plan(key, position, site, run.role, run.cell, run.block, run.seed, run.number))
    return found
