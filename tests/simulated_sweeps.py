"""Sweeps of simulated servers: first come first served, a machine that drifts from run to run, requests that vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from squall.analysis.studies.sweep_result import Design, Sweep, evaluate
from squall.analysis.studies.sweep_rows import CELL, DONE, Figures, SweepRow
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.experiment import Cell, Experiment, ExperimentFile, Order, PlannedRun
from tests.simulated_servers import fifo_response, gamma_arrivals

MEAN_S = 0.010


@dataclass(frozen=True)
class Machine:
    """`slower`: of each cell, its service time over that of an undisturbed one, 1 where none stands. The service time
    grows by `drift` with every run of the sweep, is off by `wobble` from run to run and by `jitter` from request to
    request."""

    slower: Mapping[int, float]
    drift: float = 0.0
    wobble: float = 0.01
    jitter: float = 0.10
    load: float = 0.8
    cv: float = 1.0
    n: int = 6_000

    def figures(self, run: PlannedRun, position: int, trial: int) -> Figures:
        """Of one run: arrivals by its seed, all else by trial and position."""
        arrivals = (
            gamma_arrivals(np.random.default_rng([trial, run.seed]), self.n, self.cv) * MEAN_S / self.load
        )
        rng = np.random.default_rng([trial, position, 1])
        mean_s = (
            MEAN_S
            * self.slower.get(run.cell, 1.0)
            * (1 + self.drift) ** position
            * np.exp(rng.normal(0, self.wobble))
        )
        response = fifo_response(arrivals, mean_s * np.maximum(0.1, rng.normal(1, self.jitter, self.n)))
        p50, p95, p99 = (
            float(np.quantile(response, q, method="inverted_cdf")) * 1e9 for q in (0.5, 0.95, 0.99)
        )
        last_s = float(np.max(arrivals + response))
        return Figures(self.n, 0, p50, p95, p99, self.n / last_s, self.load / MEAN_S)


def experiment_of(
    digests: Sequence[str], seed: int, repeats: int, order: Order, reference_every: int | None = None
) -> Experiment:
    """One of cells that have no scenario; the first is run again after every so many."""
    cells = tuple(Cell(digest, {}, cast("Scenario", None), digest) for digest in digests)
    reference = None if reference_every is None else {"cell": {"number": 0}, "every": reference_every}
    file = ExperimentFile.model_validate(
        {"scenario": "none.yaml", "repeats": repeats, "order": order, "reference": reference}
    )
    return Experiment("simulated", cells, seed, file, 0)


def simulated_sweep(
    machine: Machine, n_cells: int, repeats: int, order: Order, trial: int, reference_every: int | None = None
) -> Sweep:
    """What a sweep of that machine finds."""
    names = tuple(f"cell {number}" for number in range(n_cells))
    experiment = experiment_of(names, 1_000 * trial, repeats, order, reference_every)
    runs = experiment.with_reference(experiment.cell_runs())
    rows = [
        SweepRow(
            key=str(position), position=position, block=run.block, role=run.role, cell=run.cell, label=names[run.cell],
            seed=run.seed, attempt=1, outcome=DONE, status="VALID", reason="", run="", site="here", host="one",
            wall_s=1.0, figures=machine.figures(run, position, trial),
        )
        for position, run in enumerate(runs)
    ]  # fmt: skip
    assert sum(row.role == CELL for row in rows) == n_cells * repeats
    cells = tuple((name, {"name": name}) for name in names)
    return evaluate(
        Design("simulated", cells, ("p95", "throughput"), order, "every run", repeats, 0, len(rows)), rows
    )
