"""The probe of a published experiment: run directories until one is VALID, and what they say."""

from __future__ import annotations

from pathlib import Path

from squall.analysis.storage.intact import content_errors_of
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.gpu_probe import probe_figures
from squall.analysis.studies.published_result import LOST, VALID, RunFigures
from squall.analysis.studies.sweep_rows import MOST_ATTEMPTS
from squall.cluster.commands.decisions.probe_run import probe_run
from squall.cluster.commands.decisions.reproduced_folder import part_folder
from squall.cluster.interrupts import Interrupts
from squall.scenarios.errors import SquallError, StoreError
from squall.scenarios.published.experiment import PublishedExperiment

PART = "probe"
SEED = 1
UNDER = {"operator": "nothing, then torch.profiler", "pipeline": "CUDA events"}
"""What the figures of a probe were measured under, by its kind."""


def run_probe_part(experiment: PublishedExperiment, folder: Path, interrupts: Interrupts) -> None:
    """Runs it where no VALID run of it can be read; one that is not VALID once more. Raises what `probe_run` raises."""
    assert experiment.probe is not None
    path = part_folder(folder, PART)
    for _ in range(MOST_ATTEMPTS):
        if any(run.is_valid for run in probe_figures_so_far(folder)):
            return
        interrupts.end_if_asked()
        probe_run(experiment.probe, path, experiment.file.name, SEED, interrupts)


def probe_figures_so_far(folder: Path) -> list[RunFigures]:
    """Rows of every run of it, in their order; of a run that has none one without figures."""
    return [
        one
        for attempt, (run_dir, status, reason) in enumerate(_sealed(folder), 1)
        for one in _rows(run_dir, attempt, status, reason)
    ]


def _rows(run_dir: Path, attempt: int, status: str, reason: str) -> list[RunFigures]:
    try:
        with content_errors_of(run_dir.name):
            rows = probe_figures(run_dir)
            probe = RunStore.open(run_dir).manifest.probe
            under = "" if probe is None else UNDER[str(probe["kind"])]
    except SquallError as error:
        if status == VALID:
            status, reason = LOST, f"{run_dir.name} cannot be read any more: {error}"
        return [RunFigures(PART, "", SEED, attempt, status, reason or str(error), "", run_dir.name, {})]
    return [
        RunFigures(PART, row, SEED, attempt, status, reason, under, run_dir.name, figures)
        for row, figures in rows.items()
    ]


def _sealed(folder: Path) -> list[tuple[Path, str, str]]:
    """Run directories in the order of their making, with status and first reason; those not sealed are left out."""
    found = []
    for path in sorted((folder / PART).glob("*/manifest.json"), key=lambda one: one.stat().st_mtime_ns):
        try:
            manifest = RunStore.open(path.parent).manifest
        except StoreError:
            continue
        verdict = manifest.verdict
        if verdict is not None:
            found.append((path.parent, verdict.status, next(iter(verdict.reasons), "")))
    return found
