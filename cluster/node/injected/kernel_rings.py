"""The processes of a server that use CUDA: found by their rings, emptied to files, switched together.

Whoever reads a ring takes from it, so that a folder of rings has one reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from squall.actors.inject.kernel_library import find_rings
from squall.actors.inject.kernel_ring import KernelRing, Switched
from squall.actors.inject.ring_file import RingError
from squall.cluster.node.injected.kernel_process import KernelProcess
from squall.cluster.node.injected.ring_folder import HeldRings, hold_alone, rings_of, why_unread
from squall.scenarios.errors import ClusterError

DRAIN_S = 0.05
_ANSWER_S = 2.0
_LOOK_S = 0.0005
_GONE_AFTER_S = 0.2
"""Who has not answered for so long is looked for among the processes."""
_READY_S = 1.0
"""A ring is made in a moment: a file that is still none after so long is not waited for."""
_RECORDS = "kernels"


def records_folder(server_folder: Path) -> Path:
    """Where `KernelRings` writes."""
    return server_folder / _RECORDS


class KernelRings:
    """All rings of a folder, each to a file below the server's folder: `kernels/0000-NAME.records`. For one thread.

    `begins_anew`: what the rings hold already is of others, and is thrown away. `tell`: takes a line on what goes wrong
    on the way, each once.
    """

    def __init__(
        self, rings: HeldRings, server_folder: Path, tell: Callable[[str], None], begins_anew: bool = False
    ) -> None:
        """Lets go of `rings` in `close`, and at once where it raises ClusterError: no files can be made."""
        self._held = rings
        self._folder = rings.path
        self._into = records_folder(server_folder)
        self._tell = tell
        self._rings: dict[Path, KernelProcess | None] = {}
        self._seen: dict[Path, float] = {}
        try:
            self._into.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            rings.let_go()
            raise ClusterError(f"kernels: {error.strerror or error}") from error
        self._n_before = len(list(self._into.glob("*.records")))
        self.look(begins_anew)

    @property
    def processes(self) -> list[KernelProcess]:
        """Those found so far, also those that have ended."""
        return [one for one in self._rings.values() if one is not None]

    def look(self, skips: bool = False) -> list[KernelProcess]:
        """Processes that began to use CUDA since it was called before."""
        before = len(self.processes)
        for path in self._found():
            self._open(path, skips)
        return self.processes[before:]

    def _found(self) -> list[Path]:
        """None where somebody removed the folder: rings that are open are taken from all the same."""
        try:
            return find_rings(self._folder, self._rings)
        except OSError:
            return []

    def _open(self, path: Path, skips: bool) -> None:
        """What is no ring, or not for us, is told; it may not be ready yet, so that it is tried for a while."""
        since = self._seen.setdefault(path, time.monotonic())
        try:
            ring = KernelRing(path)
            self._rings[path] = KernelProcess(ring, self._file_of(path), skips)
        except (RingError, OSError) as error:
            if time.monotonic() - since > _READY_S:
                self._rings[path] = None
                self._tell(f"kernels: {why_unread(path, error)}")

    def _file_of(self, path: Path) -> Path:
        """That of an earlier reader, whose names for kernels may stand in it alone; else the next one."""
        known = next(iter(self._into.glob(f"*-{path.stem}.records")), None)
        return known or self._into / f"{self._n_before + len(self._rings):04d}-{path.stem}.records"

    def take(self) -> None:
        """Empties all rings."""
        for one in self.processes:
            one.take()

    def turn(self, is_on: bool, processes: Sequence[KernelProcess]) -> Switched | None:
        """Switches them, and waits 2 s at most; who does not answer is told once, and not waited for again.

        Returns the answers as one, from the first begun to the last done, of processes that record, or did until then;
        None: of none. Rings are emptied meanwhile.
        """
        recorded = {one for one in processes if one.is_recording}
        waiting = [one for one in processes if one.ask(is_on)]
        begun, drained, answers = time.monotonic(), time.monotonic(), []
        while waiting:
            now = time.monotonic()
            for one in list(waiting):
                answer = one.answer()
                if answer is not None:
                    waiting.remove(one)
                    if one in recorded or one.is_recording:
                        answers.append(answer)
                elif self._is_given_up(one, is_on, now - begun):
                    waiting.remove(one)
            if now - drained > DRAIN_S:
                self.take()
                drained = now
            time.sleep(_LOOK_S)
        if not answers:
            return None
        return Switched(is_on, min(one.begun_ns for one in answers), max(one.done_ns for one in answers))

    def _is_given_up(self, one: KernelProcess, is_on: bool, waited_s: float) -> bool:
        if one.ring.state.is_ended:
            return True
        is_gone = waited_s > _GONE_AFTER_S and one.is_over
        if not is_gone and waited_s < _ANSWER_S:
            return False
        why = "is gone" if is_gone else f"did not answer within {_ANSWER_S:g} s"
        one.is_silent = True
        self._tell(f"kernels: process {one.pid} {why} when recording was switched {'on' if is_on else 'off'}")
        return True

    def wait_handed_over(self, timeout_s: float) -> None:
        """After recording ended: until the processes have handed over what they had under way then."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            self.take()
            if not any(one.ring.lost().n_buffers_out for one in self.processes if not one.is_over):
                return
            time.sleep(DRAIN_S)

    def close(self) -> None:
        """Takes what is left, and tells what is missing."""
        for loss in (loss for one in self.processes for loss in one.close()):
            self._tell(loss)
        self._held.let_go()


def left_rings(server_folder: Path, tell: Callable[[str], None]) -> KernelRings | None:
    """Those of a server that an agent that died had started; None where there are none, or somebody reads them."""
    folder = rings_of(server_folder, "kernels")
    if folder is None:
        return None
    try:
        return KernelRings(hold_alone(folder, "kernels"), server_folder, tell)
    except ClusterError as error:
        tell(str(error))
        return None
