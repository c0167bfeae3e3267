"""What is sampled: a source of rows, the table that these fill, and how often; of a node, a server, the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from squall.actors.clock import Clock
from squall.actors.sampling.observer_settings import ObserverSettings, ServerTarget
from squall.scenarios.records import Frozen

Row = dict[str, Any]
Seen = TypeVar("Seen")


class Source(Protocol):
    """One kind of sample: `table` names its table; `sample` gives rows for the interval since the last call."""

    table: str

    def sample(self, now_ns: int) -> list[Row]: ...


@dataclass
class Pids:
    """Processes of this node, which may become others."""

    pids: tuple[int, ...] = ()


class OwnNode(Frozen):
    """What is known of the observer's node: its servers' processes, its load workers, and the run's other processes,
    the observer first."""

    server_pids: Callable[[], Sequence[int]]
    clients: Pids
    own: Pids


class OwnServer(Frozen):
    """A server and those of its processes that are on this node."""

    target: ServerTarget
    pids: Callable[[], Sequence[int]]


class OwnGpus(Frozen):
    """The GPUs of the node, which NVML has."""

    with_gpm: bool
    server_pids: Callable[[], Sequence[int]]
    clock: Clock


class Sampled(Frozen, Generic[Seen]):
    """One table, how often it gets rows, and its source; None where there is nothing to sample."""

    table: str
    interval_ns: Callable[[ObserverSettings], int]
    source: Callable[[Seen], Source | None]
