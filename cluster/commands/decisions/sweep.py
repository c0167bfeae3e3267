"""`squall sweep`: the cells of an experiment, over several seeds, in an order that does not take sides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from squall.cluster.commands.ending import EXIT_INVALID, interruptible
from squall.cluster.commands.options import AllowEnvOption, JsonOption, RayOption, RunsOption
from squall.cluster.commands.printed import print_result


def sweep(
    experiment: Annotated[Path, typer.Argument(help="An experiment file.", metavar="EXPERIMENT.yaml")],
    out: RunsOption = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with the sweep in this folder.", metavar="FOLDER")
    ] = None,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Say the cells, their order and the minutes.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again what is finished, too.")] = False,
    allow_env: AllowEnvOption = None,
    ray: RayOption = None,
    as_json: JsonOption = False,
) -> None:
    """Runs every cell of an experiment with several seeds: which is best, and which cannot be told apart from it?"""
    from squall.cluster.commands.decisions.sweep_results import screen_lines, sweep_json
    from squall.cluster.commands.decisions.sweeper import Asked, run_sweep
    from squall.scenarios.experiment import load_experiment

    loaded = load_experiment(experiment, allow_env or ())
    if is_dry:
        from squall.cluster.commands.decisions.site import this_site
        from squall.cluster.commands.decisions.sweep_rehearsal import rehearse

        rehearsal = rehearse(loaded, resume, experiment, this_site(ray), force)
        print_result(rehearsal.to_json(), lambda _: "\n".join(rehearsal.lines()), as_json)
        return
    with interruptible() as interrupts:
        folder, found = run_sweep(loaded, Asked(out, resume, ray, force, experiment), interrupts)
    print_result(sweep_json(found), lambda _: "\n".join([*screen_lines(found), str(folder)]), as_json)
    if any(not cell.n_valid for cell in found.cells):
        raise typer.Exit(EXIT_INVALID)
