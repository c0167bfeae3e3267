"""`sweep.jsonl`: the state of a sweep in one file that only grows.

    {"state": "begun", "experiment": …}        the first line: what the sweep is of
    {"state": "planned", "key": …, …}           a run that is to be; again of a key with an end: it is to be run again
    {"state": "running", "key": …, "attempt": 1}
    {"state": "done" | "invalid" | "failed", "key": …, "row": {…}}

Every line is on the disk before what follows it begins. A last line that a crash cut off is dropped, and overwritten.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from squall.analysis.record import from_json, to_json
from squall.analysis.storage.beneath import read_plain, refuse_ways_out
from squall.analysis.storage.part import error_reason
from squall.analysis.studies.sweep_rows import DONE, FAILED, INVALID, MOST_ATTEMPTS, SweepRow, row_from_json
from squall.scenarios.errors import AnalysisError, ScenarioError, StoreError
from squall.scenarios.foreign_text import json_of
from squall.scenarios.records import Frozen

FILE = "sweep.jsonl"
SCHEMA_VERSION = 1
BEGUN, PLANNED, RUNNING = "begun", "planned", "running"


class Plan(Frozen):
    """A planned run as the journal has it, `key` and all."""

    key: str
    position: int
    site: str
    role: str
    cell: int
    block: int
    seed: int
    number: int


@dataclass
class State:
    """What the lines of a journal come to: planned runs and ended ones, by key."""

    experiment: Mapping[str, Any] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    rows: dict[str, list[SweepRow]] = field(default_factory=dict)
    replaced: list[SweepRow] = field(default_factory=list)

    def take(self, line: Mapping[str, Any]) -> None:
        """Adds one line. Raises ValueError, KeyError, TypeError, AnalysisError for what is none."""
        state = line["state"]
        if state == BEGUN:
            self.experiment = dict(line["experiment"])
        elif state == PLANNED:
            plan = from_json(Plan, line)
            if not 0 <= plan.cell < len(self.experiment["cells"]):
                raise ValueError(f"there is no cell {plan.cell}")
            self.plans[plan.key] = plan
            self.replaced += [replace(row, is_replaced=True) for row in self.rows.pop(plan.key, [])]
        elif state in (DONE, INVALID, FAILED):
            if line["key"] not in self.plans:
                raise ValueError(f"no run {line['key']!r} was planned before it")
            of, row = self.plans[line["key"]], row_from_json(line["row"])
            if (row.key, row.site, row.cell, row.outcome) != (of.key, of.site, of.cell, state):
                raise ValueError("its row is of another run")
            self.rows.setdefault(row.key, []).append(row)

    def n_attempts(self, key: str) -> int:
        """Runs of a key that ended."""
        return len(self.rows.get(key, ()))

    def is_finished(self, key: str) -> bool:
        """Whether one command runs no more of it: VALID, failed, or INVALID for the last time."""
        rows = self.rows.get(key, [])
        return bool(rows) and (rows[-1].outcome != INVALID or len(rows) >= MOST_ATTEMPTS)

    def is_settled(self, key: str) -> bool:
        """Whether the next command runs no more of it either: it is finished, and did not fail."""
        return self.is_finished(key) and self.rows[key][-1].outcome != FAILED

    def all_rows(self) -> list[SweepRow]:
        """Every row, in order of sites, then of the plan; those that another row stands for are marked."""
        final = [
            row if place == len(rows) - 1 else replace(row, is_replaced=True)
            for rows in self.rows.values()
            for place, row in enumerate(rows)
        ]
        sites = list(dict.fromkeys(plan.site for plan in self.plans.values()))
        order = {site: place for place, site in enumerate(sites)}
        found = [*self.replaced, *final]
        return sorted(
            found, key=lambda row: (order[row.site], row.position, not row.is_replaced, row.attempt)
        )


class Journal:
    """The journal in a folder, locked for as long as it is open. A context manager."""

    def __init__(self, folder: Path, file: BinaryIO, state: State) -> None:
        self.folder = folder
        self.state = state
        self._file = file

    @classmethod
    def begin(cls, folder: Path, experiment: Mapping[str, Any]) -> Journal:
        """A new one. Raises StoreError."""
        journal = cls(folder, _open(folder, "xb"), State())
        journal.append({"state": BEGUN, "schema_version": SCHEMA_VERSION, "experiment": experiment})
        return journal

    @classmethod
    def resume(cls, folder: Path) -> Journal:
        """One that was begun. Raises ScenarioError where there is none, or another sweep writes it, or it is
        damaged; StoreError where something leads out of the folder."""
        refuse_ways_out(folder)
        file = _open(folder, "r+b")
        try:
            state, n_bytes = _read(folder)
            file.truncate(n_bytes)
            file.seek(n_bytes)
            return cls(folder, file, state)
        except BaseException:
            file.close()
            raise

    def append(self, line: Mapping[str, Any]) -> None:
        """Adds a line, to the state and to the disk. Raises StoreError."""
        plain = to_json(dict(line))
        text = json.dumps(plain, separators=(",", ":"), allow_nan=False) + "\n"
        try:
            self._file.write(text.encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(f"cannot write {self.folder / FILE}: {error_reason(error)}") from error
        self.state.take(plain)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_state(folder: Path) -> State:
    """The state in a folder, whoever writes it. Raises ScenarioError where there is none, or it is damaged."""
    return _read(folder)[0]


def _open(folder: Path, mode: str) -> BinaryIO:
    path = folder / FILE
    try:
        file: BinaryIO = open(path, mode)  # type: ignore[assignment]  # noqa: SIM115  # a binary mode; closed by Journal
    except OSError as error:
        if mode == "xb":
            raise StoreError(f"cannot write {path}: {error_reason(error)}") from error
        raise ScenarioError(f"{folder}: holds no sweep: {FILE}: {error_reason(error)}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ScenarioError(f"{folder}: another squall sweep goes on in it") from error
    return file


def _read(folder: Path) -> tuple[State, int]:
    """The state in a folder, and the bytes of its whole lines. Raises ScenarioError."""
    path = folder / FILE
    try:
        return _state_of(path, read_plain(path))
    except OSError as error:
        raise ScenarioError(f"{folder}: holds no sweep: {FILE}: {error_reason(error)}") from error


def _state_of(path: Path, content: bytes) -> tuple[State, int]:
    state, n_bytes = State(), content.rfind(b"\n") + 1
    for number, line in enumerate(content[:n_bytes].splitlines(), 1):
        try:
            state.take(json_of(line))
        except (ValueError, KeyError, TypeError, AnalysisError) as error:
            raise ScenarioError(
                f"{path}: line {number} is damaged: {error or type(error).__name__}"
            ) from error
    if not state.experiment:
        raise ScenarioError(f"{path}: says of no experiment, begin a new sweep")
    return state, n_bytes
