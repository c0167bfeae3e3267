"""Settings of a Locust run for tests, and a Locust worker that brings the master which it needs."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from squall.actors.locust.locust_master import LocustMaster
from squall.actors.locust.locust_worker import LocustWorker
from squall.actors.locust.settings import MASTER, LocustSettings
from squall.scenarios.config.locust import LocustConfig
from squall.scenarios.errors import LostActor
from squall.scenarios.locust_plan import LocustFiles
from squall.scenarios.plan.plan import PhaseSpan
from squall.scenarios.units import NS_PER_S

CALLER = """
from locust import User, constant, task


class Caller(User):
    wait_time = constant(0.02)

    @task
    def ask(self):
        self.environment.events.request.fire(
            request_type="own", name="ask", response_time=1.0, response_length=0, exception=None, context={}
        )
"""
"""Its requests need no server."""


class LedWorker(LocustWorker):
    """A Locust worker whose master runs beside it, in processes of their own; `lead` once, then as any worker."""

    def __init__(self, folder: Path, length_ns: int) -> None:
        own = settings_of(folder, worker=0, length_ns=length_ns, source=CALLER)
        super().__init__(own)
        self._master = LocustMaster(replace(own, worker=MASTER))
        self._is_abandoned = False

    def lead(self) -> None:
        """Starts both and connects them."""
        self.prepare(*self._master.prepare())
        self._master.wait_for_workers()

    def run(self, start_ns: int) -> None:
        leading = threading.Thread(target=self._lead, args=(start_ns,))
        leading.start()
        try:
            super().run(start_ns)
        finally:
            leading.join()

    def _lead(self, start_ns: int) -> None:
        try:
            self._master.run(start_ns)
        except LostActor:
            if not self._is_abandoned:  # then it may end before it has reported
                raise

    def stop(self) -> None:
        self._master.stop()
        super().stop()

    def abandoned(self) -> None:
        self._is_abandoned = True
        super().abandoned()
        self._master.abandoned()


def settings_of(
    folder: Path, worker: int = MASTER, n_workers: int = 1, source: str = "", length_ns: int = NS_PER_S
) -> LocustSettings:
    """Of a run of one measured phase and a second's drain, whose locustfile has that source."""
    files = LocustFiles("shop.py", {"shop.py": source.encode()})
    spans = (
        PhaseSpan("main", "measure", 0, length_ns),
        PhaseSpan("drain", "drain", length_ns, length_ns + NS_PER_S),
    )
    return LocustSettings(
        run="r", node="node-0", worker=worker, n_workers=n_workers, address="127.0.0.1", spill_dir=str(folder),
        config=LocustConfig(file="shop.py", users=5, spawn_rate=2.0), files=files, spans=spans,
        load_end_ns=length_ns, stop_timeout_ns=NS_PER_S, host="http://127.0.0.1:8000", targets=(), models=(), seed=1,
    )  # fmt: skip
