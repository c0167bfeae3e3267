"""`squall.run`: one run of a scenario, asked for from Python."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from squall.analysis.run import Run, open_run
from squall.analysis.storage.object_folder import is_address
from squall.cluster.apart import run_apart
from squall.cluster.commands.headers import variables_allowed
from squall.scenarios.config.loader import make_scenario
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError


def run(
    scenario: Scenario | Mapping[str, Any] | Path | str,
    out: Path | str = "runs",
    *,
    ray: str | None = None,
    progress: bool = False,
    allow_env: Collection[str] = (),
    **overrides: object,
) -> Run:
    """Runs a scenario as `squall run` does, and opens the run directory that it makes under `out`.

    `scenario` is a file, a mapping as it would stand in a file, or a Scenario. `overrides` change it by key path, as
    `--set` does: `seed=7`, `**{"phases.burst.arrivals.rate": "300/s"}`. `ray` is the address of a Ray cluster to join;
    without it this machine alone is used, without Ray. With `progress` the lines of the command go to `sys.stderr`.
    Headers of a file may have the variables of the environment that `allow_env` names, as `--allow-env` does.

    An INVALID run is a result, which `Run.verdict` tells. Raises SquallError, ScenarioError for a bad scenario, where
    the command would end with code 1 or 2; and KeyboardInterrupt after a Ctrl-C, with the run sealed as aborted. Both
    have a note with the run directory where one was made. The run has a process of its own, so that this works in any
    thread, beside an event loop and beside a Ray; nothing of it is left running.
    """
    wanted = make_scenario(scenario, overrides, variables_allowed(allow_env))
    if is_address(str(out)):
        raise ScenarioError(
            f"out: {out} is no folder; only the command `squall run --out` takes object storage"
        )
    return open_run(run_apart(wanted, Path(out), ray, _show if progress else _say_nothing))


def _show(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _say_nothing(_line: str) -> None:
    pass
