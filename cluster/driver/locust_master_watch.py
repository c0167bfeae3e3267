"""The Locust master while the load runs: whether it lives, how it ends, what it says then."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from squall.actors.locust.locust_master import LocustMaster, MasterAccount
from squall.cluster.driver.locust_crew import Crew
from squall.scenarios.errors import ClusterError, LostActor, SquallError

_LAST_REPORTS_S = 20.0
"""After the workers' end: the last reports are taken in and the outputs written."""
_STOP_S = 10.0
_ANSWER_S = 10.0
_STATE_S = 0.5


class MasterWatch:
    """`start`, `look` once a second, then `end`; `losses` takes what is lost with it."""

    def __init__(self, crew: Crew, losses: list[str], tell: Callable[[str], None]) -> None:
        """`tell`: hears of each loss too."""
        self._crew = crew
        self._losses = losses
        self._tell = tell
        self._running: Future[None] | None = None
        self._asked: Future[str] | None = None
        self._why_lost = ""
        self._is_told_to_stop = False

    def start(self, start_ns: int) -> None:
        """Tells it to run from then on, on its node's clock; without waiting. Raises LostActor."""
        self._running = self._crew.master.begin(LocustMaster.run, start_ns)

    def look(self) -> bool:
        """Asks it how it is; whether it is lost."""
        if self._why_lost:
            return True
        master = self._crew.master
        try:
            if self._asked is None:
                self._asked = master.begin(LocustMaster.status)
            if master.is_done(self._asked, _STATE_S):
                reference, self._asked = self._asked, None
                master.wait(reference)
        except LostActor as error:
            self._lose(error)
        return bool(self._why_lost)

    def stop(self) -> None:
        """Tells it to end the load now; it writes its outputs."""
        if self._running is not None and not self._why_lost and not self._is_told_to_stop:
            self._is_told_to_stop = True
            with suppress(LostActor):  # told where its end is waited for
                self._crew.master.begin(LocustMaster.stop)

    def end(self) -> MasterAccount | None:
        """Waits for its end, all workers having ended; what it has said, None where nobody can be asked. One that does
        not end is told to stop, then it is given up."""
        master, running = self._crew.master, self._running
        if running is not None and not self._why_lost:
            try:
                if not master.is_done(running, _LAST_REPORTS_S):
                    self.stop()
                if not master.is_done(running, _STOP_S):
                    raise LostActor("it did not end")
                master.wait(running)
            except LostActor as error:
                self._lose(error)
            except SquallError as error:
                self._losses.append(f"{master.name}: {error}")
        with suppress(ClusterError):  # its own process is gone too: what it had said at the start is known
            self._crew.account = master.wait(master.begin(LocustMaster.account), _ANSWER_S)
        return self._crew.account

    def _lose(self, error: LostActor) -> None:
        why = str(error)
        self._why_lost = f"the Locust master is lost: {why.partition(' is lost: ')[2] or why}"
        self._losses.append(self._why_lost)
        self._tell(self._why_lost)
