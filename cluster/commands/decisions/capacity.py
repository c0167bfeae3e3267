"""`squall capacity`: the most load that a deployment carries within its promises."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from squall.cluster.commands.ending import EXIT_INVALID, EXIT_UNDECIDED, interruptible
from squall.cluster.commands.options import (
    AllowEnvOption,
    JsonOption,
    RayOption,
    RunsOption,
    ServerOption,
    SetOption,
    changes_of,
)
from squall.cluster.commands.printed import print_result, typed
from squall.scenarios.errors import ScenarioError
from squall.scenarios.units import NS_PER_S, format_duration, parse_rate, parse_share

if TYPE_CHECKING:
    from squall.analysis.studies.capacity_answer import Settings
    from squall.scenarios.config.scenario import PhaseConfig, Scenario

_MOST_TIMES_START = 100.0
SHORTEST_MEASURED_NS = NS_PER_S
"""Workers are sampled once a second: a shorter phase may hold no sample, so that nobody knows if the tool kept up."""
_LEAST_PRECISION, _MOST_PRECISION = 0.001, 0.5
_EXITS = {"found": 0, "client limit": EXIT_INVALID, "not measured": EXIT_INVALID}


def capacity(
    scenario: Annotated[Path, typer.Argument(help="A scenario file.", metavar="SCENARIO.yaml")],
    promise: Annotated[
        list[str] | None,
        typer.Option(
            "--promise",
            metavar="CONDITION",
            help="p(95)<50ms, or failures: rate<0.1%. Repeatable; beside the scenario's.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=200, help="Schedules, each with an edge of its own.")
    ] = 5,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The first seed, the others follow it; none: the scenario's.")
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="Of the edge of a seed, and of a step down.")
    ] = "2%",
    start: Annotated[
        str | None,
        typer.Option("--start", metavar="RATE", help="Where to begin: 300/s; none: the scenario's rate."),
    ] = None,
    most: Annotated[
        str | None,
        typer.Option("--most", metavar="RATE", help="No load above it; none: 100 times the start."),
    ] = None,
    low: Annotated[
        str,
        typer.Option("--low", help="Probe at this share of the first edge: is less load kept too? 0: none."),
    ] = "25%",
    scale: Annotated[
        Literal["time", "amplitude"],
        typer.Option(
            "--scale", help="One schedule faster and slower, or other rates over the same durations."
        ),
    ] = "time",
    gpus: Annotated[bool, typer.Option("--gpus", help="All servers, one, and one down.")] = False,
    out: RunsOption = Path("runs"),
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FOLDER", help="Go on with a search that was cut off.")
    ] = None,
    overrides: SetOption = None,
    allow_env: AllowEnvOption = None,
    server: ServerOption = None,
    ray: RayOption = None,
    as_json: JsonOption = False,
) -> None:
    """The most load within the promises, over several seeds, and a load that is safe."""
    from squall.analysis.report.templates import decision
    from squall.analysis.studies.capacity_answer import scaling
    from squall.cluster.commands.decisions.capacity_search import CapacitySearch, resumed_rows
    from squall.cluster.commands.decisions.fewer_servers import refuse_without_gpus
    from squall.cluster.driver.run import run_scenario
    from squall.cluster.measured import Measurer, folder_of_runs, gather_broken_off, held
    from squall.cluster.progress import Screen
    from squall.scenarios.config.loader import load_scenario

    plain = load_scenario(scenario, changes_of(overrides, seed, server), allow_env or ())
    loaded = with_promises(plain, promise or (), str(scenario))
    if gpus:
        refuse_without_gpus(loaded)
    settings = settings_of(loaded, scale, seeds, precision, start, most, low)
    folder = resume if resume is not None else folder_of_runs(out, loaded.name, "capacity")
    command = typed()
    with interruptible() as interrupts, held(folder):
        rows = resumed_rows(folder, settings) if resume is not None else []
        measurer = Measurer(folder, ray, interrupts, run_scenario, Screen())
        if resume is not None:
            gather_broken_off(folder, measurer.screen, interrupts)
        found = CapacitySearch(loaded, settings, measurer, command, rows)
        answers = found.run(gpus)
    lines = decision("capacity_screen", answers, settings, scaling(answers))
    print_result(found.to_json(), lambda _: "\n".join([*lines, str(folder)]), as_json)
    code = _EXITS.get(answers[0].kind, EXIT_UNDECIDED)
    if code:
        raise typer.Exit(code)


def with_promises(scenario: Scenario, promises: Sequence[str], origin: str) -> Scenario:
    """The scenario with further promises, each `CONDITION` of the response time or `METRIC{TAGS}: CONDITION`; none ends
    a load early, since a level's figures are of all of it.

    Raises ScenarioError for what is no promise, for none at all, and for those that are made at a load.
    """
    from squall.scenarios.config.loader import scenario_from_mapping
    from squall.scenarios.experiment import without_early_end

    mapping: dict[str, Any] = scenario.to_mapping()
    held = {key: list(conditions) for key, conditions in (mapping.get("promises") or {}).items()}
    for text in promises:
        key, condition = _promise_parts(text)
        held.setdefault(key, []).append(condition)
    if not held:
        raise ScenarioError(
            f"{origin}: promises nothing: add --promise 'p(95)<50ms', or promises to the scenario"
        )
    stated = scenario_from_mapping({**mapping, "promises": held}, "--promise" if promises else origin)
    found = without_early_end(stated)
    for one in found.promises or ():
        if one.at_hz is not None:
            raise ScenarioError(f"{origin}: {one.text}: capacity looks for the load, leave out at")
    return found


def _promise_parts(text: str) -> tuple[str, str]:
    """Key and condition: the metric, response where there is none."""
    found = re.fullmatch(r"\s*([A-Za-z_]+\s*(?:\{[^}]*\})?)\s*(?::\s*|\s+)(\S.*)", text)
    if found is None or found[1].strip() in ("p", "med", "max"):
        return "response", text.strip()
    return found[1].strip(), found[2].strip()


def settings_of(
    scenario: Scenario,
    scale: Literal["time", "amplitude"],
    seeds: int,
    precision: str,
    start: str | None,
    most: str | None,
    low: str,
) -> Settings:
    """What is searched. Raises ScenarioError for options that cannot be, a closed loop, and a load without a rate."""
    from fractions import Fraction

    from squall.analysis.studies.capacity_answer import Settings
    from squall.analysis.wording import rate_text
    from squall.scenarios.plan.rates import mean_rate_hz, scaled_scenario
    from squall.scenarios.run_plan import plan_run

    if scenario.load is not None:
        raise ScenarioError(
            "capacity: users of Locust wait for their replies and have no rate to search: sweep over load.locust.users"
            " (docs/sweep.md)"
        )
    if scenario.is_closed:
        raise ScenarioError(
            "capacity: a closed loop follows its server and has no rate to search: use open-loop arrivals"
        )
    scaled_scenario(scenario, Fraction(1, 2), scale)
    base_hz = mean_rate_hz(scenario)
    if base_hz <= 0.0:
        raise ScenarioError("capacity: the measured phases have no arrivals, so there is no rate to scale")
    start_hz = _rate("--start", start) or base_hz
    reach_hz, why = _reach(scenario, scale, base_hz)
    if start_hz > reach_hz:
        raise ScenarioError(f"capacity: at {rate_text(start_hz)} {why}, or --start lower")
    asked_hz = _rate("--most", most)
    if asked_hz is not None and asked_hz > reach_hz:
        raise ScenarioError(f"--most: above {rate_text(reach_hz)} {why}")
    most_hz = asked_hz or min(_MOST_TIMES_START * start_hz, reach_hz)
    if most_hz < start_hz:
        if start is not None:
            raise ScenarioError(f"--most: {most} is below --start {start}")
        start_hz = most_hz
    share = _share("--precision", precision)
    if not _LEAST_PRECISION <= share <= _MOST_PRECISION:
        raise ScenarioError(f"--precision: {precision} is not from 0.1% to 50%")
    low_ratio = _share("--low", low)
    if not 0.0 <= low_ratio <= 0.5:
        raise ScenarioError(f"--low: {low} is not from 0 to 50%")
    return Settings(
        scenario=scenario.name,
        scenario_digest=scenario.digest(),
        promises=tuple(one.text for one in scenario.promises or ()),
        scale=scale,
        base_hz=base_hz,
        n_seeds=seeds,
        first_seed=scenario.seed,
        precision=share,
        start_hz=start_hz,
        most_hz=most_hz,
        most_reason=f"no load above {rate_text(most_hz)} was tried: there {why}"
        if most_hz == reach_hz
        else "",
        low_ratio=low_ratio,
        queue_delay_ns=max(one.model.queue_delay_ns for one in scenario.models),
        schedule_sha256=plan_run(scenario, scenario.servers).sha256(),
    )


def _reach(scenario: Scenario, scale: str, base_hz: float) -> tuple[float, str]:
    """Up to which rate every measured phase can be measured, and why not beyond; infinite where durations stay."""
    if scale != "time":
        return math.inf, ""

    def least_ns(phase: PhaseConfig) -> int:
        scopes = [one.scope for one in scenario.promises or () if one.scope.phase in (None, phase.name)]
        return max([SHORTEST_MEASURED_NS, *(one.window_ns or 0 for one in scopes)])

    measured = [one for one in scenario.phases if one.kind == "measure"]
    first = min(measured, key=lambda one: one.duration_ns / least_ns(one))
    why = (
        f"phase {first.name!r}, {format_duration(first.duration_ns)} at the scenario's own rate, lasts less than"
        f" {format_duration(least_ns(first))}, too short to be measured: make it longer"
    )
    return base_hz * first.duration_ns / least_ns(first), why


def _rate(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = parse_rate(text)
    except ValueError as error:
        raise ScenarioError(f"{option}: {error}") from error
    if found <= 0.0:
        raise ScenarioError(f"{option}: {text} must be above 0")
    return found


def _share(option: str, text: str) -> float:
    try:
        return parse_share(text)
    except ValueError as error:
        raise ScenarioError(f"{option}: {error}") from error
