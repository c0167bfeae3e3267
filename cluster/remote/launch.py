"""How a process of ours comes to its node: Ray starts it there and is done with it, or this process on its own machine
where there is no Ray; it belongs to nobody then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from squall.actors.process.own_source import OwnCode, missing_libraries, own_code
from squall.cluster.remote import shipped
from squall.cluster.remote.channel import network
from squall.cluster.remote.forker import FORKER, Contact
from squall.scenarios.errors import ClusterError

if TYPE_CHECKING:  # a launcher needs no scenario: 0.3 s at the start of each
    from squall.cluster.placement import Node

_N_THREADS = 8
_RAY_TIMEOUT_S = 45.0
"""A first worker process of Ray on a node takes seconds; where Ray itself hangs, the driver's own node needs it not."""


class _Launcher:
    """What Ray runs on a node, one for all of our processes there."""

    def start(self, title: str, their_network: str, host: str, token: bytes) -> Contact:
        return FORKER.start(title, their_network, host, token)

    def code(self) -> OwnCode:
        """Raises ClusterError where a library is missing here."""
        missing = missing_libraries()
        if missing:
            quoted = " ".join(f"'{one}'" for one in missing)
            raise ClusterError(
                f"lacks {', '.join(missing)}: pip install {quoted} in the Python that runs Ray there"
            )
        return own_code()


class Launchers:
    """The launchers of one Ray session, by node; each is made when it is first asked for, and again where it died."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._shipped: dict[str, list[str]] = {}
        """By Ray's name of the node, where this process's squall was brought to it: the URIs of that."""

    def start(self, title: str, node: Node, token: bytes) -> Contact:
        """Starts a process on `node`; where Ray cannot, and the node is the driver's own, from here.

        Raises ClusterError.
        """
        if not node.ray_id:
            return FORKER.start(title, network(), node.address, token)
        try:
            return self._by_ray(title, node, token)
        except ClusterError:
            if not node.is_driver:
                raise
        return FORKER.start(title, network(), node.address, token)

    def codes(self, nodes: Sequence[Node]) -> dict[str, OwnCode | str]:
        """The code of squall on each node, by label, or why there is none; all are asked at once."""
        if not nodes:
            return {}
        import ray

        known = set(self._actors)
        asked = {node: self._actor_on(node).code.remote() for node in nodes if node.ray_id}
        until = time.monotonic() + _RAY_TIMEOUT_S
        found: dict[str, OwnCode | str] = {}
        for node, reference in asked.items():
            try:
                found[node.label] = ray.get(reference, timeout=max(0.1, until - time.monotonic()))
            except ray.exceptions.GetTimeoutError:
                found[node.label] = f"Ray started nothing there within {_RAY_TIMEOUT_S:g} s"
            except ray.exceptions.RayTaskError as error:
                found[node.label] = _words(error.cause)
            except ray.exceptions.RayError as error:
                self._actors.pop(node.ray_id, None)
                found[node.label] = _words(error)
        died = [node for node in asked if node.ray_id in known and node.ray_id not in self._actors]
        return {**found, **self.codes(died)}

    def ship(self, nodes: Sequence[Node]) -> None:
        """Brings this squall to the nodes: processes begun there from now on run it. Raises ClusterError."""
        try:
            uris = shipped.upload()
        except Exception as error:  # OSError, and Ray raises RuntimeError, ValueError and its own
            raise ClusterError(f"squall cannot be brought to other nodes: {_words(error)}") from error
        for node in nodes:
            self._shipped[node.ray_id] = uris
            self._actors.pop(node.ray_id, None)

    def _by_ray(self, title: str, node: Node, token: bytes) -> Contact:
        import ray

        was_there = node.ray_id in self._actors
        try:
            started = self._actor_on(node).start.remote(title, network(), node.address, token)
            # not ray.get: a thread that is in Ray's library when the session is left ends the whole process
            contact: Contact = started.future().result(_RAY_TIMEOUT_S)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise ClusterError(str(cause) if isinstance(cause, ClusterError) else _words(cause)) from error
        except TimeoutError as error:
            raise ClusterError(f"Ray started nothing on {node.label} within {_RAY_TIMEOUT_S:g} s") from error
        except ray.exceptions.RayError as error:
            self._actors.pop(node.ray_id, None)
            if was_there:
                return self._by_ray(title, node, token)
            raise ClusterError(f"Ray on {node.label}: {_words(error)}") from error
        return contact

    def _actor_on(self, node: Node) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if node.ray_id not in self._actors:
            # it reserves no CPU of Ray's: who runs where is decided by `squall.cluster.placement`, one worker a core
            self._actors[node.ray_id] = ray.remote(_Launcher).options(
                num_cpus=0, max_concurrency=_N_THREADS, max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.ray_id, soft=False),
                runtime_env={"py_modules": self._shipped[node.ray_id]} if node.ray_id in self._shipped else None,
            ).remote()  # fmt: skip
        return self._actors[node.ray_id]

    def forget(self) -> None:
        """At the end of the session: the actors are Ray's to end."""
        self._actors.clear()
        self._shipped.clear()


def _words(error: Exception) -> str:
    """One line: the last of a traceback from an actor's creation, else the first."""
    words = str(error).strip().splitlines() or [type(error).__name__]
    return (words[-1] if "creation task" in words[0] else words[0]).strip()
