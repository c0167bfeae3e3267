"""`squall compare`: whether B is better than A, worse, or the same, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from squall.analysis.record import to_json
from squall.cluster.commands.ending import EXIT_BROKEN, EXIT_INVALID, EXIT_UNDECIDED, interruptible
from squall.cluster.commands.options import (
    AllowEnvOption,
    JsonOption,
    RayOption,
    SetOption,
    changes_of,
    on_disk,
)
from squall.cluster.commands.printed import print_result, typed
from squall.scenarios.errors import ScenarioError
from squall.scenarios.units import parse_share

if TYPE_CHECKING:
    from squall.analysis.compare.compared import Comparison

_DEFAULT_PAIRS = 8
_SUFFIXES = (".yaml", ".yml")


def compare(
    a: Annotated[Path, typer.Argument(help="Runs (a folder), or a scenario file.", metavar="A")],
    b: Annotated[
        Path | None, typer.Argument(help="The other side; none: the same scenario file.", metavar="[B]")
    ] = None,
    margin: Annotated[
        str | None,
        typer.Option("--margin", help="Differences within it are as none: 3% or 0.03.  [default: 3%]"),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option(
            "--pairs", min=2, max=1_000, help="Pairs of runs to make of scenario files.  [default: 8]"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The first seed, the others follow it; none: that of A.")
    ] = None,
    looks: Annotated[
        int | None,
        typer.Option("--looks", help="Look so often, 1 to 5, and end once it is decided.  [default: 1]"),
    ] = None,
    overrides: SetOption = None,
    allow_env: AllowEnvOption = None,
    set_a: Annotated[
        list[str] | None,
        typer.Option("--set-a", metavar="KEY=VALUE", help="Override a key of A. Repeatable."),
    ] = None,
    set_b: Annotated[
        list[str] | None,
        typer.Option("--set-b", metavar="KEY=VALUE", help="Override a key of B. Repeatable."),
    ] = None,
    server_a: Annotated[
        str | None, typer.Option("--server-a", help="Use the Triton at this URL for A.")
    ] = None,
    server_b: Annotated[
        str | None, typer.Option("--server-b", help="Use the Triton at this URL for B.")
    ] = None,
    swap_gpus: Annotated[
        bool, typer.Option("--swap-gpus", help="From the middle on each side has the other's GPUs.")
    ] = False,
    ray: RayOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder that takes a folder with all runs and files; of runs: with the files.",
            callback=on_disk,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Is B better than A, worse or the same, and why? Of runs in pairs, or of scenarios that it runs."""
    from squall.analysis.compare.compared import DEFAULT_MARGIN
    from squall.cluster.commands.decisions.compared_runs import PairPlan, run_pairs
    from squall.scenarios.config.loader import load_scenario
    from squall.scenarios.config.overrides import kept_override
    from squall.scenarios.config.rules import refuse_as_factor

    margin_ratio = None if margin is None else parse_margin(margin)
    sides = [side for side in (a, b) if side is not None]
    are_files = [side.suffix in _SUFFIXES and not side.is_dir() for side in sides]
    if any(are_files) and not all(are_files):
        raise ScenarioError("compare: A and B are both scenario files, or both runs")
    changes = {"a": changes_of(set_a, None, server_a), "b": changes_of(set_b, None, server_b)}
    if not are_files[0]:
        own = [pairs, seed, ray, overrides, *changes.values(), swap_gpus]
        if any(own):
            raise ScenarioError(
                "compare: --pairs, --seed, --ray, --swap-gpus, --set and --server are for scenario files"
            )
        _of_runs(a, b, margin_ratio, looks, out, as_json)
        return
    if b is None and changes["a"] == changes["b"]:
        raise ScenarioError(
            f"compare: {a} is one side: name the other, or what differs by --set-b or --server-b"
        )
    scenarios = [
        load_scenario(path, [*(overrides or []), *changes[side]], allow_env or ())
        for path, side in ((a, "a"), (b or a, "b"))
    ]
    try:
        refuse_as_factor(scenarios)
    except ValueError as error:
        raise ScenarioError(f"compare: {error}") from error
    names = [
        " ".join([str(path), *map(kept_override, changes[side])]) for path, side in ((a, "a"), (b or a, "b"))
    ]
    plan = PairPlan(
        scenarios[0], scenarios[1], names[0], names[1], pairs or _DEFAULT_PAIRS,
        scenarios[0].seed if seed is None else seed, DEFAULT_MARGIN if margin_ratio is None else margin_ratio,
        1 if looks is None else looks, swap_gpus,
    )  # fmt: skip
    with interruptible() as interrupts:
        folder, found = run_pairs(plan, out or Path("runs"), ray, interrupts, typed())
    _end(found, folder, as_json)


def parse_margin(text: str) -> float:
    """`3%` or `0.03` as a ratio between 0 and 1. Raises ScenarioError."""
    try:
        value = parse_share(text)
    except ValueError as error:
        raise ScenarioError(f"--margin: {error}") from error
    if not 0.0 < value < 1.0:
        raise ScenarioError(f"--margin: {text} is not between 0 and 100 %: use 3% or 0.03")
    return value


def _of_runs(
    a: Path, b: Path | None, margin_ratio: float | None, looks: int | None, out: Path | None, as_json: bool
) -> None:
    """Margin and looks that are not stated are those of the folder, where a comparison made it."""
    from squall.analysis.compare.compared import DEFAULT_MARGIN
    from squall.cluster.commands.decisions.compared_folders import compare_folders, made_with, sides_of
    from squall.cluster.commands.decisions.compared_runs import write_files

    folders = sides_of(a, b)
    is_stated = margin_ratio is not None and looks is not None
    own_margin, own_looks = (DEFAULT_MARGIN, 1) if b is not None or is_stated else made_with(a)
    found = compare_folders(
        *folders, own_margin if margin_ratio is None else margin_ratio, own_looks if looks is None else looks
    )
    if out is not None:
        write_files(out, found, [typed()])
    _end(found, out, as_json)


def _end(found: Comparison, folder: Path | None, as_json: bool) -> None:
    """Prints the comparison, and ends the command by its verdict."""
    from squall.analysis.compare.change import UNDECIDED
    from squall.analysis.compare.compared import INVALID
    from squall.analysis.compare.metric_changes import WORSE
    from squall.analysis.report.compare_words import lines

    where = [] if folder is None else [str(folder)]
    print_result(to_json(found), lambda _: "\n".join([*lines(found), *where]), as_json)
    exits = {INVALID: EXIT_INVALID, WORSE: EXIT_BROKEN, UNDECIDED: EXIT_UNDECIDED}
    if found.verdict in exits:
        raise typer.Exit(exits[found.verdict])
