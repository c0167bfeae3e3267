"""The processes of a Locust run: put on their nodes, and connected to one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from squall.actors.locust.locust_master import LocustMaster, MasterAccount
from squall.actors.locust.locust_worker import LocustWorker
from squall.actors.locust.settings import LocustSettings
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import Handle, end_all, spawn

_CONNECTED_WITHIN_S = 120.0
"""Of a process: it imports Locust and the locustfile, on cores that all of them share."""
_THREADS = 4
"""Of a process's calls: its run, its state, its end, and what is asked beside them."""


@dataclass
class Crew:
    """`settings` are the master's, `workers` in the order of their numbers. `account`: what the master has said, once
    it was asked."""

    master: Handle[LocustMaster]
    node: Node
    settings: LocustSettings
    workers: list[Handle[LocustWorker]]
    worker_settings: list[LocustSettings]
    account: MasterAccount | None = None

    def connect(self) -> MasterAccount:
        """Starts Locust's own processes; what the master says when all workers are connected to it. Raises what
        `LocustMaster.prepare` and `LocustWorker.prepare` raise, and what `Handle.wait` does."""
        host, port = self.master.wait(self.master.begin(LocustMaster.prepare), _CONNECTED_WITHIN_S)
        begun = [one.begin(LocustWorker.prepare, host, port) for one in self.workers]
        for one, reference in zip(self.workers, begun, strict=True):
            one.wait(reference, _CONNECTED_WITHIN_S)
        self.master.wait(self.master.begin(LocustMaster.wait_for_workers), _CONNECTED_WITHIN_S)
        self.account = self.master.call(LocustMaster.account)
        return self.account

    def begin_pids(self) -> list[tuple[str, Handle[object], Future[int]]]:
        """Asks for the processes of each node: the label of the node, and the answer of whom."""
        found: list[tuple[str, Handle[object], Future[int]]] = [
            (self.node.label, self.master, self.master.begin_pid()),
            (self.node.label, self.master, self.master.begin(LocustMaster.pid)),
        ]
        for one, settings in zip(self.workers, self.worker_settings, strict=True):
            found += [
                (settings.node, one, one.begin_pid()),
                (settings.node, one, one.begin(LocustWorker.pid)),
            ]
        return found

    def end(self) -> None:
        """Ends the master; workers are ended with those of any run."""
        end_all([self.master])


def spawn_crew(master: LocustSettings, workers: Sequence[LocustSettings], nodes: Mapping[str, Node]) -> Crew:
    """A process for each, asked for and not waited for; `nodes` by label."""
    return Crew(
        spawn("Locust master", nodes[master.node], _THREADS, LocustMaster, master),
        nodes[master.node],
        master,
        [
            spawn(f"Locust worker {one.worker}", nodes[one.node], _THREADS, LocustWorker, one)
            for one in workers
        ],
        list(workers),
    )
