"""`squall run`: one run of a scenario, or pairs of runs with and without profilers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from squall.cluster.commands.ending import EXIT_INVALID, end_by_promises, interruptible
from squall.cluster.commands.options import (
    AllowEnvOption,
    JsonOption,
    OutOption,
    RayOption,
    SeedOption,
    ServerOption,
    SetOption,
    StopWhenDecidedOption,
    VerboseOption,
    changes_of,
)
from squall.cluster.commands.printed import print_result, print_summary, typed
from squall.scenarios.errors import ScenarioError

if TYPE_CHECKING:
    from squall.scenarios.config.scenario import Scenario

_DEFAULT_PAIRS = 3


def run(
    scenario: Annotated[Path, typer.Argument(help="A scenario file.", metavar="SCENARIO.yaml")],
    out: OutOption = "runs",
    overrides: SetOption = None,
    seed: SeedOption = None,
    allow_env: AllowEnvOption = None,
    server: ServerOption = None,
    ray: RayOption = None,
    measure_overhead: Annotated[
        bool,
        typer.Option(
            "--measure-overhead",
            help="Compares runs without profilers (A) and with them (B): what profiling costs.",
        ),
    ] = False,
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=2, help="Pairs of runs of --measure-overhead.  [default: 3]")
    ] = None,
    keep_raw_report: Annotated[
        bool,
        typer.Option(
            "--keep-raw-report",
            help="Leave nsys's own report, which holds environments, on its node; say where.",
        ),
    ] = False,
    is_dry: Annotated[
        bool,
        typer.Option("--dry-run", help="Say who would run where, and what each would send and record."),
    ] = False,
    stop_when_decided: StopWhenDecidedOption = False,
    as_json: JsonOption = False,
    is_verbose: VerboseOption = False,
) -> None:
    """One run of a scenario, or pairs of them with --measure-overhead."""
    from squall.scenarios.config.loader import load_scenario

    if repeat is not None and not (measure_overhead or is_dry):
        raise ScenarioError("--repeat: counts the pairs of --measure-overhead, add that")
    changes = changes_of(overrides, seed, server, stop_when_decided)
    if keep_raw_report and not is_dry:
        changes.append("profile.keep_raw_report=true")
    loaded = load_scenario(scenario, changes, allow_env or ())
    if is_dry:
        _rehearse(loaded, ray, as_json)
    elif measure_overhead:
        _measure_overhead(loaded, out, ray, repeat or _DEFAULT_PAIRS, as_json)
    else:
        run_once(loaded, out, ray, as_json, is_verbose)


def run_once(
    scenario: Scenario,
    out: str,
    ray: str | None,
    as_json: bool,
    is_verbose: bool = False,
    ends_by_promises: bool = True,
) -> None:
    """One run of the scenario; exit code 3 if it is not VALID, and with `ends_by_promises` 99 if a promise is
    broken or more requests failed than `expect.failures` allows, 4 if a promise is undecided."""
    from squall.cluster.remote.forker import FORKER

    if ray is None:
        FORKER.begin()  # it imports while this process does
    from squall.analysis.compare.figures import BROKEN
    from squall.analysis.compare.of_run import unexpected_failures
    from squall.cluster.driver.run import run_scenario

    with interruptible() as interrupts:
        result = run_scenario(scenario, out, ray, interrupts)
    print_summary(result.summary, result.where, as_json, is_verbose)
    if result.status != "VALID":
        raise typer.Exit(EXIT_INVALID)
    summary = result.summary
    if summary is None or not ends_by_promises:
        return
    verdicts = [one.verdict for one in summary.promises or ()]
    if unexpected_failures(summary.measure.failures, summary.promises, summary.locust):
        verdicts.append(BROKEN)
    if verdicts:
        end_by_promises(verdicts)


def _rehearse(scenario: Scenario, ray: str | None, as_json: bool) -> None:
    from squall.cluster.dry_run import dry_run

    with interruptible() as interrupts:
        found = dry_run(scenario, ray, interrupts)
    print_result(found.to_json(), lambda _: "\n".join(found.lines()), as_json)


def _measure_overhead(scenario: Scenario, out: str, ray: str | None, n_pairs: int, as_json: bool) -> None:
    """Compares the scenario without profilers (A) and with them (B); exit code 3 where that is invalid."""
    from squall.analysis.compare.compared import DEFAULT_MARGIN, INVALID
    from squall.analysis.record import to_json
    from squall.analysis.report.compare_words import lines
    from squall.cluster.commands.decisions.compared_runs import PairPlan, run_pairs, without_profilers
    from squall.cluster.progress import Screen

    if scenario.profile.nsys == "off":
        Screen().step("profile.nsys is off: for what nsys costs add --set profile.nsys=auto")
    bare = without_profilers(scenario)
    names = ("without profilers", "with profilers")
    plan = PairPlan(bare, scenario, *names, n_pairs, scenario.seed, DEFAULT_MARGIN, has_one_seed=True)
    with interruptible() as interrupts:
        folder, found = run_pairs(plan, Path(out), ray, interrupts, typed())
    print_result(to_json(found), lambda _: "\n".join([*lines(found), str(folder)]), as_json)
    if found.verdict == INVALID:
        raise typer.Exit(EXIT_INVALID)
