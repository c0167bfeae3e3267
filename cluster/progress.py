"""What the user sees while a run goes on: one line a step, one bar a phase, on stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO, cast

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from squall.actors.client_worker import Progress as WorkerProgress
from squall.actors.load.engine import FAILED_NS
from squall.analysis.statistics.latency import nearest_rank
from squall.scenarios.foreign_text import escaped
from squall.scenarios.plan.plan import PhaseSpan
from squall.scenarios.units import NS_PER_S

_PLAIN_EVERY_S = 5
_MOST_OF_REASON = 60
"""Characters of a failure's detail that the line of progress has."""


class _Stderr(io.TextIOBase):
    """stderr that swallows what it cannot show: a terminal that went away must not end a run."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has it as an attribute
        return sys.stderr.encoding

    def isatty(self) -> bool:
        return sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()

    def write(self, text: str) -> int:
        self._try(lambda: sys.stderr.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda: sys.stderr.flush())

    def _try(self, show: Callable[[], object]) -> None:
        try:
            show()
        except (OSError, ValueError):
            # what is buffered goes to /dev/null, or Python's exit code would be 120
            with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), sys.stderr.fileno())


class Screen:
    """Progress on stderr: bars on a terminal, else a line every 5 s. A context manager around the phases."""

    def __init__(self) -> None:
        self._console = Console(file=cast(TextIO, _Stderr()), highlight=False, soft_wrap=True)
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._n_sent = 0
        self._last_s: float | None = None
        self._plain_at = -1

    def step(self, text: str, style: str = "") -> None:
        """One line on what is happening."""
        self._console.print(Text.assemble(("squall ", "dim"), (escaped(text), style)))

    def missing(self, what: str, reason: str, mend: str) -> None:
        """One line on a collector that is not there."""
        self._console.print(
            Text.assemble(
                ("squall ", "dim"), (escaped(f"without {what}"), "yellow"), escaped(f": {reason}; {mend}")
            )
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description:>8}", markup=False), BarColumn(bar_width=24),
                TimeRemainingColumn(compact=True), TextColumn("{task.fields[live]}", markup=False),
                console=self._console,
                redirect_stdout=False, redirect_stderr=False,  # our console writes to sys.stderr: it would feed itself
            )  # fmt: skip
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def show(self, spans: Sequence[PhaseSpan], at_ns: int, workers: Sequence[WorkerProgress]) -> None:
        """The state at `at_ns` from the start instant (negative before it)."""
        span = next((span for span in spans if span.start_ns <= at_ns < span.end_ns), None)
        if span is None:
            return
        live = self._live(at_ns / NS_PER_S, workers)
        if self._bars is None:
            if at_ns // (_PLAIN_EVERY_S * NS_PER_S) != self._plain_at:
                self._plain_at = at_ns // (_PLAIN_EVERY_S * NS_PER_S)
                self.step(f"{span.name} {(at_ns - span.start_ns) / NS_PER_S:.0f} s: {live}")
            return
        for each in spans:
            if each.name not in self._tasks and each.start_ns <= at_ns:
                total = (each.end_ns - each.start_ns) / NS_PER_S
                self._tasks[each.name] = self._bars.add_task(escaped(each.name), total=total, live="")
            if each.name in self._tasks:
                done = min(at_ns, each.end_ns) - each.start_ns
                fields = {"live": live} if each is span else {}
                self._bars.update(self._tasks[each.name], completed=done / NS_PER_S, **fields)  # type: ignore[arg-type]

    def _live(self, at_s: float, workers: Sequence[WorkerProgress]) -> str:
        n_sent = max(self._n_sent, sum(worker.n_sent for worker in workers))
        elapsed_s = at_s - self._last_s if self._last_s is not None else 0.0
        rate = f"{(n_sent - self._n_sent) / elapsed_s:6.0f} req/s" if elapsed_s > 0 else "     - req/s"
        self._n_sent, self._last_s = n_sent, at_s
        recent = np.sort(
            np.concatenate([np.empty(0, np.int64), *(worker.recent_response_ns for worker in workers)])
        )
        p95 = _milliseconds(int(recent[nearest_rank(0.95, recent.size) - 1])) if recent.size else "      - ms"
        n_in_flight = sum(worker.n_in_flight for worker in workers)
        n_failed = sum(worker.n_failed for worker in workers)
        failed = f"  {n_failed} failed" if n_failed else ""
        why = most_frequent(workers)
        if why is not None:
            failed += f", most: {escaped(why)[:_MOST_OF_REASON]}"
        return f"{rate}  {n_in_flight:4d} in flight  p95 {p95}{failed}"


def most_frequent(workers: Sequence[WorkerProgress]) -> str | None:
    """The detail that most failures so far have, the first by name of equals; None without any."""
    counts: dict[str, int] = {}
    for why, n in (pair for worker in workers for pair in worker.why_failed.items()):
        counts[why] = counts.get(why, 0) + n
    return min(counts, key=lambda why: (-counts[why], why)) if counts else None


def _milliseconds(response_ns: int) -> str:
    return "   failed " if response_ns == FAILED_NS else f"{response_ns / 1e6:7.1f} ms"
