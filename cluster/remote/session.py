"""The nodes of a command: those of a Ray that is joined, or that is started here; without Ray this machine."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

import psutil

from squall.actors.sampling.gpu.source import gpu_identities
from squall.cluster.node.scratch import Scratch
from squall.cluster.placement import Node
from squall.cluster.remote.forker import FORKER
from squall.cluster.remote.ray_end import children, end_ray, never_stuck, within
from squall.cluster.remote.ray_watch import RayWatch
from squall.cluster.remote.spawn import forget_launchers
from squall.scenarios.errors import ClusterError
from squall.scenarios.foreign_text import printable

_OBJECT_STORE_BYTES = 256 * 1024**2
"""Enough for plans and chunks of spill files; Ray would take a third of the memory."""
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of answers that nobody waits for any more, after a Ctrl-C
}  # fmt: skip
_PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": str(24 * 3600)}
"""Ray's library ends its process, ours, without a word where the GCS has not answered for a minute. Nothing of a run
needs the GCS once its processes are started."""
_CONNECT_TIMEOUT_S = 5.0
LOCAL_SETTINGS = {
    "RAY_worker_niceness": "0",  # 15 unless told: what it starts would come after all else on the host
    "RAY_worker_oom_score_adjustment": "0",  # 1000 unless told: the kernel's first victims
    "RAY_memory_monitor_refresh_ms": "0",  # it kills its workers above 95 % of the host's memory, whoever uses it
    "RAY_health_check_timeout_ms": "60000",  # a raylet that a starved host keeps waiting is not dead
    "RAY_health_check_failure_threshold": "20",
}
"""Of a local Ray, where the environment does not say otherwise: nothing of Ray's hinders a run that is well."""
_NODES_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 90.0
"""Far more than Ray needs to start: what takes so long waits for a process that will not answer."""
_STDERR = 2
LOCAL = "local"
"""The address of a Ray that is started here."""


class Session:
    """Context manager. `address` None: this machine alone, whose processes are started from here; no Ray is started.

    `LOCAL`: a Ray of this machine, whose files lie in a folder that is removed at the end; else one that is joined.

    Raises ClusterError where Ray cannot be joined or started.
    """

    def __init__(self, address: str | None, tell_stuck: Callable[[str], None] | None = None) -> None:
        """`tell_stuck`: see `never_stuck`; without it one line on stderr says why."""
        self._address = address
        self._tell_stuck = tell_stuck or say_stuck
        self._scratch: Scratch | None = None
        self._watch: RayWatch | None = None
        self._settings: dict[str, str] = {}
        self._before: list[psutil.Process] = []

    def __enter__(self) -> Self:
        if self._address is None:
            return self
        os.environ.update({**_QUIET, **_PATIENT})
        if self._address == LOCAL:
            self._make_room()
        self._before = children()
        if self._address != LOCAL:
            _check_address(self._address)
        else:
            self._settings = {name: value for name, value in LOCAL_SETTINGS.items() if name not in os.environ}
            os.environ.update(self._settings)
            if not any(name.startswith("RAY_AUTH_") for name in os.environ):
                # a token of this session alone: Ray would keep one in the user's home
                os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        with without_rays_lines(), without_working_folder(), without_rays_handler():
            try:
                with never_stuck(_START_TIMEOUT_S, f"{self._failed()}: it did not answer", self._tell_stuck):
                    self._begin()
            except Exception as error:  # Ray raises RuntimeError, ValueError, OSError and its own
                self.__exit__(None, None, None)
                raise ClusterError(f"{self._failed()}: {_reason(error)}") from error
        self._tell_stuck = say_stuck  # of the run that began it nothing is kept
        return self

    def _begin(self) -> None:
        import ray

        options = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": True}
        if self._scratch is not None:
            ray.init(
                address=LOCAL, include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=str(self._scratch.path), **options,
            )  # fmt: skip
        else:
            ray.init(address=self._address, **options)
        _hear_no_errors()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        forget_launchers()
        FORKER.end()
        if self._address is None:
            return
        end_ray(self._before, self._scratch.path if self._scratch is not None else None)
        for name in self._settings:
            os.environ.pop(name, None)
        if self._watch is not None:
            self._watch.dismiss()
        if self._scratch is not None:
            self._scratch.remove()

    def _make_room(self) -> None:
        """The folder of a local Ray, and what ends that Ray should we be killed. Raises ClusterError."""
        try:
            self._scratch = Scratch()
            self._watch = RayWatch(self._scratch.path)
        except OSError as error:
            if self._scratch is not None:
                self._scratch.remove()
            raise ClusterError(f"{self._failed()}: {_reason(error)}") from error

    def _failed(self) -> str:
        return "cannot start a local Ray" if self._address == LOCAL else f"cannot join Ray at {self._address}"

    def nodes(self) -> list[Node]:
        """The nodes alive, the driver's first, labelled node-0, node-1, … in that order. Raises ClusterError."""
        if self._address is None:
            return [this_machine()]
        import ray

        own, found = within(
            _NODES_TIMEOUT_S,
            "which nodes it has",
            lambda: (ray.get_runtime_context().get_node_id(), ray.nodes()),
        )
        alive = sorted(
            (item for item in found if item["Alive"]),
            key=lambda item: (item["NodeID"] != own, item["NodeManagerAddress"], item["NodeID"]),
        )
        return [
            Node(
                f"node-{index}", item["NodeID"], item["NodeManagerAddress"],
                int(item["Resources"].get("GPU", 0)), item["NodeID"] == own,
            )
            for index, item in enumerate(alive)
        ]  # fmt: skip


class _Shared:
    """The session that runs of one command have together; none outside `shared_sessions`."""

    def __init__(self) -> None:
        self.is_on = False
        self._address: str | None = None
        self._session: Session | None = None

    def at(
        self, address: str | None, tell: Callable[[str], None], tell_stuck: Callable[[str], None]
    ) -> Session:
        """The one at that address, begun and told of where it is not there. Raises ClusterError."""
        if self._session is None or self._address != address:
            self.leave()
            if address is None:
                FORKER.begin()  # it imports meanwhile
            else:
                tell("starting Ray" if address == LOCAL else f"joining Ray at {address}")
            self._session, self._address = Session(address, tell_stuck).__enter__(), address
        return self._session

    def leave(self) -> None:
        """Ends it, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)


_SHARED = _Shared()


@contextmanager
def shared_sessions() -> Iterator[None]:
    """Inside, runs at one address have one session, which is left at the end, and after a run that failed."""
    if _SHARED.is_on:
        yield
        return
    _SHARED.is_on = True
    try:
        yield
    finally:
        _SHARED.is_on = False
        _SHARED.leave()


@contextmanager
def session_at(
    address: str | None, tell: Callable[[str], None], tell_stuck: Callable[[str], None]
) -> Iterator[Session]:
    """A session, left at the end unless it is shared. `tell`: what the user is to know as it begins. Raises
    ClusterError."""
    with shared_sessions():
        try:
            yield _SHARED.at(address, tell, tell_stuck)
        except BaseException:  # Ray may be what failed: the next run joins it anew
            _SHARED.leave()
            raise


def this_machine() -> Node:
    """The node of a command without Ray, as a Ray here would have it, with the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    n_gpus = len(gpu_identities())
    if visible is not None:
        n_gpus = min(n_gpus, len([one for one in visible.split(",") if one.strip()]))
    return Node("node-0", "", _own_address(), n_gpus, is_driver=True)


def _own_address() -> str:
    """From which this machine reaches others; on loopback where it reaches none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: of datagrams, nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _hear_no_errors() -> None:
    """Lets the thread end in which Ray's library waits for errors to print: when the GCS next answers it, or dies.

    Where the GCS is gone it would ask again at once, for ever: a whole core, and Python's lock, of the driver. No
    option of Ray's leaves it out, and leaving Ray only waits for its end. A Ray without such a thread loses nothing.
    """
    with suppress(ImportError, AttributeError):
        from ray._private.worker import global_worker

        global_worker.threads_stopped.set()


def say_stuck(why: str) -> None:
    sys.stderr.write(f"squall: {printable(why)}\n")
    sys.stderr.flush()


def _check_address(address: str) -> None:
    """Raises ClusterError where nothing listens at `host:port`: Ray itself would try for two minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # "auto" and other words that Ray resolves
    try:
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(f"cannot join Ray at {address}: {reason}") from error


def _reason(error: Exception) -> str:
    """One line on why Ray failed, with the mend where we know it."""
    words = str(error).strip().splitlines() or [type(error).__name__]
    if "AF_UNIX path length" in words[0]:
        return f"{words[0]}; set TMPDIR to a folder with a shorter path"
    return words[0]


@contextmanager
def without_rays_handler() -> Iterator[None]:
    """Keeps the signal handlers of this process: Ray's library takes SIGTERM as it starts, and would end the process
    from within, with code 15 and no word. It has no option for it."""
    own = signal.signal
    signal.signal = lambda number, _: signal.getsignal(number)  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = own


@contextmanager
def without_working_folder() -> Iterator[None]:
    """Keeps the working folder off the import path of Ray's workers, in front of which a driver of Ray puts its own.

    A folder `squall` there, such as a checkout, would be imported in place of this one, without its C parts. Ray has
    no option for it: it reads the folder's name as `os.path.curdir`, which meanwhile names one that can hold no
    module. The process stays in its folder.
    """
    here = os.path.curdir
    os.path.curdir = "/proc/self/fdinfo"
    try:
        yield
    finally:
        os.path.curdir = here


@contextmanager
def without_rays_lines() -> Iterator[None]:
    """What Ray's library writes within past Python, to descriptor 2, goes nowhere: it explains nothing that an error
    does not say. `sys.stderr` stays what the user sees.

    The library has no log file before it has joined, and does not hear RAY_BACKEND_LOG_LEVEL for these lines.
    """
    screen = sys.stderr
    try:
        is_ours = screen.fileno() == _STDERR
    except (OSError, ValueError, AttributeError):  # it is closed, or is no file
        is_ours = False
    if not is_ours:
        yield
        return
    screen.flush()
    with (
        open(os.devnull, "wb") as nowhere,
        os.fdopen(os.dup(_STDERR), "w", buffering=1, encoding=screen.encoding, errors=screen.errors) as own,
    ):
        os.dup2(nowhere.fileno(), _STDERR)
        sys.stderr = own
        try:
            yield
        finally:
            sys.stderr = screen
            own.flush()
            os.dup2(own.fileno(), _STDERR)
