"""Runs of one scenario with seeds that follow one another, and the verdict on its promises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from squall.analysis.decisions.checked import Checked, CheckedRun, evaluate, junit, markdown
from squall.cluster.driver.run import run_scenario
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measured, Measurer, RunOne, folder_of_runs, write_text
from squall.cluster.progress import Screen
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario


def run_seeds(
    scenario: Scenario,
    out: Path,
    ray_address: str | None,
    interrupts: Interrupts,
    n_seeds: int,
    copies: Mapping[str, Path | None],
    run_one: RunOne = run_scenario,
) -> tuple[Path, Checked]:
    """Runs `n_seeds` seeds from the scenario's own on, into a new folder under `out`; the folder and the verdict.

    An INVALID run is run once more with its seed, and counts where it is INVALID again. After each run `check.json`,
    `junit.xml` and `check.md` of what there is are written; `copies`: where `junit` and `markdown` go too, at the end.
    Raises SquallError where a run fails, KeyboardInterrupt after a Ctrl-C: what was run stays.
    """
    folder = folder_of_runs(out, scenario.name, "check")
    runs = Measurer(folder, ray_address, interrupts, run_one, Screen())
    mapping, done = scenario.to_mapping(), list[CheckedRun]()
    for number in range(n_seeds):
        seed = scenario.seed + number
        own = scenario_from_mapping({**mapping, "seed": seed}, scenario.name)
        done += [_checked(one) for one in runs.measure(own, f"seed {seed}, {number + 1} of {n_seeds}")]
        checked = evaluate(scenario.name, scenario.digest(), done)
        write_text(folder / "check.json", json.dumps(checked.to_json(), indent=2) + "\n")
        write_text(folder / "junit.xml", junit(checked))
        write_text(folder / "check.md", markdown(checked))
    for kind, text in (("junit", junit(checked)), ("markdown", markdown(checked))):
        path = copies.get(kind)
        if path is not None:
            write_text(path, text)
    return folder, checked


def _checked(one: Measured) -> CheckedRun:
    result = one.result
    promises = result.summary.promises if result.summary is not None else None
    return CheckedRun(
        one.scenario.seed, result.run_dir.name, result.status, one.seconds, promises or (), one.is_replaced
    )
