"""`squall reproduce`: a published experiment, run again here, and its figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from squall.cluster.commands.ending import EXIT_INVALID, interruptible
from squall.cluster.commands.options import AllowEnvOption, JsonOption, RayOption, RunsOption
from squall.cluster.commands.printed import print_result


def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(help="e1, e1-l, e2, e3, e4, e5, or a file; none: lists them.", metavar="EXPERIMENT"),
    ] = None,
    out: RunsOption = Path("runs"),
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
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="First seed of each part, in place of the scenario's.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, help="At most so many seeds of each part.")
    ] = None,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Say the runs, their order, the minutes.")
    ] = False,
    allow_env: AllowEnvOption = None,
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
        _print(titles, [f"{name:<5} {title}" for name, title in titles.items()], as_json)
        return
    from squall.analysis.studies.published_page import screen_lines
    from squall.cluster.commands.decisions.reproduced_parts import Wanted, plan_lines, reproduce_experiment
    from squall.cluster.commands.decisions.site import this_site

    loaded = load_published(experiment, is_small, seed, repeats, allow_env or ())
    if is_dry:
        lines = plan_lines(loaded, this_site(ray), tuple(part or ()))
        _print({"lines": lines}, lines, as_json)
        return
    stated = {"--seed": seed, "--repeats": repeats}
    options = [f"{option} {value}" for option, value in stated.items() if value is not None]
    command = " ".join(["squall reproduce", quote(experiment), *(["--small"] if is_small else []), *options])
    with interruptible() as interrupts:
        folder, found = reproduce_experiment(
            loaded, Wanted(out, resume, ray, command, tuple(part or ())), interrupts
        )
    _print(found.to_json(), [*screen_lines(found), str(folder)], as_json)
    if not found.runs or found.without_valid_run:
        raise typer.Exit(EXIT_INVALID)


def _print(result: Mapping[str, Any], lines: Sequence[str], as_json: bool) -> None:
    print_result(result, lambda _: "\n".join(lines), as_json)
