"""`squall run --measure-overhead`: the same scenario and seed with and without profilers, in turn.

    run        0    1         2        3    4    5
    profilers  off  on        on       off  off  on      ABBA: a steady drift of the machine cancels over two pairs
    pair       └─ 1 ──┘       └─ 2 ───┘     └─ 3 ─┘

Every run is a normal run with a server of its own, sealed in a directory of its own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from squall.analysis.compare.overhead import evaluate
from squall.analysis.report.overhead_screen import page
from squall.analysis.verdict.overhead_file import OVERHEAD_FILE, Overhead, PairRun
from squall.cluster.driver.run import run_scenario
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import RunOne, folder_of_runs, held, write_text
from squall.cluster.progress import Screen
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, SquallError, StoreError
from squall.scenarios.records import Frozen

WITHOUT_NSYS = "profile.nsys is off: for what nsys costs add --set profile.nsys=auto"
PAGE_FILE = "overhead.md"
_NEVER_S = 31_536_000
"""An interval no run is as long as: the sampler of threads takes its first and last sample alone."""
_OFF = {"nsys": "off", "nvml": "off", "gpm": "off", "triton_trace": "off", "thread_interval": f"{_NEVER_S}s"}


class OverheadResult(Frozen):
    """The folder with all runs, what its `overhead.json` says, and whether every run of every pair was VALID."""

    folder: Path
    evaluation: Overhead

    @property
    def is_valid(self) -> bool:
        return self.evaluation.is_complete


def bare(scenario: Scenario) -> Scenario:
    """The scenario without its profilers: nsys, NVML, GPM, Triton's trace and thread samples.

    Triton's statistics and host samples stay on, at the scenario's intervals: CPU of the server comes from them. A
    server at `server.url` that somebody started under nsys stays under it, unrecorded.
    """
    mapping = scenario.to_mapping()
    profile = {**mapping["profile"], **_OFF}
    profile.pop("nsys_session", None)
    return scenario_from_mapping({**mapping, "profile": profile}, scenario.name)


def order(n_pairs: int) -> list[PairRun]:
    """The runs in their order: bare first in pairs 0, 2, 4, …, profiled first in the others."""
    return [
        PairRun(pair, 2 * pair + place, is_profiled)
        for pair in range(n_pairs)
        for place, is_profiled in enumerate((False, True) if pair % 2 == 0 else (True, False))
    ]


def measure_overhead(
    scenario: Scenario,
    out: Path,
    ray_address: str | None,
    interrupts: Interrupts,
    n_pairs: int,
    run_one: RunOne = run_scenario,
) -> OverheadResult:
    """Runs `n_pairs` pairs into a new folder under `out` and evaluates them; the evaluation on disk is renewed after
    each run, so that what was measured survives anything.

    A run that fails costs its pair, and the next is tried; two failures in the first pair end it all. Raises
    SquallError then, and for a scenario or disk that can be of no use to later runs, KeyboardInterrupt after a Ctrl-C.
    """
    variants = {True: scenario, False: bare(scenario)}
    folder = folder_of_runs(out, scenario.name, "overhead")
    screen = Screen()
    if scenario.profile.nsys == "off":
        screen.step(WITHOUT_NSYS)
    done: list[PairRun] = []
    with held(folder):
        for plan in order(n_pairs):
            kind = "profiled" if plan.is_profiled else "bare"
            screen.step(f"run {plan.position + 1} of {2 * n_pairs}: {kind}, pair {plan.pair + 1}", "bold")
            before = _run_names(folder)
            error: BaseException | None = None
            try:
                interrupts.check()
                run_one(variants[plan.is_profiled], folder, ray_address, interrupts)
            except (SquallError, KeyboardInterrupt) as failure:
                error = failure
            new = sorted(_run_names(folder) - before)
            text = "" if error is None else str(error) or f"interrupted by {interrupts.name or 'Ctrl-C'}"
            done.append(replace(plan, run=new[0] if new else "", error=text))
            evaluation = _write(folder, done, n_pairs)
            if error is not None and _is_final(error, done):
                screen.step(f"what was measured: {folder}")
                raise error
            if error is not None:
                screen.step(f"{text}; pair {plan.pair + 1} is left out, the next goes on", "red")
        return OverheadResult(folder, evaluation)


def _is_final(error: BaseException, done: list[PairRun]) -> bool:
    """Whether no later run can do better."""
    if isinstance(error, KeyboardInterrupt | ScenarioError | StoreError):
        return True
    return len(done) == 2 and all(one.error for one in done)


def _write(folder: Path, done: list[PairRun], n_pairs: int) -> Overhead:
    evaluation = evaluate(folder, done, n_pairs)
    texts = {
        OVERHEAD_FILE: json.dumps(evaluation.to_json(), indent=2) + "\n",
        PAGE_FILE: page(evaluation, folder.name),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return evaluation


def _run_names(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/manifest.json")}
