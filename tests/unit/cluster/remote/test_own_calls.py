"""What every process answers hides no method of the object in it."""

from __future__ import annotations

from squall.actors.client_worker import ClientWorker
from squall.actors.locust.locust_master import LocustMaster
from squall.actors.locust.locust_worker import LocustWorker
from squall.cluster.node.agent import NodeAgent
from squall.cluster.remote.served import LIVES, PID, SETTLED


def test_an_object_may_have_a_method_that_is_called_pid() -> None:
    """A Locust worker has one: of the process with its users, not of the one that answers."""
    for name in (PID, SETTLED):
        assert not name.isidentifier()
    for cls in (ClientWorker, LocustMaster, LocustWorker, NodeAgent):
        assert not hasattr(cls, LIVES), cls
