"""Runs that a decision rests on: into one folder, an INVALID one once more, and files that tell of them."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path

from squall.analysis.storage.beneath import write_atomically
from squall.analysis.storage.held_folder import sole_holder
from squall.analysis.storage.intact import content_errors_of
from squall.analysis.storage.object_folder import refuse_address
from squall.analysis.storage.part import error_reason
from squall.analysis.storage.store import RunStore
from squall.cluster.draining import Draining
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.cluster.progress import Screen
from squall.cluster.remote.session import shared_sessions
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, ScenarioError, SquallError, StoreError
from squall.scenarios.records import Frozen

RunOne = Callable[[Scenario, Path, str | None, Interrupts], RunResult]
"""`squall.cluster.driver.run.run_scenario`, or what stands for it in a test."""
_NAME_TRIES = 16


class Measured(Frozen):
    """A run of `scenario` that ended, and how long it took, start of its processes and server included. `is_replaced`:
    it was INVALID, and another of the same scenario follows it."""

    scenario: Scenario
    result: RunResult
    seconds: float
    is_replaced: bool = False


class Measurer(Frozen):
    """Runs scenarios into `folder`, one after another; a server that runs already gets each once it has nothing left of
    the one before. `draining` is shared where runs into several folders follow one another."""

    folder: Path
    ray_address: str | None
    interrupts: Interrupts
    run_one: RunOne
    screen: Screen
    draining: Draining = field(default_factory=Draining)

    def measure(self, scenario: Scenario, title: str) -> list[Measured]:
        """The run of `scenario`, the last of one or two: one that is not VALID is run once more. `title` is told.

        Raises SquallError where a run fails, KeyboardInterrupt after a Ctrl-C, once it has said where the runs are.
        """
        with self._telling():
            first = self.once(scenario, title)
            if first.result.status == "VALID":
                return [first]
            return [replace(first, is_replaced=True), self.once(scenario, f"{title}, once more")]

    def once(self, scenario: Scenario, title: str) -> Measured:
        """One run of `scenario`, whatever its status. Raises as `measure` does, and says nothing more."""
        self.draining.wait(self.screen, self.interrupts)
        self.screen.step(title, "bold")
        begun_s = time.monotonic()
        self.interrupts.check()
        result = self.run_one(scenario, self.folder, self.ray_address, self.interrupts)
        self.draining.heard(scenario, result)
        return Measured(scenario, result, time.monotonic() - begun_s)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Says where the runs are that were done before one failed."""
        try:
            yield
        except (SquallError, KeyboardInterrupt):
            self.screen.step(f"what was run: {self.folder}")
            raise


def folder_of_runs(out: Path, name: str, kind: str) -> Path:
    """A new `<name>-<kind>-<UTC>-<4 hex>` in `out`. Raises ScenarioError where `out` is no folder here, StoreError."""
    refuse_address(out)
    stem = f"{name}-{kind}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for _ in range(_NAME_TRIES):
            folder = out / f"{stem}-{secrets.token_hex(2)}"
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
    except OSError as error:
        raise StoreError(f"cannot create a folder in {out}: {error_reason(error)}") from error
    raise StoreError(f"cannot create a folder in {out}: {_NAME_TRIES} names in a row are taken")


@contextlib.contextmanager
def held(folder: Path, is_shared: bool = False) -> Iterator[Path]:
    """Inside, this command alone runs into `folder`, with `is_shared` beside others that share it; its runs have one
    session of Ray. Raises ScenarioError where another does, and where there is no such folder."""
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: no such folder")
    busy = ScenarioError(f"{folder}: another squall goes on in it")
    with sole_holder(folder, busy, is_shared=is_shared), shared_sessions():
        yield folder


def gather_broken_off(folder: Path, screen: Screen, interrupts: Interrupts) -> None:
    """Seals the runs in `folder` that were broken off with their driver, by what they left here, so that nothing of
    them stays elsewhere; one that cannot be is left, and why is told. The caller holds `folder`."""
    from squall.cluster.driver.resume import resume_run

    for manifest in sorted(folder.glob("*/manifest.json")):
        run_dir = manifest.parent
        try:
            if RunStore.open(run_dir).is_sealed:
                continue
            screen.step(f"{run_dir.name} was broken off: what it left is gathered")
            busy = ClusterError("it is being written by a squall that still runs")
            with sole_holder(run_dir, busy), content_errors_of(run_dir.name):
                resume_run(run_dir, interrupts)
        except SquallError as error:
            screen.step(f"{run_dir.name}: {error}")


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """The whole file or none. Raises StoreError."""
    try:
        write_atomically(path, [content])
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error_reason(error)}") from error
