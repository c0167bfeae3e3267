"""A Locust worker as the driver sees it: starts its process, watches it, and writes what its users did to spill files.

The process is one of its own, since gevent patches the interpreter; this one is not patched.
"""

from __future__ import annotations

import pyarrow as pa

from squall.actors.client_worker import Account, Standing
from squall.actors.locust.settings import LocustSettings
from squall.actors.messages.value_check import Tally
from squall.actors.process.priority import Scheduling
from squall.scenarios.plan.plan import Plan


class LocustWorker:
    """A `ClientWorker`. Life: `prepare`, `run` once, `leftovers`; from other threads at any time `status`, `stop`."""

    def __init__(self, settings: LocustSettings) -> None:
        raise NotImplementedError

    def prepare(self, host: str, port: int) -> None:
        """Starts the process, which loads the locustfile and connects to the master there.

        Raises ScenarioError for a locustfile that does not load or has no user class, in Locust's or Python's own
        words; ClusterError where the process does not start or finds no master, or files cannot be written.
        """
        raise NotImplementedError

    def pid(self) -> int:
        """Of the process with the users, once prepared."""
        raise NotImplementedError

    def run(self, start_ns: int, lease_until_ns: int | None = None) -> None:
        """Returns when its users have ended and all rows are in the spill files. Raises LostActor where the process
        died before that: what it had recorded is in the files all the same."""
        raise NotImplementedError

    def status(self) -> Standing:
        """Raises LostActor as `run` does, naming the users that are gone with it, and ScenarioError where an exception
        of on_start ended every user that was ever spawned and nothing was ever sent, in its own words."""
        raise NotImplementedError

    def n_users(self) -> int:
        """Users that it runs; of one that died, that it ran then."""
        raise NotImplementedError

    def counted(self) -> tuple[int, int] | None:
        """Requests and failures that Locust counted in the process, once it ended in order; else None."""
        raise NotImplementedError

    def renew(self, until_ns: int) -> Standing:
        """`status`: users of Locust have no lease."""
        raise NotImplementedError

    def take_over(self, part: Plan, number: int) -> None:
        """Raises ClusterError: there are no arrivals to take over."""
        raise NotImplementedError

    def cease(self, offset_ns: int) -> None:
        """Nothing: there is no schedule that could be certain before its end."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the users at once; what is in flight has no row."""
        raise NotImplementedError

    def abandoned(self) -> None:
        """Who gave the orders is gone: ends the process and closes the files, which stay."""
        raise NotImplementedError

    def no_lane(self) -> str:
        """The common case does not run in C."""
        raise NotImplementedError

    def scheduling(self) -> Scheduling:
        """Of an ordinary process."""
        raise NotImplementedError

    def account(self) -> Account:
        """What it had while it ran; after `run`."""
        raise NotImplementedError

    def tally(self) -> Tally:
        """No replies are compared."""
        raise NotImplementedError

    def n_issued(self) -> int:
        """Requests that have a row."""
        raise NotImplementedError

    def leftovers(self) -> list[pa.Table]:
        """Rows that its spill files could not take: what each is says its schema."""
        raise NotImplementedError
