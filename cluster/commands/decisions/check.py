"""`squall check`: whether a scenario's promises are kept, over several seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from squall.analysis.record import to_json
from squall.cluster.commands.ending import end_by_promises, interruptible
from squall.cluster.commands.options import (
    AllowEnvOption,
    JsonOption,
    RayOption,
    RunsOption,
    ServerOption,
    SetOption,
    StopWhenDecidedOption,
    changes_of,
)
from squall.cluster.commands.printed import print_result, typed
from squall.scenarios.errors import ScenarioError


def check(
    scenario: Annotated[Path, typer.Argument(help="A scenario file.", metavar="SCENARIO.yaml")],
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=1_000, help="Runs, each of a seed of its own.")
    ] = 8,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The first seed, the others follow it; none: the scenario's.")
    ] = None,
    out: RunsOption = Path("runs"),
    overrides: SetOption = None,
    allow_env: AllowEnvOption = None,
    server: ServerOption = None,
    ray: RayOption = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here too.")] = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write Markdown here too.")] = None,
    undecided: Annotated[
        Literal["pass", "fail"] | None,
        typer.Option("--undecided", help="End as if kept, or broken, where it is undecided."),
    ] = None,
    stop_when_decided: StopWhenDecidedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Runs a scenario with several seeds: are its promises kept, broken or undecided?"""
    from squall.analysis.compare.checked import lines
    from squall.analysis.compare.figures import BROKEN, KEPT, UNDECIDED
    from squall.cluster.commands.decisions.seeds import run_seeds
    from squall.scenarios.config.loader import load_scenario

    loaded = load_scenario(scenario, changes_of(overrides, seed, server, stop_when_decided), allow_env or ())
    if loaded.promises is None:
        raise ScenarioError(f"{scenario}: promises nothing: add promises, such as response: p(95)<50ms")
    with interruptible() as interrupts:
        copies = {"junit": junit, "markdown": markdown}
        again = typed()
        folder, checked = run_seeds(loaded, out, ray, interrupts, seeds, copies, again=[again])
    print_result(to_json(checked), lambda _: "\n".join([*lines(checked), str(folder)]), as_json)
    verdict = checked.verdict
    if verdict == UNDECIDED and undecided is not None:
        verdict = KEPT if undecided == "pass" else BROKEN
    end_by_promises([verdict])
