"""The process of a Locust master or worker: `python -m squall.actors.locust.process ORDERS_FD RING_FD`, for `child`.

orders: pickle of (LocustSettings, path of the locustfile, where the master listens), then orders, a line each:
        `start NS` (node's clock) and `stop`; when it closes, the process ends
stdout: a JSON object a line, see `squall.actors.locust.child`; what user code prints goes to stderr, which is the log
"""

from __future__ import annotations

import locust  # patches the interpreter, before anything else has used what it patches

# isort: split
import json
import logging
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import gevent
import locust.log
import locust.runners

from squall.actors.locust.locustfile import BadLocustfile, load
from squall.actors.locust.master_role import MasterRole
from squall.actors.locust.settings import LocustSettings
from squall.actors.locust.worker_role import WorkerRole
from squall.actors.net.stream import allow_many_files

_ORDER_BYTES = 4_096
_MOST_RECORDS = 10_000


class Orders:
    """The lines of who started this process, and what is said to it."""

    def __init__(self, fd: int) -> None:
        self._said_fd = os.dup(1)
        os.dup2(2, 1)
        self._orders_fd = fd
        os.set_inheritable(fd, False)

    def first(self) -> Any:
        """What it is made with."""
        with os.fdopen(os.dup(self._orders_fd), "rb", buffering=0, closefd=True) as stream:
            return pickle.load(stream)

    def say(self, **fact: Any) -> None:
        """One line."""
        data = json.dumps(fact).encode() + b"\n"
        while data:
            data = data[os.write(self._said_fd, data) :]

    def hear(self) -> list[list[str]]:
        """The next orders, each by its words; waits for them, other greenlets run meanwhile."""
        pending = b""
        while not pending.endswith(b"\n"):
            pending += gevent.get_hub().threadpool.apply(_read_or_end, (self._orders_fd,))
        return [line.decode().split() for line in pending.splitlines()]


def _read_or_end(fd: int) -> bytes:
    """In a thread that gevent does not patch: who gives the orders may go while user code lets no greenlet run."""
    data = os.read(fd, _ORDER_BYTES)
    if not data:
        os._exit(1)
    return data


class _Nameless:
    """Stands for module `socket` in `locust.runners`, which names its clients after their hosts: no host name shall be
    in what a run keeps."""

    def __init__(self, name: str) -> None:
        self._name = name

    def gethostname(self) -> str:
        """Not the host's."""
        return self._name


class _NotEndless(logging.Filter):
    """Lets the first records of a process through: an exception in every task of every user would fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._n_left = _MOST_RECORDS

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written; the last one says that it is the last."""
        self._n_left -= 1
        if self._n_left == 0:
            record.msg, record.args = f"{record.getMessage()}\nno more is logged: {_MOST_RECORDS} records", ()
        return self._n_left >= 0


def _set_up(settings: LocustSettings) -> None:
    locust.runners.socket = _Nameless(settings.name)
    locust.log.HOSTNAME = settings.name
    locust.log.setup_logging("INFO")
    few = _NotEndless()
    for handler in (*logging.getLogger().handlers, *logging.getLogger("locust").handlers):
        handler.addFilter(few)
    allow_many_files()


def main(orders_fd: int, ring_fd: int) -> int:
    """Exit code 0, or 1 with the error said."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of a terminal: who started us decides
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # the supervisor ignores them: user code's own children should not
        signal.signal(number, signal.SIG_DFL)
    orders = Orders(orders_fd)
    settings, path, master = orders.first()
    _set_up(settings)
    try:
        loaded = load(settings, Path(path))
        role: MasterRole | WorkerRole
        if settings.is_master:
            role = MasterRole(settings, loaded, orders.say)
        else:
            role = WorkerRole(settings, loaded, orders.say, ring_fd, master)
        hearing = gevent.spawn(_obey, role, orders)
        role.play()
        hearing.kill()
    except BadLocustfile as error:
        orders.say(error=str(error), is_users=True)
        return 1
    except Exception as error:
        logging.exception("%s failed", settings.name)
        orders.say(error=f"{type(error).__name__}: {error}", is_users=False)
        return 1
    return 0


def _obey(role: MasterRole | WorkerRole, orders: Orders) -> None:
    while True:
        for order, *arguments in orders.hear():
            if order == "start":
                role.start(int(arguments[0]))
            elif order == "stop":
                role.stop()


if __name__ == "__main__":
    code = main(int(sys.argv[1]), int(sys.argv[2]))
    logging.shutdown()
    os._exit(code)  # threads and sockets of the user's may hang on
