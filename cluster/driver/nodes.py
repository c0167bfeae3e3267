"""The nodes of a run: agent and observer on each, their clocks, and what becomes of a node whose agent dies."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from squall.actors.clock import clock_domain
from squall.actors.net.stream import allow_many_files
from squall.actors.sampling.observer import Observer
from squall.actors.sampling.observer_settings import ObserverSettings
from squall.analysis.record import from_json
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.collected import ClockCost, ObserverCost
from squall.cluster.driver.clocksync import ClockWatch
from squall.cluster.driver.copies import folder_of
from squall.cluster.driver.node_files import FilesHere, NodeFiles, files_seen
from squall.cluster.node.agent import FIRST_SERVER, NodeAgent
from squall.cluster.node.injected.ring_folder import sweep_rings
from squall.cluster.node.scratch import remove_free, sweep_scratch, this_place
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import Handle, ask_all, end_all, same_code, spawn, wait_all
from squall.cluster.remote.turns import Turns
from squall.scenarios.config.profile import ProfileConfig
from squall.scenarios.errors import ClusterError, LostActor, SquallError

_AGENT_THREADS = 4
_OBSERVER_THREADS = 2
_SAMPLES_END = (
    "its host, core, CPU, thread, Triton and GPU samples end there, without up to a second before, and its clock"
    " answers no more"
)
_AWAKE_S = 10.0
_CLOSE_S = 60.0
_SERVER_ENDS_WITHIN_S = 20.0
"""Of an agent that was killed: its supervisor ends it, which writes until then."""
_SILENT_S = 30
"""So long without an answer is told; the agent may be busy, so it is not taken for dead."""


def label_of(site: str) -> str:
    """The node of a site, as `Nodes` names them."""
    return site.partition("/")[0]


@dataclass
class _Site:
    node: Node
    server: str
    agent: Handle[NodeAgent]
    folder: str
    files: NodeFiles
    beating: Future[list[str]] | None = None
    asked_s: float = 0.0
    is_adopted: bool = False


class Nodes:
    """Added one by one, then `start_clocks`; `beat` once a second while the load runs, `release` at the end.

    Every agent has a site: that of a node is called as the node, that of a further server on it `node-1/server-3`.

    An agent that dies takes server and profiler of its node along. What they had written stays: an agent is put in its
    place that adopts its scratch folder, and the handle that everybody has speaks to that one then.
    """

    def __init__(self, run: str, run_dir: Path, profile: ProfileConfig, anchor_ns: int) -> None:
        """`anchor_ns`: the run clock minus the driver's monotonic clock."""
        self._run = run
        self._run_dir = run_dir
        self._profile = profile
        self._watch = ClockWatch(anchor_ns)
        self._sites: dict[str, _Site] = {}
        self._told: set[str] = set()
        self._turns = Turns()
        self.with_server: set[str] = set()
        """Sites whose agent has started a server: it ends with that agent; one at a URL serves on."""
        self._begun: list[Handle[NodeAgent]] = []
        self.observers: dict[str, Handle[Observer]] = {}
        """By node, from `start_clocks` on."""
        self.shipped_to: dict[str, str] = {}
        """Nodes to which this process's squall was brought for the run, by label: what they had."""

    @property
    def agents(self) -> dict[str, Handle[NodeAgent]]:
        """The agents by site."""
        return {label: site.agent for label, site in self._sites.items()}

    @property
    def lost(self) -> list[str]:
        """Sites whose agent died."""
        return [label for label, site in self._sites.items() if site.is_adopted]

    def add(self, nodes: Iterable[Node], servers: Sequence[tuple[str, Node]] = ()) -> dict[str, str]:
        """Puts an agent on each node, and one for each further server of a node, all at once; the site of each server.

        `servers`: by name, on which node. Raises ClusterError where an agent does not come up, and before any does
        where a node cannot run this process's squall.
        """
        allow_many_files()  # each process and clock of a node has sockets here
        nodes = list(nodes)
        self.shipped_to = same_code(nodes)
        places = {node.label: (node, FIRST_SERVER) for node in nodes}
        sites: dict[str, str] = {}
        for name, node in servers:
            site = f"{node.label}/{name}" if node.label in sites.values() else node.label
            places[site], sites[name] = (node, name), site
        agents = {site: self._spawn(site, *place, None) for site, place in places.items()}
        self._begun = list(agents.values())
        asked = [(agent.begin(NodeAgent.folder), agent.begin(NodeAgent.owner)) for agent in agents.values()]
        for (site, agent), (folder_asked, owner_asked) in zip(agents.items(), asked, strict=True):
            folder, owner = agent.wait(folder_asked), agent.wait(owner_asked)
            node, server = places[site]
            self._sites[site] = _Site(
                node,
                server,
                agent,
                folder,
                files_seen(folder, owner, node.label, agent, folder_of(self._run_dir, site)),
            )
        return sites

    def _spawn(self, site: str, node: Node, server: str, adopted: str | None) -> Handle[NodeAgent]:
        seen = (str(self._run_dir.resolve()), this_place())
        return spawn(
            "agent", node, _AGENT_THREADS, NodeAgent, self._run, node.label, adopted, self._profile, seen, server, site
        )  # fmt: skip

    @property
    def hosts(self) -> dict[str, Handle[NodeAgent]]:
        """The agents of the nodes themselves, by label."""
        return {label: site.agent for label, site in self._sites.items() if label == site.node.label}

    @property
    def folders(self) -> dict[str, str]:
        """The scratch folder of each agent, by site."""
        return {label: site.folder for label, site in self._sites.items()}

    @property
    def files(self) -> dict[str, NodeFiles]:
        """The files of each agent, by site."""
        return {label: site.files for label, site in self._sites.items()}

    def is_of_ray(self, site: str) -> bool:
        """Whether Ray has its node; else its processes were started from here."""
        return bool(self._sites[site].node.ray_id)

    def start_clocks(self) -> None:
        """Starts every node's observer, and reads the clocks of those that do not share the driver's from now on.

        Raises ClusterError where one does not answer.
        """
        own = clock_domain()
        sites = sorted((label, self._sites[label]) for label in self.hosts)
        domains = [site.agent.begin(NodeAgent.clock_domain) for _, site in sites]
        folders = [site.agent.begin(NodeAgent.spill_dir) for _, site in sites]
        pids = wait_all(self.agents, {label: agent.begin_pid() for label, agent in self.agents.items()})
        for (label, site), domain, folder in zip(sites, domains, folders, strict=True):
            is_own = site.agent.wait(domain) == own
            agents = tuple(pid for other, pid in pids.items() if label_of(other) == label)
            profile = self._profile
            settings = ObserverSettings(
                self._run, label, site.agent.wait(folder), None if is_own else site.node.address,
                profile.host_interval_ns, profile.thread_interval_ns, profile.triton_interval_ns,
                profile.gpu_interval_ns, own=(*agents, *([os.getpid()] if site.node.is_driver else [])),
            )  # fmt: skip
            self.observers[label] = spawn("observer", site.node, _OBSERVER_THREADS, Observer, settings)
        for label, answering in ask_all(self.observers, Observer.clock).items():
            if answering is None:  # its clock is the driver's
                self._watch.add_own(label)
            else:
                self._watch.add(label, *answering)
        self._watch.settle()
        self._watch.start()

    def clocks(self) -> dict[str, ClockTrack]:
        """Each node's monotonic clock to the run clock, by all that is known now."""
        return self._watch.tracks()

    def note_edge(self) -> None:
        """A phase begins or ends: the clocks are read more closely."""
        self._watch.burst()

    def stop_clocks(self) -> tuple[Iterator[pa.Table], list[str]]:
        """Reads the clocks a last time: all probes as tables, and what was wrong with a clock."""
        self._watch.stop()
        return self._watch.probes(self._run), self._watch.losses()

    def clock_cost(self) -> ClockCost:
        """What reading the clocks took of the driver."""
        n_probes, cpu_ns = self._watch.cost()
        return ClockCost(n_probes=n_probes, cpu_ns=cpu_ns)

    def beat(self) -> list[str]:
        """Asks the agents how they are, in turn where they are many, and does not wait; what is newly wrong, as
        sentences."""
        asked = self._turns.next(list(self._sites.items()))
        found = [trouble for label, site in asked for trouble in self._beat(label, site)]
        found += [f"{one.name} has ended" for one in self.observers.values() if one.ended_ns is not None]
        new = [trouble for trouble in found if trouble not in self._told]
        self._told.update(new)
        return new

    def _beat(self, label: str, site: _Site) -> list[str]:
        try:
            if site.beating is not None:
                if not site.agent.is_done(site.beating):
                    is_long = time.monotonic() - site.asked_s >= _SILENT_S
                    return [f"agent on {label} has not answered for {_SILENT_S} s"] if is_long else []
                reference, site.beating = site.beating, None
                troubles = site.agent.wait(reference)
            else:
                troubles = []
            site.beating, site.asked_s = site.agent.begin(NodeAgent.heartbeat), time.monotonic()
        except LostActor as error:
            return self._adopt(label, error)
        except SquallError as error:
            site.beating = None
            return [str(error)]
        return troubles

    def wake(self) -> list[str]:
        """After the load: an agent that does not answer any more is given up, and its files are adopted."""
        asked = {label: self._ask(site) for label, site in self._sites.items()}
        found = []
        until = time.monotonic() + _AWAKE_S
        for label, reference in asked.items():
            site = self._sites[label]
            try:
                if reference is None:
                    raise LostActor(f"{site.agent.name} is lost")
                site.agent.wait(reference, max(0.0, until - time.monotonic()))
            except LostActor as error:
                found += self._adopt(label, error)
            except ClusterError as error:
                site.agent.kill()
                found += self._adopt(label, LostActor(f"{error} and was given up"))
        return found

    def _ask(self, site: _Site) -> Future[str] | None:
        with suppress(LostActor):
            return site.agent.begin(NodeAgent.folder)
        return None

    def adopt(self, label: str, error: LostActor) -> list[str]:
        """To be told where a call finds an agent lost; as `beat`."""
        return self._adopt(label, error)

    def put_again(self, label: str, error: LostActor) -> list[str]:
        """As `adopt`, also in the place of an agent that was put there and is lost too: its node may be back by now."""
        site = self._sites[label]
        if not site.is_adopted:
            return self._adopt(label, error)
        self._put_heir(label, site)
        return []

    def _adopt(self, label: str, error: LostActor) -> list[str]:
        site = self._sites[label]
        site.beating = None
        if site.is_adopted:
            return []
        site.is_adopted = True
        self._put_heir(label, site)
        if label in self.with_server:
            return [f"{error}: the server and profiler that it had started end there"]
        return [f"{error}: what it took of a server there ends with it"]

    def _put_heir(self, label: str, site: _Site) -> None:
        with suppress(SquallError):
            heir = self._spawn(label, site.node, site.server, site.folder)
            site.agent.take_over(heir)
            if site.node.label in self.observers:
                self.observers[site.node.label].begin(Observer.add_own, heir.pid())

    def stop_observers(self, timeout_s: float) -> tuple[list[str], dict[str, ObserverCost]]:
        """Has the last samples taken, on all nodes at once; what is missing of them, as sentences, and what observing
        cost, by node. A second call changes nothing."""
        asked, notes, found = {}, list[str](), {}
        for label, observer in self.observers.items():
            try:
                asked[label] = observer.begin(Observer.stop)
            except LostActor as error:
                notes.append(f"{error}: {_SAMPLES_END}")
        until = time.monotonic() + timeout_s
        for label, reference in asked.items():
            try:
                losses, facts = self.observers[label].wait(reference, max(0.0, until - time.monotonic()))
            except ClusterError as error:
                notes.append(f"{error}: {_SAMPLES_END}")
                continue
            notes += losses
            found[label] = from_json(ObserverCost, facts, "observer")
        return notes, found

    def release(self, keeps: Collection[str] = ()) -> list[str]:
        """Closes every agent, all at once; returns what did not go well. `keeps`: sites whose folder stays.

        One that does not end in time ends by itself: nobody is there to give it orders.
        """
        with suppress(ClusterError):
            self._watch.stop()
        self.stop_observers(_CLOSE_S)  # before the folder goes into which they write
        end_all(self.observers.values())
        notes = []
        closing = []
        for label, agent in self.agents.items():
            with suppress(LostActor):  # told where it was found out
                closing.append((agent, agent.begin(NodeAgent.close, label in keeps)))
        until = time.monotonic() + _CLOSE_S
        for agent, reference in closing:
            try:
                agent.wait(reference, max(0.0, until - time.monotonic()))
            except ClusterError as error:
                notes.append(f"clean-up: {error}")
        end_all({id(agent): agent for agent in (*self._begun, *self.agents.values())}.values())
        for label, site in self._sites.items():
            if isinstance(site.files, FilesHere) and label not in keeps:  # an agent that died could not
                remove_free(Path(site.folder), _SERVER_ENDS_WITHIN_S)
        sweep_scratch()  # of an agent that was killed before it had said where its folder is
        sweep_rings()  # of one that died after the load: nobody was put in its place
        self._sites.clear()
        self.observers.clear()
        return notes
