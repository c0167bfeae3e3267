"""What a sweep found, as files in its folder."""

from __future__ import annotations

import json
from pathlib import Path

from squall.analysis.record import to_json
from squall.analysis.studies.sweep_page import sweep_page
from squall.analysis.studies.sweep_result import Design, Sweep, evaluate
from squall.analysis.studies.sweep_tables import as_csv, as_parquet, cells_table, runs_table
from squall.analysis.studies.sweep_words import answer, cell_lines, facts
from squall.cluster.commands.decisions.sweep_journal import State
from squall.cluster.measured import write_bytes, write_text
from squall.scenarios.experiment import Experiment


def design_of(experiment: Experiment, n_planned: int) -> Design:
    """What the experiment is, for its findings."""
    running = [not cell.scenario.is_started for cell in experiment.cells]
    restart = "no run: it runs already" if all(running) else "every run" if not any(running) else (
        "every run, but where server.url names one")  # fmt: skip
    return Design(
        name=experiment.name,
        cells=tuple((cell.label, cell.factors) for cell in experiment.cells),
        objectives=experiment.file.objectives,
        order=experiment.file.order,
        restart=restart,
        repeats=experiment.file.repeats,
        seed=experiment.seed,
        n_planned=n_planned,
        reference=experiment.reference,
    )


def found_by(experiment: Experiment, state: State, n_planned: int) -> Sweep:
    """The findings of the rows in a journal."""
    return evaluate(design_of(experiment, n_planned), state.all_rows())


def write_results(folder: Path, experiment: Experiment, sweep: Sweep, command: str) -> None:
    """Tables, `sweep.json` and `sweep.html`, each whole or not at all. Raises StoreError."""
    for name, table in (
        ("runs", runs_table(sweep, experiment.factors)),
        ("cells", cells_table(sweep, experiment.factors)),
    ):
        write_bytes(folder / f"{name}.parquet", as_parquet(table))
        write_bytes(folder / f"{name}.csv", as_csv(table))
    write_text(folder / "sweep.json", json.dumps(sweep_json(sweep), indent=2, allow_nan=False) + "\n")
    write_text(folder / "sweep.html", sweep_page(sweep, command))


def sweep_json(sweep: Sweep) -> dict[str, object]:
    """What `sweep.json` holds: the answer in words, then all of `Sweep`."""
    return {"answer": answer(sweep), "facts": facts(sweep), **to_json(sweep)}


def screen_lines(sweep: Sweep) -> list[str]:
    """The screen: a line for each cell, best first, what it rests on, and last the answer."""
    return [*cell_lines(sweep), *facts(sweep), answer(sweep)]
