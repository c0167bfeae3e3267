"""The only place that makes Ray actors: plain classes in, handles that return values or raise our errors."""

from __future__ import annotations

import os
from typing import Any

from actors.priority import Settled, settle_process
from cluster.placement import Node
from scenarios.errors import ClusterError, LostActor, SquallError

CALL_TIMEOUT_S = 60.0


class Handle:
    """An actor on a node. `call` waits for the answer; `begin` does not, `wait` and `is_done` finish it."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self._actor = actor

    def take_over(self, heir: Handle) -> None:
        """From now on this handle speaks to the actor of `heir`: the one it had has died."""
        self._actor = heir._actor

    def begin(self, method: str, *arguments: Any) -> Any:
        """Starts a call and returns a reference to its answer. Raises LostActor where Ray takes no calls."""
        import ray

        try:
            return self._actor.do.remote(method, *arguments)
        except ray.exceptions.RayError as error:
            raise self._lost(error) from error

    def pid(self) -> int:
        """The actor's process on its node. Raises what `wait` raises."""
        found: int = self.wait(self._actor.pid.remote())
        return found

    def call(self, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """The answer of a call. Raises what `wait` raises."""
        return self.wait(self.begin(method, *arguments), timeout_s)

    def settled(self) -> Settled:
        """What Ray gave the actor's process, and what it made of that. Raises what `wait` raises."""
        found: Settled = self.wait(self._actor.settled.remote())
        return found

    def wait(self, reference: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """The answer of a call begun before.

        Raises the SquallError that the actor raised, LostActor if it died, ClusterError for any other failure
        and when the answer takes longer than `timeout_s`.
        """
        import ray

        try:
            return ray.get(reference, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, SquallError):
                raise cause from None
            raise ClusterError(f"{self.name}: {type(cause).__name__}: {cause}") from error
        except ray.exceptions.GetTimeoutError as error:
            raise ClusterError(f"{self.name} did not answer within {timeout_s:g} s") from error
        except ray.exceptions.RayError as error:
            raise self._lost(error) from error

    def is_done(self, reference: Any, timeout_s: float = 0.0) -> bool:
        """True once the call has an answer or has failed, waiting at most `timeout_s` for it.

        Raises LostActor where Ray itself is gone.
        """
        import ray

        try:
            return bool(ray.wait([reference], timeout=timeout_s)[0])
        except ray.exceptions.RayError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> LostActor:
        import ray

        # Ray says it in three lines of gRPC's words
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            return LostActor(f"{self.name} is lost: its process cannot be reached any more")
        words = str(error).strip().splitlines() or [type(error).__name__]
        cause = words[-1] if "creation task" in words[0] else words[0]  # the last line of its traceback
        return LostActor(f"{self.name} is lost: {cause.strip()}")


def spawn(name: str, node: Node, cls: type, *arguments: Any, n_threads: int) -> Handle:
    """An actor of `cls(*arguments)` on `node`, its calls served by `n_threads` threads.

    It reserves no CPU of Ray's: who runs where is decided by `cluster.placement`, one worker a core.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    class Host:
        def __init__(self, cls: type, *arguments: Any) -> None:
            self._settled = settle_process()
            self._object = cls(*arguments)

        def pid(self) -> int:
            return os.getpid()

        def settled(self) -> Settled:
            return self._settled

        def do(self, method: str, *arguments: Any) -> Any:
            return getattr(self._object, method)(*arguments)

    Host.__name__ = Host.__qualname__ = cls.__name__  # what ps shows: ray::LoadWorker
    remote = ray.remote(Host).options(
        num_cpus=0,
        max_concurrency=n_threads,
        max_restarts=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.ray_id, soft=False),
    )
    return Handle(f"{name} on {node.label}", remote.remote(cls, *arguments))
