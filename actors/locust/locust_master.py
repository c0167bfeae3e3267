"""The Locust master as the driver sees it: starts its process, watches it, and keeps what it says and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from squall.actors.locust.settings import LocustSettings
from squall.analysis.tables.locust import AskedUsers, LocustEntry, LocustException, LocustFailure


@dataclass(frozen=True)
class MasterAccount:
    """What the master said, up to now or up to its end. Instants are of its node's clock. `reported`: workers whose
    last report it has; `is_whole`: it ended in order. `files`: its outputs by name, as far as they were written."""

    version: str = ""
    user_classes: tuple[str, ...] = ()
    shape: str = ""
    asked: tuple[AskedUsers, ...] = ()
    ended_ns: int | None = None
    entries: tuple[LocustEntry, ...] = ()
    failures: tuple[LocustFailure, ...] = ()
    exceptions: tuple[LocustException, ...] = ()
    reported: tuple[int, ...] = ()
    is_whole: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)


class LocustMaster:
    """Life: `prepare`, `wait_for_workers`, `run` once, `account`; from other threads at any time `status`, `stop`."""

    def __init__(self, settings: LocustSettings) -> None:
        raise NotImplementedError

    def prepare(self) -> tuple[str, int]:
        """Starts the process; where it listens. Raises as `LocustWorker.prepare`, and ClusterError where the port of
        `load.locust.web` is taken."""
        raise NotImplementedError

    def wait_for_workers(self) -> None:
        """Returns when all workers are connected. Raises ClusterError where they are not in time."""
        raise NotImplementedError

    def run(self, start_ns: int) -> None:
        """Starts the users at `start_ns` (node's clock), stops them at the end of the load, waits for the last report
        of each worker, writes the outputs. Raises LostActor where the process died before that."""
        raise NotImplementedError

    def status(self) -> str:
        """Empty while it lives or after it ended in order. Raises LostActor where it died."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the load at once; the outputs are written."""
        raise NotImplementedError

    def abandoned(self) -> None:
        """Who gave the orders is gone: ends the process."""
        raise NotImplementedError

    def account(self) -> MasterAccount:
        """See there; of a master that died what it had said by then."""
        raise NotImplementedError
