"""What an observer is told: its settings at the start, and the servers that it is to observe. All of it pickles."""

from __future__ import annotations

from squall.actors.net.access import PLAIN, Access
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S


class ServerTarget(Frozen):
    """A server to observe, `server` being its label.

    `url` and `metrics_url` are asked for statistics of `models`, and of every other that takes part in anything; None
    is every model; `url` None: not asked.
    `pids`: its processes, if they are on this node; their descendants are found. `port`: where one listens on this node
    whose processes are to be found by that.
    """

    server: str
    url: str | None = None
    metrics_url: str | None = None
    models: tuple[str, ...] | None = None
    access: Access = PLAIN
    pids: tuple[int, ...] = ()
    port: int | None = None


class ObserverSettings(Frozen):
    """What is sampled from the start, how often, and where the spill files go.

    `clock_host`: address on which the clock is answered; None: it is not. `servers` and the GPUs may also be added
    later. `own`: processes of the run on this node beside servers, load workers and the observer: agents, the driver.
    """

    run: str
    node: str
    spill_dir: str
    clock_host: str | None = None
    host_interval_ns: int = NS_PER_S
    thread_interval_ns: int = NS_PER_S
    triton_interval_ns: int = NS_PER_S // 10
    gpu_interval_ns: int = NS_PER_S // 10
    with_gpu: bool = False
    with_gpm: bool = True
    servers: tuple[ServerTarget, ...] = ()
    own: tuple[int, ...] = ()
