"""The models of one server that runs already, as a run wants them: changed before it, put back after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from squall.actors.net.access import Access
from squall.actors.net.triton_control import Control
from squall.analysis.storage.beneath import read_plain
from squall.analysis.storage.deployed import ControlFacts
from squall.cluster.control.changes import Undo, apply, names_wanted, refuse_unknown, restore
from squall.cluster.control.repository import Repository
from squall.cluster.control.watch import ControlWatch, Where
from squall.scenarios.config.servers import ControlConfig, ServerConfig
from squall.scenarios.errors import TargetError
from squall.scenarios.foreign_text import printable
from squall.scenarios.units import NS_PER_S

_LOGS, _PREFIX = "logs", "control-"
_MOST_TOLD_BYTES = 1024**2


def log_of(run_dir: Path, server: str) -> Path:
    """Where it is told what came of putting the models of that server back, where the driver was killed."""
    return run_dir / _LOGS / f"{_PREFIX}{server}.log"


def told_by_watches(run_dir: Path) -> list[str]:
    """That, of each server."""
    files = sorted((run_dir / _LOGS).glob(f"{_PREFIX}*.log"))
    return [f"{file.stem.removeprefix(_PREFIX)}: {_told(file)}" for file in files]


def _told(log: Path) -> str:
    try:
        return printable(read_plain(log, _MOST_TOLD_BYTES).decode(errors="replace"))
    except OSError as error:
        return f"{log.name} cannot be read: {error.strerror}"


def refuse_control(
    config: ControlConfig, models: Sequence[str], server: ServerConfig, access: Access
) -> bool:
    """Whether every model under load is ready and stays as it is, so that it can be asked about now.

    Changes nothing. Raises TargetError where the server is not there, is not in explicit mode, or lacks a model.
    """
    where = where_of(server, access)
    with closing(_control(where)) as control:
        repository = where.repository(control)
        repository.refuse_other_mode()
        refuse_unknown(repository, [*names_wanted(config, models), *config.unload])
        ready = repository.ready()
    unchanged = (name for name in models if name not in config.load or not config.load[name].has_changes)
    return set(models) <= ready.keys() & set(unchanged)


def where_of(server: ServerConfig, access: Access) -> Where:
    """The server at its url."""
    assert server.url is not None
    return Where(server.url.rstrip("/"), access, server.start_timeout_ns / NS_PER_S)


def _control(where: Where) -> Control:
    try:
        return where.control()
    except OSError as error:
        raise TargetError(f"no Triton is ready at {where.url}: {error}") from error


def load_own(control: Control, config: ControlConfig, timeout_s: float) -> ControlFacts:
    """What a server of squall's own, which has the model under load and ends with the run, loads beside. Raises
    TargetError."""
    return apply(Repository(control, "Triton", timeout_s), config, (), lambda _: None, lambda _: None)


class Controlled:
    """`begin`, then `restore` once at least: only the first time does something."""

    def __init__(self, config: ControlConfig, where: Where, log: Path) -> None:
        """`log`: for what a watch does where this process is killed."""
        self.facts = ControlFacts()
        self._config = config
        self._where = where
        self._log = log
        self._undo: Undo | None = None
        self._watch: ControlWatch | None = None

    def begin(self, models: Sequence[str], say: Callable[[str], None]) -> None:
        """Loads and unloads; see `apply`. Raises TargetError."""
        with closing(_control(self._where)) as control:
            self.facts = apply(self._where.repository(control), self._config, models, self._keep, say)

    def _keep(self, undo: Undo) -> None:
        self._undo = undo
        if self._config.after == "keep" or not undo.touched:
            return
        try:
            if self._watch is None:
                self._log.parent.mkdir(exist_ok=True)
                self._watch = ControlWatch(self._where, self._log)
            self._watch.tell(undo)
        except OSError as error:
            raise TargetError(
                f"server.control: nothing would put the models back if squall were killed: {error}"
            ) from error

    def restore(self) -> list[str]:
        """Puts the models back where the scenario wants that; what could not be, as sentences. Raises nothing."""
        undo, self._undo = self._undo, None
        if undo is None or self._config.after == "keep":
            return []
        left: list[str] = []
        if undo.touched:
            try:
                with closing(_control(self._where)) as control:
                    left = restore(self._where.repository(control), undo)
            except TargetError as error:
                left = [str(error)]
        if self._watch is not None:
            self._watch.dismiss()
        self.facts = replace(self.facts, is_restored=not left, left=tuple(left))
        return left
