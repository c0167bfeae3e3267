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
    they wait for the next of these. Only the first is raised; every signal that is not gets a line on stderr.
    """

    def __init__(self) -> None:
        self.name = ""
        self._is_allowed = False
        self._is_raised = False
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
        self._is_allowed = True
        try:
            self.check()
            yield
        finally:
            self._is_allowed = False

    def check(self) -> None:
        """Raises KeyboardInterrupt for a signal that waited."""
        if self.name and not self._is_raised:
            self._is_raised = True
            raise KeyboardInterrupt

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        is_first, name = not self.name, signal.Signals(number).name
        self.name = self.name or name
        PATIENCE.hurry()
        if is_first and self._is_allowed:
            self.check()
        # a terminal that went away; a write that was cut into
        with contextlib.suppress(OSError, RuntimeError):
            sys.stderr.write(f"\nsquall {name}: it is being ended in order, a moment\n")
