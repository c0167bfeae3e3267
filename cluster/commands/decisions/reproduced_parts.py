"""A published experiment from its first part to its page: each part a sweep of its own, or the probe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from squall.analysis.storage.intact import content_errors_of
from squall.analysis.studies.published_page import reproduction_page
from squall.analysis.studies.published_result import Reproduction, RunFigures, evaluate
from squall.cluster.commands.decisions.probe_part import probe_figures_so_far, run_probe_part
from squall.cluster.commands.decisions.reproduced_folder import (
    Folder,
    begin,
    hosts,
    part_folder,
    runs_so_far,
    take_up,
)
from squall.cluster.commands.decisions.runnable_cells import refuse_unrunnable
from squall.cluster.commands.decisions.site import Site, this_site
from squall.cluster.commands.decisions.sweep_rehearsal import rehearse
from squall.cluster.commands.decisions.sweeper import Asked, Surroundings, run_sweep
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import held, write_text
from squall.cluster.progress import Screen
from squall.scenarios.errors import ScenarioError, SquallError
from squall.scenarios.published.experiment import PublishedExperiment
from squall.scenarios.records import Frozen

JSON_FILE, PAGE_FILE = "reproduction.json", "reproduction.html"


class Wanted(Frozen):
    """What the command was asked: where a new folder goes, the folder that is taken up again, the Ray cluster that is
    joined, the command as it was typed, without `--resume`, and the parts that are run, none: all."""

    out: Path
    resume: Path | None
    ray_address: str | None
    command: str
    parts: tuple[str, ...] = ()

    def going_on(self, folder: Path) -> str:
        """The command that takes up the experiment in `folder`."""
        return f"{self.command} --resume {quote(str(folder))}"


def reproduce_experiment(
    experiment: PublishedExperiment,
    wanted: Wanted,
    interrupts: Interrupts,
    around: Surroundings | None = None,
) -> tuple[Path, Reproduction]:
    """Runs what is not finished; the folder and what was found. However it ends, the page of what was run is written.

    Raises ScenarioError before the first run for what cannot be run, and what `run_sweep` and `run_probe_part` raise.
    """
    screen = Screen()
    _refuse_strange_parts(experiment, wanted.parts)
    path = wanted.resume
    if path is None:
        with interrupts.allowed():
            for part in experiment.parts.values():
                refuse_unrunnable(part.cells, experiment.path)
        path = begin(experiment, wanted.out).path
    with held(path, is_shared=bool(wanted.parts)):  # two commands may run a part each
        folder = take_up(experiment, path)
        return path, _run_parts(experiment, wanted, folder, interrupts, around, screen)


def _run_parts(
    experiment: PublishedExperiment,
    wanted: Wanted,
    folder: Folder,
    interrupts: Interrupts,
    around: Surroundings | None,
    screen: Screen,
) -> Reproduction:
    found: Reproduction | None = None
    try:
        for name, part in experiment.parts.items():
            if wanted.parts and name not in wanted.parts:
                continue
            screen.step(f"{experiment.file.name}, {_about(experiment, name)}", "bold")
            asked = Asked(
                out=folder.path,
                resume=None,
                ray_address=wanted.ray_address,
                is_forced=False,
                path=experiment.path,
                command=wanted.going_on(folder.path),
                at=part_folder(folder.path, name),
            )
            run_sweep(part, asked, interrupts, around)
            found = write_found(experiment, folder, wanted)
            interrupts.end_if_asked()
        if experiment.file.probe is not None:
            run_probe_part(experiment, folder.path, interrupts)
            found = write_found(experiment, folder, wanted)
    except (SquallError, KeyboardInterrupt):
        try:
            write_found(experiment, folder, wanted)
        except SquallError as error:  # what ended it is told, not this
            screen.step(f"the page of what was run is not written: {error}")
        screen.step(f"what was run: {folder.path}; {wanted.going_on(folder.path)} goes on with it")
        raise
    assert found is not None, "an experiment has parts or a probe"
    return found


def _refuse_strange_parts(experiment: PublishedExperiment, parts: Sequence[str]) -> None:
    for name in parts:
        if name not in experiment.parts:
            there = f"there are {', '.join(experiment.parts)}" if experiment.parts else "it is a probe"
            raise ScenarioError(f"--part {name}: {experiment.file.name} has no such part, {there}")


def write_found(experiment: PublishedExperiment, folder: Folder, wanted: Wanted) -> Reproduction:
    """What the runs so far say, as `reproduction.json` and `reproduction.html`. Raises StoreError."""
    with content_errors_of(str(folder.path)):
        found = evaluate(
            experiment.file,
            _runs(experiment, folder),
            "; then ".join(hosts(experiment, folder)) or this_site(wanted.ray_address).text,
            folder.date,
            wanted.command,
            experiment.is_small,
        )
        write_text(folder.path / JSON_FILE, json.dumps(found.to_json(), indent=1, allow_nan=False) + "\n")
        write_text(folder.path / PAGE_FILE, reproduction_page(found))
    return found


def plan_lines(experiment: PublishedExperiment, site: Site, parts: Sequence[str] = ()) -> list[str]:
    """What would be run, part by part, for a screen; `parts`: these alone, none: all. Raises ScenarioError for a part
    that there is not, and for what cannot be run."""
    _refuse_strange_parts(experiment, parts)
    lines = [experiment.file.title]
    seconds = 0.0
    for name, part in experiment.parts.items():
        if parts and name not in parts:
            continue
        found = rehearse(part, None, experiment.path, site, False)
        seconds += found.seconds_left
        lines += [_about(experiment, name), *found.lines()]
    if experiment.parts:
        lines.append(f"in all {seconds / 60:.0f} minutes")
    else:
        lines.append("one probe of the GPU, without a server")
    return lines


def _about(experiment: PublishedExperiment, part: str) -> str:
    """What the runs of a part are; a rehearsal has other lengths and seeds."""
    about = "a rehearsal in small sizes" if experiment.is_small else experiment.file.parts[part].about
    return f"{part}: {about}"


def _runs(experiment: PublishedExperiment, folder: Folder) -> list[RunFigures]:
    if experiment.file.probe is not None:
        return probe_figures_so_far(folder.path)
    return runs_so_far(experiment, folder)
