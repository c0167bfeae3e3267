"""Runs of one scenario with seeds that follow one another, and the verdict on its promises."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from squall.analysis.decisions.checked import Checked, CheckedRun, evaluate, junit, markdown
from squall.analysis.storage.part import error_reason, open_for_write, write_atomically
from squall.cluster.driver.run import RunResult, run_scenario
from squall.cluster.interrupts import Interrupts
from squall.cluster.progress import Screen
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import SquallError, StoreError

RunOne = Callable[[Scenario, Path, str | None, Interrupts], RunResult]


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
    name = f"{scenario.name}-check-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    folder, screen = out / name, Screen()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise StoreError(f"cannot create {folder}: {error_reason(error)}") from error
    mapping, done = scenario.to_mapping(), list[CheckedRun]()
    for number in range(n_seeds):
        seed = scenario.seed + number
        own = scenario_from_mapping({**mapping, "seed": seed}, scenario.name)
        for attempt in (1, 2):
            again = ", once more" if attempt == 2 else ""
            screen.step(f"seed {seed}, {number + 1} of {n_seeds}{again}", "bold")
            with _telling(screen, folder):
                found = _run(own, folder, ray_address, interrupts, run_one)
            is_last = attempt == 2 or found.status == "VALID"
            if is_last:
                done.append(found)
                break
            done.append(
                CheckedRun(
                    found.seed, found.run, found.status, found.seconds, found.promises, is_replaced=True
                )
            )
        checked = evaluate(scenario.name, scenario.digest(), done)
        _write(folder / "check.json", json.dumps(checked.to_json(), indent=2) + "\n")
        _write(folder / "junit.xml", junit(checked))
        _write(folder / "check.md", markdown(checked))
    for kind, text in (("junit", junit(checked)), ("markdown", markdown(checked))):
        path = copies.get(kind)
        if path is not None:
            _write(path, text)
    return folder, checked


def _run(
    scenario: Scenario, folder: Path, ray_address: str | None, interrupts: Interrupts, run_one: RunOne
) -> CheckedRun:
    begun_s = time.monotonic()
    interrupts.check()
    result = run_one(scenario, folder, ray_address, interrupts)
    promises = result.summary.promises if result.summary is not None else None
    seconds = time.monotonic() - begun_s
    return CheckedRun(scenario.seed, result.run_dir.name, result.status, seconds, promises or ())


@contextlib.contextmanager
def _telling(screen: Screen, folder: Path) -> Iterator[None]:
    """Says where the runs are that were done before one failed."""
    try:
        yield
    except (SquallError, KeyboardInterrupt):
        screen.step(f"what was run: {folder}")
        raise


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode(), open_for_write)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error_reason(error)}") from error
