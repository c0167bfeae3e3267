"""`squall reproduce`: a published experiment, run again here, and its figures beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from squall.cluster.commands.ending import EXIT_INVALID, interruptible
from squall.cluster.commands.options import JsonOption, RayOption
from squall.cluster.commands.printed import print_result


def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(help="e1, e1-l, e2, e3, e4, e5, or a file; none: lists them.", metavar="EXPERIMENT"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder that takes a folder with all runs.")] = Path(
        "runs"
    ),
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Go on with the experiment in this folder.", metavar="FOLDER"),
    ] = None,
    is_small: Annotated[
        bool,
        typer.Option("--small", help="A rehearsal on the CPU, in small sizes: its figures mean nothing."),
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="Run this part alone; --resume runs others later. Repeatable."),
    ] = None,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Say the runs, their order, the minutes.")
    ] = False,
    ray: RayOption = None,
    as_json: JsonOption = False,
) -> None:
    """Runs a published experiment again, and puts its figures beside ours: where do they agree, and why not?"""
    from squall.scenarios.published.experiment import bundled_names, load_published

    if experiment is None:
        if resume is not None or part or is_dry or is_small:
            raise typer.BadParameter(
                "name the experiment, as in `squall reproduce e1`", param_hint="EXPERIMENT"
            )
        titles = {name: load_published(name).file.title for name in bundled_names()}
        print_result(
            titles, lambda _: "\n".join(f"{name:<5} {title}" for name, title in titles.items()), as_json
        )
        return
    from squall.cluster.commands.decisions.sweeps.site import this_site
    from squall.cluster.commands.reproduce.running import Wanted, plan_lines, reproduce_experiment

    loaded = load_published(experiment, is_small)
    if is_dry:
        lines = plan_lines(loaded, this_site(ray), tuple(part or ()))
        print_result({"lines": lines}, lambda _: "\n".join(lines), as_json)
        return
    command = " ".join(["squall reproduce", experiment, *(["--small"] if is_small else [])])
    with interruptible() as interrupts:
        folder, found = reproduce_experiment(
            loaded, Wanted(out, resume, ray, command, tuple(part or ())), interrupts
        )
    print_result(found.to_json(), lambda _: "\n".join([*found.lines(), str(folder)]), as_json)
    if found.uncounted or not found.is_measured:
        raise typer.Exit(EXIT_INVALID)
