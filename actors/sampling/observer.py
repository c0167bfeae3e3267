"""The observer of a node, in a process of its own: its samplers, each in a thread, and the answers of its clock.

It has its own GIL, so that what the agent does (importing a report, say) does not delay a sample.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.actors.clock import SystemClock
from squall.actors.process.priority import OBSERVER_NICENESS, own_niceness, own_session_niceness
from squall.actors.process.state import listening_pids
from squall.actors.process.sweep import share
from squall.actors.sampling.clock_responder import ClockResponder
from squall.actors.sampling.gpu.source import missing_reason
from squall.actors.sampling.observer_settings import ObserverSettings, ServerTarget
from squall.actors.sampling.sampled import (
    OF_GPUS,
    OF_NODE,
    OF_SERVER,
    sources_of,
)
from squall.actors.sampling.sampler import Sampler, stop_all, wait_for_baselines
from squall.actors.sampling.source import OwnGpus, OwnNode, OwnServer, Pids, Source
from squall.actors.sampling.threads import Family
from squall.scenarios.errors import ClusterError

_SWITCH_INTERVAL_S = 0.0005  # a tenth of Python's: an answer of the clock waits no longer for a sampler


class Observer:
    """Samplers and clock of one node. Made in the main thread of a process that is its alone; its calls may come from
    several threads. A spill file is readable to its last second however the process ends."""

    def __init__(self, settings: ObserverSettings) -> None:
        """Starts what the settings name; returns when every baseline is taken. Raises SquallError and OSError."""
        self._settings = settings
        self._clock = SystemClock()
        self._samplers: dict[str, Sampler] = {}
        self._families: dict[str, Family] = {}
        self._clients = Pids()
        self._own = Pids((os.getpid(), *settings.own))
        self._closing = threading.Lock()
        self._is_closed = False
        self._set_up_process()
        # who removes the node's scratch folder after a dead agent waits for what is still written there
        self._folder_lock = share(Path(settings.spill_dir).parent)
        self._responder: ClockResponder | None = None
        if settings.clock_host is not None:
            self._responder = ClockResponder(self._clock, settings.clock_host)
        node = OwnNode(self._server_pids, self._clients, self._own)
        self._add(sources_of(OF_NODE, node, settings))
        for target in settings.servers:
            self.add_server(target)
        if settings.with_gpu:
            self.add_gpus(settings.with_gpm)
        threading.Thread(target=self._close_on_sigterm, name="squall-sigterm", daemon=True).start()
        gc.collect()
        gc.freeze()
        self._begun_ns = self._clock.monotonic_ns()
        self._start_cpu_ns = time.process_time_ns()

    def _set_up_process(self) -> None:
        """Its priority. SIGTERM, which closes the files, is blocked in all threads but one that waits for it, since the
        main one may be within a read for long."""
        own_niceness(OBSERVER_NICENESS)
        own_session_niceness(OBSERVER_NICENESS)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pa.set_cpu_count(1)
        pa.array([0])  # what Arrow loads at its first array is no sample's cost
        sys.setswitchinterval(_SWITCH_INTERVAL_S)

    def _close_on_sigterm(self) -> None:
        signal.sigwait({signal.SIGTERM})
        try:
            self.close()
        finally:
            os._exit(0)

    def clock(self) -> tuple[tuple[str, int], bytes] | None:
        """Host and port at which the node's clock answers, and what a probe must carry; None: nowhere."""
        return None if self._responder is None else (self._responder.address, self._responder.token)

    def set_server_pids(self, server: str, pids: Sequence[int]) -> None:
        """The processes of a server that was started (again). Raises ClusterError where it was not added."""
        if server not in self._families:
            raise ClusterError(f"the observer of {self._settings.node} has no server {server}: add it first")
        self._families[server].set_roots(pids)

    def set_client_pids(self, pids: tuple[int, ...]) -> None:
        """The load workers of this node."""
        self._clients.pids = pids

    def add_own(self, pid: int) -> None:
        """A further process of the run: an agent in the place of one that died."""
        self._own.pids = (*self._own.pids, pid)

    def add_server(self, target: ServerTarget) -> None:
        """Statistics where there is a URL, and the threads of its processes, none where there are none yet. Raises
        ClusterError where it has it already, and for files of TLS that cannot be used."""
        settings = self._settings
        if target.port is not None:
            target = replace(target, pids=tuple(listening_pids(target.port)))
        if target.server in self._families:
            raise ClusterError(f"the observer of {settings.node} has the server {target.server} already")
        family = Family(target.pids, self._clock)
        try:
            sources = sources_of(OF_SERVER, OwnServer(target, family.pids), settings)
        except OSError as error:  # files of TLS
            raise ClusterError(str(error)) from error
        self._families[target.server] = family
        self._add(sources, target.server)

    def add_gpus(self, with_gpm: bool) -> None:
        """Samples of the GPUs and of their processes. Raises ClusterError where NVML cannot be used."""
        reason = missing_reason()
        if reason is not None:
            raise ClusterError(f"the GPUs of {self._settings.node} cannot be sampled: {reason}")
        gpus = OwnGpus(with_gpm, self._server_pids, self._clock)
        self._add(sources_of(OF_GPUS, gpus, self._settings))

    def stop(self) -> tuple[list[str], dict[str, Any]]:
        """`close`; what is missing from the tables, as sentences, and `facts`."""
        self.close()
        return self._losses(), self._facts()

    def abandoned(self) -> None:
        """Who gave the orders is gone: as `close`."""
        self.close()

    def close(self) -> None:
        """Takes the last samples and closes all files; ends the answers of the clock.

        What sources hold goes with the process: to close one that hangs in a driver would hang as well.
        """
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            stop_all(tuple(self._samplers.values()), self._clock)
            if self._responder is not None:
                self._responder.close()

    def _losses(self) -> list[str]:
        return [
            f"{name.partition('-')[2]}: {loss}" if "-" in name else loss
            for name, sampler in self._samplers.items()
            for loss in sampler.losses()
        ]

    def _facts(self) -> dict[str, Any]:
        """What observing cost: `cpu_ns` of the whole process since it was ready, `wall_ns`, `start_cpu_ns` before.

        `samplers`: see `Sampler.facts`, by table, and `table-server` for those of one server.
        """
        return {
            "cpu_ns": time.process_time_ns() - self._start_cpu_ns,
            "wall_ns": self._clock.monotonic_ns() - self._begun_ns,
            "start_cpu_ns": self._start_cpu_ns,
            "samplers": {name: sampler.facts() for name, sampler in self._samplers.items()},
        }

    def _server_pids(self) -> list[int]:
        return [pid for family in tuple(self._families.values()) for pid in family.pids()]

    def _add(self, sources: Sequence[tuple[Source, int]], server: str = "") -> None:
        """Starts a sampler for each (source, interval), rows labelled `server`; returns when each has a baseline."""
        labels = {"run": self._settings.run, "node": self._settings.node, "server": server}
        added = []
        for source, interval_ns in sources:
            name = f"{source.table}-{server}" if server else source.table
            path = _free_path(Path(self._settings.spill_dir), name)
            sampler = Sampler(source, labels, interval_ns, path, self._clock)
            sampler.begin()
            self._samplers[name] = sampler
            added.append(sampler)
        wait_for_baselines(added, self._clock)


def _free_path(folder: Path, name: str) -> Path:
    """Of a spill file; an observer before this one may have left some."""
    path, n_before = folder / f"{name}.arrows", 0
    while path.exists():
        n_before += 1
        path = folder / f"{name}-again{n_before}.arrows"
    return path
