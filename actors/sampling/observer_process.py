"""The process of an observer: its samplers, each in a thread, and the answers of its clock. See
`squall.actors.sampling.observer`.

stdin:  pickles of ObserverSettings and then of orders, None to stop; when it closes, the process ends likewise
stdout: a line of JSON for each: {"is_ready": true, "clock": [host, port], "token": hex} · {"is_done": true} ·
        {"losses": […], "facts": {…}}; or {"error": …} in place of any
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.actors.clock import Clock, SystemClock
from squall.actors.process.priority import OBSERVER_NICENESS, own_niceness, own_session_niceness
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
from squall.actors.sampling.source import ClientPids, OwnGpus, OwnNode, OwnServer, Source
from squall.actors.sampling.threads import Family
from squall.scenarios.errors import ClusterError, SquallError

_FAILED = 1
_SWITCH_INTERVAL_S = 0.0005  # a tenth of Python's: an answer of the clock waits no longer for a sampler


class Observing:
    """Samplers and clock of one node. `close` takes the last samples; after it `losses` and `facts` are whole."""

    def __init__(self, settings: ObserverSettings, clock: Clock) -> None:
        """Starts what the settings name; returns when every baseline is taken. Raises SquallError and OSError."""
        pa.array(
            [0]
        )  # what Arrow loads at its first array (pandas, where it is installed: 0.3 s) is no sample's cost
        self._settings = settings
        self._clock = clock
        self._samplers: dict[str, Sampler] = {}
        self._families: dict[str, Family] = {}
        self._clients = ClientPids(driver=settings.driver)
        # who removes the node's scratch folder after a dead agent waits for what is still written there
        self._folder_lock = share(Path(settings.spill_dir).parent)
        self._responder: ClockResponder | None = None
        if settings.clock_host is not None:
            self._responder = ClockResponder(clock, settings.clock_host)
        self._add(sources_of(OF_NODE, OwnNode(self._server_pids, self._clients), settings))
        for target in settings.servers:
            self.add_server(target)
        if settings.with_gpu:
            self.add_gpus(settings.with_gpm)
        self._begun_ns = clock.monotonic_ns()
        self._start_cpu_ns = time.process_time_ns()

    def clock_facts(self) -> dict[str, Any]:
        """Where the clock is answered, for the ready line; empty if it is not."""
        if self._responder is None:
            return {}
        return {"clock": list(self._responder.address), "token": self._responder.token.hex()}

    def set_server_pids(self, server: str, pids: Sequence[int]) -> None:
        """The processes of a server that was started (again). Raises ClusterError where it was not added."""
        if server not in self._families:
            raise ClusterError(f"the observer of {self._settings.node} has no server {server}: add it first")
        self._families[server].set_roots(pids)

    def set_client_pids(self, pids: tuple[int, ...]) -> None:
        """The load workers of this node."""
        self._clients.pids = pids

    def add_server(self, target: ServerTarget) -> None:
        """Statistics where there is a URL, and the threads of its processes, none where there are none yet."""
        settings = self._settings
        if target.server in self._families:
            raise ClusterError(f"the observer of {settings.node} has the server {target.server} already")
        family = Family(target.pids, self._clock)
        sources = sources_of(OF_SERVER, OwnServer(target, family.pids), settings)
        self._families[target.server] = family
        self._add(sources, target.server)

    def add_gpus(self, with_gpm: bool) -> None:
        """Samples of the GPUs and of their processes. Raises ClusterError where NVML cannot be used."""
        reason = missing_reason()
        if reason is not None:
            raise ClusterError(f"the GPUs of {self._settings.node} cannot be sampled: {reason}")
        gpus = OwnGpus(with_gpm, self._server_pids, self._clock)
        self._add(sources_of(OF_GPUS, gpus, self._settings))

    def close(self) -> None:
        """Takes the last samples and closes all files; ends the answers of the clock.

        What sources hold goes with the process: to close one that hangs in a driver would hang as well.
        """
        stop_all(tuple(self._samplers.values()), self._clock)
        if self._responder is not None:
            self._responder.close()

    def losses(self) -> list[str]:
        """What is missing from the tables, as sentences."""
        return [
            f"{name.partition('-')[2]}: {loss}" if "-" in name else loss
            for name, sampler in self._samplers.items()
            for loss in sampler.losses()
        ]

    def facts(self) -> dict[str, Any]:
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
            self._samplers[name] = sampler
            added.append(sampler)
        for sampler in added:
            sampler.begin()
        wait_for_baselines(added, self._clock)


def _free_path(folder: Path, name: str) -> Path:
    """Of a spill file; an observer before this one may have left some."""
    path, n_before = folder / f"{name}.arrows", 0
    while path.exists():
        n_before += 1
        path = folder / f"{name}-again{n_before}.arrows"
    return path


def _close_on_sigterm(observing: Observing) -> None:
    """A thread that waits for the signal, which is blocked in all: the main one may be within a read for long."""
    signal.sigwait({signal.SIGTERM})
    observing.close()
    os._exit(0)


def _say(**fact: Any) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more: the samples matter, not the words
        print(json.dumps(fact), flush=True)


def _serve(observing: Observing) -> None:
    """Does what it is told until it is told to stop, or who started it has ended."""
    while True:
        try:
            order = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):
            return
        if order is None:
            return
        try:
            name, *given = order
            getattr(observing, name)(*given)
            _say(is_done=True)
        except (SquallError, OSError) as error:
            _say(error=str(error))
        except Exception as error:  # a process's edge: what runs already goes on
            _say(error=f"{type(error).__name__}: {error}")


def main() -> int:
    """Exit code 0, or 1 with the error said. SIGTERM must be blocked already."""
    own_niceness(OBSERVER_NICENESS)
    own_session_niceness(OBSERVER_NICENESS)
    pa.set_cpu_count(1)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        observing = Observing(pickle.load(sys.stdin.buffer), SystemClock())
    except EOFError:  # it ended before it had told its settings
        return _FAILED
    except (SquallError, OSError) as error:
        _say(error=str(error))
        return _FAILED
    threading.Thread(target=_close_on_sigterm, args=(observing,), name="squall-sigterm", daemon=True).start()
    gc.collect()
    gc.freeze()
    _say(is_ready=True, **observing.clock_facts())
    _serve(observing)
    observing.close()
    _say(losses=observing.losses(), facts=observing.facts())
    return 0
