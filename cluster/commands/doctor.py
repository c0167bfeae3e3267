"""`squall doctor`: what each node has and lacks for a run."""

from __future__ import annotations

import typer

from squall.cluster.commands.ending import EXIT_ERROR, interruptible
from squall.cluster.commands.options import JsonOption, RayOption, ServerOption
from squall.cluster.commands.printed import print_result


def doctor(ray: RayOption = None, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """What each node has and lacks for a run, and the command that mends it; does a server record batches."""
    from squall.cluster.commands.diagnosis import diagnose, render

    with interruptible() as interrupts:
        result = diagnose(ray, interrupts, server)
    print_result(result, lambda width: render(result, width), as_json)
    if not result["can_run"]:
        raise typer.Exit(EXIT_ERROR)
