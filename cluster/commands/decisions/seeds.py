"""Runs of one scenario with seeds that follow one another, and the verdict on its promises."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from squall.analysis.compare.checked import Checked, CheckedRun, evaluate, junit, markdown
from squall.analysis.compare.figures import BROKEN
from squall.analysis.compare.of_run import unexpected_failures
from squall.analysis.record import to_json
from squall.analysis.report.check_page import check_page
from squall.analysis.report.decision_page import page_html
from squall.analysis.storage.part import error_reason
from squall.cluster.commands.decisions.minutes import Beside, phases_s
from squall.cluster.driver.run import run_scenario
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measured, Measurer, RunOne, folder_of_runs, held, write_text
from squall.cluster.progress import Screen
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError


def run_seeds(
    scenario: Scenario,
    out: Path,
    ray_address: str | None,
    interrupts: Interrupts,
    n_seeds: int,
    copies: Mapping[str, Path | None],
    run_one: RunOne = run_scenario,
    again: Sequence[str] = (),
) -> tuple[Path, Checked]:
    """Runs `n_seeds` seeds from the scenario's own on, into a new folder under `out`; the folder and the verdict.

    An INVALID run is run once more with its seed, and counts where it is INVALID again. `check.json`, `junit.xml`,
    `check.md` and `check.html` of what there is are written before the first seed and after each: unfinished, until the
    last has run; `copies`: where `junit` and `markdown` go too, in folders that are made before the first run; `again`:
    the commands that make the check once more. A run that ended because a promise of each run was broken is the last:
    no seed could mend that.
    Raises ScenarioError where a copy has no folder, SquallError where a run fails, KeyboardInterrupt after a Ctrl-C:
    what was run stays.
    """
    for kind, path in copies.items():
        if path is not None:
            _make_folder(kind, path)
    folder = folder_of_runs(out, scenario.name, "check")
    runs = Measurer(folder, ray_address, interrupts, run_one, Screen())
    mapping, done = for_seeds(scenario, n_seeds).to_mapping(), list[CheckedRun]()

    def written(is_over: bool) -> Checked:
        checked = evaluate(scenario.name, scenario.digest(), done, None if is_over else n_seeds)
        write_text(folder / "check.html", page_html(check_page(checked, again, str(folder))))
        for kind, name, text in (
            ("junit", "junit.xml", junit(checked)),
            ("markdown", "check.md", markdown(checked)),
        ):
            for path in filter(None, (folder / name, copies.get(kind))):
                write_text(path, text)
        write_text(folder / "check.json", json.dumps(to_json(checked), indent=2) + "\n")
        return checked

    length_s = phases_s(scenario)

    def tell_minutes(n_left: int) -> None:
        beside = Beside.of((one.seconds, length_s) for one in done)
        runs.screen.step(beside.to_come_text(n_left, "seed", length_s))

    with held(folder):
        written(is_over=False)  # what an earlier check left at the place of a copy is not this one's verdict
        tell_minutes(n_seeds)
        for number in range(n_seeds):
            seed = scenario.seed + number
            own = scenario_from_mapping({**mapping, "seed": seed}, scenario.name)
            done += [_checked(one) for one in runs.measure(own, f"seed {seed}, {number + 1} of {n_seeds}")]
            is_broken = evaluate(scenario.name, scenario.digest(), done).verdict == BROKEN
            if n_seeds > 1 and done[-1].is_decided and is_broken:
                break
            if number + 1 < n_seeds:
                written(is_over=False)
                tell_minutes(n_seeds - number - 1)
        return folder, written(is_over=True)


def _make_folder(kind: str, path: Path) -> None:
    """Makes the folder that takes the copy `path`. Raises ScenarioError."""
    if path.is_dir():
        raise ScenarioError(f"--{kind}: {path} is a folder, name a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"--{kind}: cannot create {path.parent}: {error_reason(error)}") from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ScenarioError(f"--{kind}: cannot write into {path.parent}")


def for_seeds(scenario: Scenario, n_seeds: int) -> Scenario:
    """The scenario as each of several seeds runs it. Over seeds a share is judged by its mean, to which every run owes
    its whole share: only what each run must keep by itself may end one before its time."""
    promises = scenario.promises or ()
    if n_seeds == 1 or not promises:
        return scenario
    ends_all = scenario.stop_when is not None
    held = tuple(
        replace(one, aborts_on_fail=True)
        if one.is_of_each_run and one.is_counted and (one.aborts_on_fail or ends_all)
        else replace(one, aborts_on_fail=False, delay_ns=0)
        for one in promises
    )
    keeps = ends_all and all(one.is_of_each_run for one in promises)
    return scenario.model_copy(update={"promises": held, "stop_when": scenario.stop_when if keeps else None})


def _checked(one: Measured) -> CheckedRun:
    result = one.result
    promises = result.summary.promises if result.summary is not None else None
    is_decided = result.summary is not None and result.summary.decided is not None
    summary = result.summary
    failed = unexpected_failures(summary.measure.failures, promises, summary.locust) if summary else ""
    return CheckedRun(
        one.scenario.seed,
        result.run_dir.name,
        result.status,
        one.seconds,
        promises or (),
        one.is_replaced,
        is_decided,
        failed,
    )
