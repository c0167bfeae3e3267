"""The load workers while they run: whether they are done, how they stand, and what becomes of one that is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from squall.actors.client_worker import ClientWorker, Progress
from squall.cluster.driver.client_workers import Worker
from squall.cluster.progress import Screen
from squall.cluster.remote.turns import Turns
from squall.scenarios.errors import LostActor, SquallError, StoreError
from squall.scenarios.units import NS_PER_S

OVERRUN_NS = 30 * NS_PER_S
"""After the run's end: a worker that has not ended by then does not end by itself."""
_LAST_WORD_NS = 5 * NS_PER_S
_STATE_NS = NS_PER_S
_STOP_TIMEOUT_S = 15.0


class WorkerWatch:
    """Of the workers of a run, which may still be added to; `losses` takes what is lost with one, the screen too."""

    def __init__(self, workers: Sequence[Worker], losses: list[str], screen: Screen) -> None:
        self._workers = workers
        self._losses = losses
        self._screen = screen
        self._stop_until = 0.0
        self._turns = Turns()

    def start(self, node_starts_ns: Mapping[str, int]) -> None:
        """Tells all to run from then on, on the clocks of their nodes."""
        for worker in self._workers:
            worker.start(node_starts_ns[worker.node.label])

    @property
    def is_done(self) -> bool:
        """No worker runs any more."""
        return all(one.is_lost or one.running is None or one.has_ended() for one in self._workers)

    @property
    def has_lost(self) -> bool:
        """A worker is lost, whose arrivals nobody sends."""
        return any(worker.is_lost for worker in self._workers)

    def cease(self, offset_ns: int) -> None:
        """Tells all to send nothing that is due later than that after the start instant."""
        for worker in self._workers:
            if not worker.is_lost and not worker.has_ended():
                with suppress(LostActor):  # told when it is asked for its state
                    worker.handle.begin(ClientWorker.cease, offset_ns)

    def give_up(self) -> None:
        """Stops workers that have not ended so long after the run; one that does not hear it is lost with its node."""
        late = [one for one in self._workers if not one.is_lost and not one.has_ended()]
        for worker in late:
            with suppress(SquallError):
                worker.handle.begin(ClientWorker.stop)
        until_ns = time.monotonic_ns() + _LAST_WORD_NS
        for worker in late:
            error = LostActor(
                f"{worker.handle.name} did not end within {OVERRUN_NS // NS_PER_S} s of the run's end"
            )
            left_ns = until_ns - time.monotonic_ns()
            if worker.has_ended(max(0, left_ns) / NS_PER_S):
                self._losses.append(str(error))
            else:
                worker.handle.kill()
                self._lose(worker, error)

    def wait(self, until_ns: int) -> None:
        """Waits until `until_ns` (driver's monotonic clock), or until no worker runs any more."""
        for worker in self._workers:
            if not worker.is_lost:
                left_ns = until_ns - time.monotonic_ns()
                worker.has_ended(max(0, left_ns) / NS_PER_S)

    def poll(self) -> list[Progress]:
        """The last state of each worker: those whose turn it is are asked at once, which is all where they are few.

        Raises StoreError when one cannot spill its records.
        """
        asked = self._turns.next([worker for worker in self._workers if not worker.is_lost])
        for worker in asked:
            if worker.asked is None:
                with suppress(LostActor):  # told below
                    worker.asked = worker.handle.begin(ClientWorker.status)
        until_ns = time.monotonic_ns() + _STATE_NS
        for worker in asked:
            self._hear(worker, until_ns)
        return [worker.state for worker in self._workers if worker.state is not None]

    def _hear(self, worker: Worker, until_ns: int) -> None:
        """One that is too busy to answer this second is asked no more until it has."""
        if worker.asked is None:
            self._lose(worker, LostActor(f"{worker.handle.name} is lost: its process has ended"))
            return
        if not worker.handle.is_done(worker.asked, max(0, until_ns - time.monotonic_ns()) / NS_PER_S):
            return
        reference, worker.asked = worker.asked, None
        try:
            standing = worker.handle.wait(reference)
        except LostActor as lost:
            self._lose(worker, lost)
            return
        worker.state = standing.progress
        if standing.spill_error:
            raise StoreError(f"{worker.handle.name} cannot write its records: {standing.spill_error}")

    def _lose(self, worker: Worker, error: Exception) -> None:
        worker.is_lost = True
        if worker.state is not None:
            nothing = worker.state.recent_response_ns[:0]
            worker.state = replace(worker.state, n_in_flight=0, recent_response_ns=nothing)
        self._losses.append(str(error))
        self._screen.step(f"{error}; the others go on", "red")

    def stop(self) -> None:
        """Makes every worker end its run now, if it has not; what is in flight is recorded as cancelled."""
        running = [worker for worker in self._workers if worker.running is not None]
        self._stop_until = time.monotonic() + _STOP_TIMEOUT_S
        for ask in (_begin_stop, self._end_of):
            for worker in running:
                try:
                    if not worker.is_lost:
                        ask(worker)
                except LostActor as lost:
                    self._lose(worker, lost)
                except SquallError as error:
                    self._losses.append(f"{worker.handle.name}: {error}")

    def wait_for_files(self, within_s: float) -> None:
        """Of workers that are lost, whose own process may live and write what they had recorded."""
        until = time.monotonic() + within_s
        for worker in self._workers:
            if worker.is_lost and worker.running is not None:
                worker.has_ended(max(0.0, until - time.monotonic()))

    def _end_of(self, worker: Worker) -> None:
        """One that does not end is given up: what it had written is on its node's disk."""
        left_s = max(0.0, self._stop_until - time.monotonic())
        if not worker.has_ended(left_s):
            worker.handle.kill()
            raise LostActor(f"{worker.handle.name} did not stop and was given up")
        assert worker.running is not None
        worker.handle.wait(worker.running)


def _begin_stop(worker: Worker) -> None:
    worker.handle.begin(ClientWorker.stop)
