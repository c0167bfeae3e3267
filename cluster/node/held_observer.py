"""The observer of a node, as its agent holds it: none before `start`."""

from __future__ import annotations

from squall.actors.process.state import listening_pids
from squall.actors.sampling.observer import Observer, ObserverSettings, ServerTarget
from squall.analysis.record import from_json
from squall.analysis.storage.collected import ObserverCost
from squall.cluster.node.endpoint import Endpoint
from squall.scenarios.config.profile import ProfileConfig


class NodeObserver:
    """`start` once; what is to be observed comes after it. `stop` as often as one likes."""

    def __init__(self, run: str, node: str) -> None:
        self._run = run
        self._node = node
        self._observer: Observer | None = None

    def start(
        self, profile: ProfileConfig, spill_dir: str, clock_host: str | None, driver: int | None
    ) -> tuple[tuple[str, int], bytes] | None:
        """Samples host and cores from now on; answers for the clock at `clock_host`: where, and the host' token.

        `driver`: the driver's process, if it is on this node.
        """
        settings = ObserverSettings(
            self._run, self._node, spill_dir, clock_host, profile.host_interval_ns,
            profile.thread_interval_ns, profile.triton_interval_ns, profile.gpu_interval_ns, driver=driver,
        )  # fmt: skip
        observer = Observer(settings)
        observer.start()
        self._observer = observer
        return (observer.clock, observer.token) if observer.clock is not None else None

    def add_server(self, name: str, endpoint: Endpoint, pids: tuple[int, ...], is_here: bool) -> None:
        """Samples the server at `endpoint` from now on, and its processes if it runs on this node (`is_here`).

        `pids`: those of one that squall has started, as its agent knows them.
        """
        roots = pids or (listening_pids(endpoint.port) if is_here else ())
        target = ServerTarget(
            name, endpoint.url if endpoint.has_statistics else None, endpoint.metrics_url,
            tuple(one.spec.name for one in endpoint.models), endpoint.access,
            tuple(roots),
        )  # fmt: skip
        self._started.add_server(target)

    def set_server_pids(self, name: str, pids: list[int]) -> None:
        """Those of a server that was started again; nothing where no observer lives. Raises ClusterError."""
        if self._observer is not None and self._observer.is_alive:
            self._observer.set_server_pids(name, pids)

    def set_clients(self, pids: tuple[int, ...]) -> None:
        """Tells the load workers of this node from what else runs on it, from now on."""
        self._started.set_client_pids(pids)

    def add_gpus(self, with_gpm: bool) -> None:
        """Samples the node's GPUs from now on. Raises ClusterError where NVML cannot be used."""
        self._started.add_gpus(with_gpm)

    @property
    def has_ended(self) -> bool:
        """Whether it was started, and ended by itself."""
        return self._observer is not None and self._observer.pid is not None and not self._observer.is_alive

    def stop(self) -> tuple[list[str], ObserverCost | None]:
        """Takes the last samples; returns what is missing, and what observing cost."""
        if self._observer is None:
            return [], None
        report = self._observer.stop()
        cost = from_json(ObserverCost, report.facts, "observer") if report.facts else None
        return list(report.losses), cost

    @property
    def _started(self) -> Observer:
        assert self._observer is not None, "start_observer comes first"
        return self._observer
