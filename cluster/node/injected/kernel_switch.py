"""The thread that empties a server's rings of kernels, and switches recording on and off at planned instants."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from squall.actors.inject.kernel_ring import KernelKinds, Switched
from squall.cluster.node.injected.kernel_process import KernelProcess
from squall.cluster.node.injected.kernel_rings import DRAIN_S, KernelRings
from squall.cluster.node.injected.kernel_windows import Window, WindowFile
from squall.scenarios.config.duty import Duty
from squall.scenarios.units import NS_PER_S, digits_text

LEAD_NS = 2 * NS_PER_S
"""Where whole phases are recorded, recording is on so long before each: as nsys is asked for its own."""
_IDLE_S = 0.5
_HANDED_OVER_S = 1.0
"""What was under way at an end reaches the ring within three flushes, 200 ms apart."""
_ENDS_WITHIN_S = 30.0


def planned(spans: Iterable[tuple[int, int]], duty: Duty | Literal["whole"]) -> list[tuple[int, int]]:
    """(on, off) for measured phases [start, end), in order and apart from one another."""
    if isinstance(duty, Duty):
        found = [window for start_ns, end_ns in spans for window in duty.windows(start_ns, end_ns)]
    else:
        found = [(start_ns - LEAD_NS, end_ns) for start_ns, end_ns in spans]
    merged: list[tuple[int, int]] = []
    for on_ns, off_ns in sorted(found):
        if merged and on_ns <= merged[-1][1]:
            on_ns, off_ns = merged[-1][0], max(merged.pop()[1], off_ns)
        merged.append((on_ns, off_ns))
    return merged


class KernelSwitch:
    """Runs from its making to `stop`. `tell`: takes a line on what goes wrong on the way."""

    def __init__(self, rings: KernelRings, into: WindowFile, tell: Callable[[str], None]) -> None:
        self._rings = rings
        self._into = into
        self._tell = tell
        self._plan: deque[tuple[int, int]] = deque()
        self._is_on = False
        self._off_ns = 0
        self._open: list[Window] = []
        self._lost_before: dict[KernelProcess, int] = {}
        self._ends, self._stirs = threading.Event(), threading.Event()
        self._note(rings.processes)
        self._thread = threading.Thread(target=self._run, name="kernel windows", daemon=True)
        self._thread.start()

    def plan(self, windows: Iterable[tuple[int, int]]) -> None:
        """Records in these from now on: (on, off) on this node's clock, in order and apart; once."""
        self._plan = deque(windows)
        self._stirs.set()

    def stop(self) -> None:
        """Ends recording, takes what is left, and tells what is missing; once."""
        if not self._ends.is_set():
            self._ends.set()
            self._stirs.set()
            self._thread.join(_ENDS_WITHIN_S)

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._step(time.monotonic_ns())
                self._stirs.wait(self._pause_s(time.monotonic_ns()))
                self._stirs.clear()
            self._finish()
        except Exception as error:  # the edge of the thread: the run goes on without kernels, and says so
            self._tell(f"kernels: recording ended: {type(error).__name__}: {error}")
            with suppress(Exception):  # no process may be left recording
                self._finish()

    def _pause_s(self, now_ns: int) -> float:
        """Until the next edge, or the next time that rings are emptied: only while something may come."""
        is_quiet = not self._is_on and now_ns - self._off_ns > _HANDED_OVER_S * NS_PER_S
        until_edge_s = (self._plan[0][self._is_on] - now_ns) / NS_PER_S if self._plan else _IDLE_S
        return max(0.0, min(until_edge_s, _IDLE_S if is_quiet else DRAIN_S))

    def _step(self, now_ns: int) -> None:
        found = self._rings.look()
        self._note(found)
        if self._is_on and now_ns >= self._plan[0][1]:
            self._turn_off()
        elif self._is_on and found:
            self._join(found)
        elif not self._is_on:
            self._drop_missed(now_ns)
            if self._plan and now_ns >= self._plan[0][0]:
                self._turn_on()
        self._rings.take()

    def _drop_missed(self, now_ns: int) -> None:
        while self._plan and self._plan[0][1] <= now_ns:
            self._plan.popleft()
            self._tell("kernels: a window was over before recording could be switched on for it")

    def _turn_on(self) -> None:
        self._settle()
        processes = self._rings.processes
        self._lost_before = {one: one.n_lost for one in processes}
        turned = self._rings.turn(True, processes)
        self._is_on = True
        self._note(processes)
        if turned is not None:
            self._begin_window(turned)

    def _join(self, found: Sequence[KernelProcess]) -> None:
        """Processes that began to use CUDA in a window: that one ends with the first such use, and another begins."""
        turned = self._rings.turn(True, found)
        self._note(found)
        if turned is None:
            return
        if self._open:
            began_ns = min(one.ring.started_ns for one in found if one.is_recording)
            self._end_window(began_ns, turned.begun_ns)
        self._begin_window(turned)

    def _turn_off(self) -> None:
        asked_ns = time.monotonic_ns()
        recorded = [one for one in self._rings.processes if one.is_recording]
        turned = self._rings.turn(False, self._rings.processes)
        self._off_ns = time.monotonic_ns()
        killed = [one for one in recorded if one.is_silent]
        for one in killed:
            one.is_recording = False
        if self._open:
            ends_ns = [
                turned.begun_ns if turned else asked_ns,
                *(one.ring.flushed_ns for one in killed),
            ]
            self._end_window(min(ends_ns), turned.done_ns if turned else self._off_ns)
        self._is_on = False
        self._plan.popleft()

    def _begin_window(self, turned: Switched) -> None:
        recording = [one for one in self._rings.processes if one.is_recording]
        kinds = KernelKinds(~0)
        for one in recording:
            kinds &= one.ring.state.kinds
        named = ",".join(str(kind.name).lower() for kind in kinds)
        holds_ns = turned.done_ns
        self._open.append(
            Window(
                begun_ns=turned.begun_ns, start_ns=holds_ns, end_ns=holds_ns, done_ns=holds_ns,
                n_processes=len(recording), kinds=named,
            )
        )  # fmt: skip
        self._into.note_open(self._open[-1])

    def _end_window(self, end_ns: int, done_ns: int) -> None:
        last = self._open[-1]
        end_ns = max(end_ns, last.start_ns)
        self._open[-1] = replace(last, end_ns=end_ns, done_ns=max(done_ns, end_ns))

    def _settle(self) -> None:
        """Late: what is lost of a window is known when all of it has been handed over."""
        n_lost = sum(one.n_lost - self._lost_before.get(one, 0) for one in self._rings.processes)
        if n_lost and self._open:
            whole_ns = sum(one.length_ns for one in self._open)
            self._tell(
                f"kernels: {n_lost} records of {digits_text(whole_ns / NS_PER_S)} s of recording are lost: these"
                " count as not recorded"
            )
            self._open = [replace(one, end_ns=one.start_ns) for one in self._open]
        if self._open:
            self._into.note_windows(self._open)
        self._open = []

    def _note(self, processes: Sequence[KernelProcess]) -> None:
        for one in processes:
            self._into.note_process(one.taken)

    def _finish(self) -> None:
        if self._is_on:
            self._turn_off()
        self._drop_missed(time.monotonic_ns())
        if time.monotonic_ns() - self._off_ns < _HANDED_OVER_S * NS_PER_S:
            self._rings.wait_handed_over(_HANDED_OVER_S)
        self._settle()
        self._rings.close()
        if self._into.trouble:
            self._tell(self._into.trouble)
        self._into.close()
