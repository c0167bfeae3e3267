"""Ctrl-C and its kin: where they may break in, and where they wait."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

from squall.cluster.remote.patience import PATIENCE

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt in the main thread; use as a context manager.

    They break in only inside `allowed` and at `check`; anywhere else, in a clean-up or while rows are stored,
    they wait for the next of these. Only the first is raised; every signal that is not gets a line on stderr. Where
    Python drops what was raised, as in the finalizer of an object that happened to die then, the next `check` raises
    it once more, the end of `allowed` at the latest; so it does where a library made another error of it.
    Inside `finishing` the first SIGINT asks for the end of what goes on, and counts as none.
    """

    def __init__(self) -> None:
        self.name = ""
        self.is_asked_to_end = False
        self._is_finishing = False
        self._is_allowed = False
        self._is_out = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        PATIENCE.restore()
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave back fits it

    def install_again(self) -> None:
        """Takes the signals back from a library that took them (Ray does at init)."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Inside, a signal raises at once; one that waited raises at the start. Not nested."""
        try:
            self._is_allowed = True
            try:
                self.check()
                yield
            except Exception as error:
                # what was raised within a library's call, which made another of it (DuckDB does)
                if self.name and not self._is_out:
                    raise KeyboardInterrupt from error
                raise
            finally:
                self._is_allowed = False
            self.check()
        except KeyboardInterrupt:
            self._is_allowed, self._is_out = False, True
            raise

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Inside, the first SIGINT sets `is_asked_to_end` and breaks nothing off; the next acts as one does outside."""
        self._is_finishing = True
        try:
            yield
        finally:
            self._is_finishing = False

    def end_if_asked(self) -> None:
        """Raises KeyboardInterrupt where `is_asked_to_end`, and for a signal that waited."""
        if self.is_asked_to_end and not self.name:
            self.name = signal.SIGINT.name
        self.check()

    def check(self) -> None:
        """Raises KeyboardInterrupt for a signal that waited, or whose exception was dropped."""
        if self.name and not self._is_out:
            self._is_out = not self._is_allowed  # else once it has left that
            raise KeyboardInterrupt

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._is_finishing and not (self.is_asked_to_end or self.name):
            self.is_asked_to_end = True
            self._tell("SIGINT: the run that goes on is finished first; once more breaks it off")
            return
        is_first, name = not self.name, signal.Signals(number).name
        self.name = self.name or name
        PATIENCE.hurry()
        if is_first and self._is_allowed:
            raise KeyboardInterrupt
        self._tell(f"{name}: it is being ended in order, a moment")

    def _tell(self, text: str) -> None:
        # a terminal that went away; a write that was cut into
        with contextlib.suppress(OSError, RuntimeError):
            sys.stderr.write(f"\nsquall {text}\n")
