"""The runs of a sweep, one after another, each in the journal before and after it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from shlex import quote

from squall.actors.sampling.gpu.source import temperatures_c
from squall.analysis.storage.intact import content_errors_of
from squall.analysis.studies.sweep_result import Sweep
from squall.analysis.studies.sweep_rows import DONE, FAILED, INVALID, Figures, SweepRow
from squall.cluster.commands.decisions.cooldown import Cooldown
from squall.cluster.commands.decisions.runnable_cells import refuse_unrunnable
from squall.cluster.commands.decisions.site import Site, this_site
from squall.cluster.commands.decisions.sweep_identity import described, refuse_changed
from squall.cluster.commands.decisions.sweep_journal import FILE, PLANNED, RUNNING, Journal, Plan
from squall.cluster.commands.decisions.sweep_plans import (
    cells_to_run,
    choosing_plans,
    confirming_plans,
    n_ended_elsewhere,
)
from squall.cluster.commands.decisions.sweep_reading import ReadRun, read_run
from squall.cluster.commands.decisions.sweep_results import found_by, write_results
from squall.cluster.driver.run import run_scenario
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measurer, RunOne, folder_of_runs, gather_broken_off
from squall.cluster.progress import Screen
from squall.cluster.remote.session import shared_sessions
from squall.scenarios.errors import ScenarioError, SquallError, StoreError, TargetError
from squall.scenarios.experiment import Experiment
from squall.scenarios.records import Frozen

_MOST_UNREACHED = 3
"""Runs in a row that failed at a server that runs already: it will not be there for the next one either."""


class Surroundings(Frozen):
    """What a sweep touches beside its folder; a test hands in its own."""

    run_one: RunOne = run_scenario
    read: ReadRun = read_run
    site_of: Callable[[str | None], Site] = this_site
    temperatures_c: Callable[[], Sequence[float]] = temperatures_c
    monotonic_s: Callable[[], float] = time.monotonic
    sleep_s: Callable[[float], None] = time.sleep


class Asked(Frozen):
    """What the command was asked: where new runs go, the folder of a sweep that is taken up again, whether runs that
    are finished are run again, the file, and the words that take it up, without the folder. `at`: the folder of the
    sweep itself, new or begun, in place of the first two."""

    out: Path
    resume: Path | None
    ray_address: str | None
    is_forced: bool
    path: Path
    command: str = "squall sweep"
    at: Path | None = None

    @property
    def begun(self) -> Path | None:
        """The folder of the sweep that is taken up again; None where it is new."""
        is_begun = self.at is not None and (self.at / FILE).exists()
        return self.at if is_begun else self.resume

    @property
    def again(self) -> str:
        """The command that makes the sweep again."""
        return self.command if self.at is not None else f"{self.command} {quote(str(self.path))}"

    def going_on(self, folder: Path) -> str:
        """The command that takes up the sweep in `folder`."""
        return self.again if self.at is not None else f"{self.again} --resume {quote(str(folder))}"


def run_sweep(
    experiment: Experiment, asked: Asked, interrupts: Interrupts, around: Surroundings | None = None
) -> tuple[Path, Sweep]:
    """Runs what is not finished; the folder and what was found. However it ends, the files of what was run are written.

    The first SIGINT ends it after the run that goes on, the second breaks that off: KeyboardInterrupt. A run that
    fails is a row, and is run again by the next command; ScenarioError and StoreError end the sweep, and TargetError
    where `_MOST_UNREACHED` runs in a row failed at a server that runs already. A cell that
    cannot be run is a ScenarioError before the first run.
    """
    around = around or Surroundings()
    begun = asked.begun
    if begun is None:
        with interrupts.allowed():
            refuse_unrunnable(experiment.cells, asked.path)
    journal = _journal(experiment, asked)
    with journal, interrupts.finishing(), shared_sessions():
        sweeper = _Sweeper(experiment, asked, interrupts, around, journal)
        if begun is not None:
            with interrupts.allowed():
                sweeper.refuse_unrunnable()
            sweeper.gather_broken_off()
        with sweeper.telling():
            sweeper.choose()
            sweeper.confirm()
        return journal.folder, sweeper.found()


def _journal(experiment: Experiment, asked: Asked) -> Journal:
    begun = asked.begun
    if begun is None:
        folder = asked.at or folder_of_runs(asked.out, experiment.name, "sweep")
        return Journal.begin(folder, described(experiment))
    journal = Journal.resume(begun)
    try:
        refuse_changed(experiment, journal.state.experiment, begun, asked.path)
    except ScenarioError:
        journal.__exit__()
        raise
    return journal


class _Sweeper:
    """The state of one command over a journal."""

    def __init__(
        self,
        experiment: Experiment,
        asked: Asked,
        interrupts: Interrupts,
        around: Surroundings,
        journal: Journal,
    ) -> None:
        self._experiment, self._asked, self._interrupts, self._around = experiment, asked, interrupts, around
        self._journal = journal
        self._screen = Screen()
        self._measurer = Measurer(journal.folder, asked.ray_address, interrupts, around.run_one, self._screen)
        self._site = around.site_of(asked.ray_address)
        self._cooldown = Cooldown(
            experiment.file.cooldown, self._screen, around.temperatures_c, around.monotonic_s, around.sleep_s,
            lambda: interrupts.is_asked_to_end or bool(interrupts.name),
        )  # fmt: skip
        self._n_run = 0
        self._n_unreached = 0
        self._plans = choosing_plans(experiment, journal.state, self._site.digest, asked.is_forced)

    def refuse_unrunnable(self) -> None:
        """Raises ScenarioError for a cell that is to be run and cannot be."""
        state, is_forced = self._journal.state, self._asked.is_forced
        refuse_unrunnable(cells_to_run(self._experiment, state, self._plans, is_forced), self._asked.path)

    def gather_broken_off(self) -> None:
        """What a run left that ended with the driver of the command before."""
        gather_broken_off(self._journal.folder, self._screen, self._interrupts)

    def choose(self) -> None:
        """The runs that choose a cell."""
        self._cooldown.tell()
        self._go_through(self._plans)

    def confirm(self) -> None:
        """The fresh runs of the chosen cell."""
        best = self.found().ranking.best
        if best is not None:
            self._go_through(
                confirming_plans(
                    self._experiment,
                    self._journal.state,
                    self._site.digest,
                    best,
                    self._asked.is_forced,
                    len(self._plans),
                )
            )

    def found(self) -> Sweep:
        """What the rows so far say."""
        state = self._journal.state
        with content_errors_of(str(self._journal.folder)):
            return found_by(
                self._experiment, state, len(self._plans) + n_ended_elsewhere(state, self._site.digest)
            )

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Writes the files however it ends, and says how the sweep goes on where it broke off."""
        folder = self._journal.folder
        try:
            yield
        except (SquallError, KeyboardInterrupt):
            self._write()
            self._screen.step(f"what was run: {folder}; {self._asked.going_on(folder)} goes on with it")
            raise
        self._write()

    def _write(self) -> None:
        if self._journal.state.rows or self._journal.state.replaced:
            with content_errors_of(str(self._journal.folder)):
                write_results(self._journal.folder, self._experiment, self.found(), self._asked.again)

    def _go_through(self, plans: Sequence[Plan]) -> None:
        state = self._journal.state
        for plan in plans:
            is_ended = state.n_attempts(plan.key) > 0
            is_again = self._asked.is_forced or (
                state.is_finished(plan.key) and not state.is_settled(plan.key)
            )
            if plan.key not in state.plans or (is_ended and is_again):
                self._journal.append({"state": PLANNED, **vars(plan)})
        last = plans[-1].position + 1 if plans else 0
        for plan in plans:
            while not state.is_finished(plan.key):
                self._interrupts.end_if_asked()
                if self._n_run:
                    self._cooldown.wait()
                    self._interrupts.end_if_asked()
                self._run(plan, last)
                self._n_run += 1

    def _run(self, plan: Plan, last: int) -> None:
        cell, attempt = self._experiment.cells[plan.cell], self._journal.state.n_attempts(plan.key) + 1
        gpu_c = self._cooldown.hottest_c()
        self._journal.append({"state": RUNNING, "key": plan.key, "attempt": attempt})
        purpose = "" if plan.role == "cell" else f" ({plan.role})"
        again = "" if attempt == 1 else ", once more"
        title = f"{plan.position + 1} of {last}: {cell.label}{purpose}, seed {plan.seed}{again}"
        before = self._folders()
        begun_s = self._around.monotonic_s()
        figures, status, reason, outcome = Figures(), "", "", FAILED
        try:
            result = self._measurer.once(cell.with_seed(plan.seed), title).result
            run, status = result.run_dir.name, result.status
            figures, reason = self._around.read(result)
            outcome = DONE if status == "VALID" else INVALID
            self._n_unreached = 0
        except StoreError:
            raise
        except ScenarioError as error:
            raise ScenarioError(f"cell {cell.label}: {error}") from error
        except SquallError as error:
            reason, run = str(error), next(iter(self._folders() - before), "")
            is_unreached = isinstance(error, TargetError) and any(
                one.url for one in cell.scenario.servers or ()
            )
            self._n_unreached = self._n_unreached + 1 if is_unreached else 0
            ends = self._n_unreached >= _MOST_UNREACHED
            self._screen.step(f"failed: {reason}; the sweep {'stops' if ends else 'goes on'}", "red")
        row = SweepRow(
            key=plan.key, position=plan.position, block=plan.block, role=plan.role, cell=plan.cell, label=cell.label,
            seed=plan.seed, attempt=attempt, outcome=outcome, status=status, reason=reason, run=run, site=plan.site,
            host=self._site.text, wall_s=self._around.monotonic_s() - begun_s, gpu_c=gpu_c, figures=figures,
        )  # fmt: skip
        self._journal.append({"state": outcome, "key": plan.key, "row": row})
        if self._n_unreached >= _MOST_UNREACHED:
            raise TargetError(f"{self._n_unreached} runs in a row failed at the server: {reason}")

    def _folders(self) -> set[str]:
        return {path.name for path in self._journal.folder.iterdir() if path.is_dir()}
