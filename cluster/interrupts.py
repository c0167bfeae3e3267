"""Ctrl-C and its kin: where they may break in, and where they wait."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt in the main thread; use as a context manager.

    Inside `deferred` a signal waits for the block's end. After the first one was raised, and after `ignore`, further
    ones are answered by a line on stderr: the run is being sealed.
    """

    def __init__(self) -> None:
        self.name = ""
        self._n_deferrals = 0
        self._is_pending = False
        self._is_ignoring = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
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

    def ignore(self) -> None:
        """From here on signals only get a line on stderr."""
        self._is_ignoring = True

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Holds a signal back until the end of the block, and raises there."""
        self._n_deferrals += 1
        try:
            yield
        finally:
            self._n_deferrals -= 1
            if self._is_pending and not self._n_deferrals:
                self._is_pending = False
                self._raise()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_ignoring:
            sys.stderr.write(f"\nsquall: {signal.Signals(number).name}: the run is being sealed, a moment\n")
            return
        self.name = signal.Signals(number).name
        if self._n_deferrals:
            self._is_pending = True
        else:
            self._raise()

    def _raise(self) -> None:
        self._is_ignoring = True
        raise KeyboardInterrupt
