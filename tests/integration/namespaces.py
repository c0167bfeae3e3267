"""Hosts of a cluster on one machine: each has an address, a monotonic clock, processes, /tmp and /dev/shm of its own.

                    bridge, in a network namespace of its own
     ┌────────────────┬──────────────┬───────────────┬────── … veth pairs
    head 10.77.0.1   gpu0 .0.2      client0 .0.3    client1 .0.4
    Ray's head        Ray, Triton    Ray             Ray
    the driver

What runs on a host is a process of this machine all the same, and can be signalled from here.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from squall.cluster.node.server_environment import server_environment
from squall.cluster.node.triton_home import find_triton
from tests.integration.foreign_models import write_model
from tests.integration.live_runs import RAY_AUTH, living_in, wait_until

HEAD = "head"
GCS_PORT = 6379
HTTP_PORT, GRPC_PORT, METRICS_PORT = 8000, 8001, 8002
APART_S = 1_111
"""How far the clock of each host is ahead of that of the host before it, exactly: all are of one kernel."""
MODEL = "plain"
_SUBNET = "10.77.0"
_START_TIMEOUT_S = 60.0
_GONE_TIMEOUT_S = 60.0
_TMP_BYTES = 192 * 2**20
_SHM_BYTES = 512 * 2**20
_STORE_BYTES = 80 * 2**20
_STRANGER = 99
"""Its number among the hosts."""
_OURS = ("-m squall.", "ray::_Launcher")
"""In the command lines of what a run starts on a host."""
_THEIRS = ("squall-batches-", "triton_python_backend_", "plasma", "NSys-")
"""In shared memory: what `squall inject` made, what a Triton has while it runs, Ray's store, and what nsys keeps for
all of its sessions of one version."""


class Host:
    """Made and left empty; `start_ray` makes it a node. `tmp` has the same path on every host, and other content."""

    def __init__(self, name: str, number: int, tmp: Path, lan: str) -> None:
        """`lan`: the network namespace of the bridge. Raises OSError where a namespace cannot be had."""
        self.name, self.tmp = name, tmp
        self.address = f"{_SUBNET}.{number}"
        self.ahead_s = APART_S * number
        self._namespace = f"{lan}-{name}"
        self._lan, self._port = lan, f"v{number}"
        self._keeper: subprocess.Popen[bytes] | None = None
        _ip(f"netns add {self._namespace}")
        try:
            for words in (
                f"-n {lan} link add {self._port} type veth peer name eth0 netns {self._namespace}",
                f"-n {lan} link set {self._port} master lan up",
                f"-n {self._namespace} address add {self.address}/24 dev eth0",
                f"-n {self._namespace} link set eth0 up",
                f"-n {self._namespace} link set lo up",
            ):
                _ip(words)
            self._first = self._begin()
        except OSError:
            self.remove()
            raise

    def _begin(self) -> int:
        """The pid of its first process, which ends with all others of the host."""
        mounts = ((self.tmp, _TMP_BYTES), (Path("/dev/shm"), _SHM_BYTES))
        steps = [f"mount -t tmpfs -o size={size} tmpfs {shlex.quote(str(folder))}" for folder, size in mounts]
        script = " && ".join([*steps, "echo ready && sleep infinity & wait"])
        clock = f"--time --monotonic {self.ahead_s} --boottime {self.ahead_s}"
        alone = f"unshare {clock} --pid --fork --kill-child --mount-proc --"
        self._keeper = subprocess.Popen(
            ["ip", "netns", "exec", self._namespace, *alone.split(), "sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        if self._keeper.stdout.readline() != b"ready\n":
            raise OSError(self._keeper.stderr.read().decode().strip())
        (first,) = psutil.Process(self._keeper.pid).children()
        return first.pid

    @property
    def within(self) -> tuple[str, ...]:
        """Words before a command that run it here."""
        return ("nsenter", "--target", str(self._first), "--net", "--mount", "--time", "--pid", "--")

    def seen(self, folder: Path) -> Path:
        """What the host has at `folder`, as this machine sees it."""
        return Path(f"/proc/{self._first}/root{folder}")

    def run(self, *words: str, timeout_s: float = _START_TIMEOUT_S) -> str:
        """stdout of a command that runs here. Raises OSError with its last words where it fails."""
        done = subprocess.run(
            [*self.within, *words], capture_output=True, text=True, timeout=timeout_s, check=False,
            env={**os.environ, **RAY_AUTH, "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(self.tmp)},
        )  # fmt: skip
        if done.returncode:
            raise OSError(f"{self.name}: {' '.join(words)}: {(done.stderr or done.stdout).strip()[-2_000:]}")
        return done.stdout

    def start_ray(self, head: str | None, python: Sequence[str] = (sys.executable,)) -> None:
        """Returns when it is a node of the Ray at `head`, or the head itself where that is None; in another Python
        where its words are given."""
        role = (
            ["--address", head]
            if head
            else ["--head", "--port", str(GCS_PORT), "--include-dashboard=false", "--no-monitor"]
        )
        self.run(
            *python, "-m", "ray.scripts.scripts", "start", *role, "--node-ip-address", self.address,
            "--num-cpus=1", f"--temp-dir={self.tmp}/ray", "--include-log-monitor=false",
            f"--object-store-memory={_STORE_BYTES}",
        )  # fmt: skip

    def stop_ray(self, is_known: bool = True) -> None:
        """Ends all of Ray here; `is_known`: its head hears of it, where it can, and takes the node for gone at once."""
        for raylet in self.processes("raylet/raylet") if is_known else []:
            raylet.terminate()
        with contextlib.suppress(AssertionError):
            wait_until(
                lambda: not is_known or not self.processes("raylet/raylet"), 5, "the end of the raylet"
            )
        for process in self.processes("/ray/") + self.processes("ray::"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: not self.processes("/ray/"), _GONE_TIMEOUT_S, f"the end of Ray on {self.name}")

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Those that live here, whose command line holds `title`."""
        return living_in(self._namespace, title)

    def process(self, title: str) -> psutil.Process:
        """The only one of these."""
        (found,) = (one for one in self.processes(title) if one.name() != "nsenter")
        return found

    def left(self) -> list[str]:
        """Processes of runs, scratch folders and files in shared memory that are here, but for a server's and Ray's."""
        memory = self.seen(Path("/dev/shm"))
        return [
            *(" ".join(one.cmdline()) for title in _OURS for one in self.processes(title)),
            *map(str, self.scratch_folders()),
            *(str(path) for path in memory.iterdir() if not path.name.startswith(_THEIRS)),
        ]

    def scratch_folders(self) -> list[Path]:
        return [*self.seen(self.tmp).glob("squall-tmp-*")]

    def unplug(self) -> None:
        """Its link goes down: nothing comes from it or to it, not even that a port is closed."""
        _ip(f"-n {self._lan} link set {self._port} down")

    def plug(self) -> None:
        _ip(f"-n {self._lan} link set {self._port} up")

    def beside(self, name: str, number: int) -> Host:
        """Another host on the same bridge."""
        return Host(name, number, self.tmp, self._lan)

    def remove(self) -> None:
        """Ends every process of the host, then the host."""
        try:
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if self._keeper is not None:
                self._keeper.kill()
                self._keeper.communicate()
            wait_until(lambda: not self.processes(), _GONE_TIMEOUT_S, f"the end of {self.name}")
        finally:
            with contextlib.suppress(OSError):
                _ip(f"netns del {self._namespace}")


@dataclass(frozen=True)
class Cluster:
    """Hosts by name, the head first. `folder` is one that all of them see, as on a disk that they share."""

    hosts: dict[str, Host]
    tmp: Path
    folder: Path

    @property
    def head(self) -> Host:
        return self.hosts[HEAD]

    @property
    def ray(self) -> str:
        """Address of its Ray."""
        return f"{self.head.address}:{GCS_PORT}"

    def start_ray(self) -> None:
        """On every host that has none; anew on all where the head has none. A host whose Ray is gone joins again."""
        if not self.head.processes("gcs_server"):
            for host in self.hosts.values():
                host.stop_ray(is_known=False)
        absent = [host for host in self.hosts.values() if not host.processes("raylet/raylet")]
        if self.head in absent:
            self.head.start_ray(None)
        _at_once([(lambda host=host: host.start_ray(self.ray)) for host in absent if host is not self.head])  # type: ignore[misc]

    @contextlib.contextmanager
    def triton(self, name: str) -> Iterator[str]:
        """URL of a Triton that somebody started on a host, as `squall inject` says, with the model `MODEL`."""
        host, home, folder = self.hosts[name], find_triton(), self.folder / name
        write_model(folder / "models", MODEL, sleep_s=0.01)  # latencies far above the clocks' bounds
        injected = host.run(sys.executable, "-m", "squall.cluster.entry", "inject").splitlines()
        environment = server_environment(folder, home) | dict(one.split("=", 1) for one in injected)
        with (folder / "triton.log").open("wb") as log:
            server = subprocess.Popen(
                [*host.within, "env", "-i", *(f"{key}={value}" for key, value in environment.items()),
                    str(home.binary), *(["--backend-directory", str(home.backends)] if home.backends else []),
                    "--model-repository", str(folder / "models"), f"--http-address={host.address}",
                    f"--grpc-address={host.address}", f"--metrics-address={host.address}",
                    f"--http-port={HTTP_PORT}", f"--grpc-port={GRPC_PORT}", f"--metrics-port={METRICS_PORT}",
                    "--allow-gpu-metrics=false", "--allow-cpu-metrics=false"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            wait_until(
                lambda: _has_started(server, folder / "triton.log"), _START_TIMEOUT_S, "Triton is ready"
            )
            yield f"http://{host.address}:{HTTP_PORT}"
        finally:
            for process in host.processes("tritonserver") + host.processes("triton_python_backend_stub"):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            server.wait(_GONE_TIMEOUT_S)
            shutil.rmtree(folder)

    @contextlib.contextmanager
    def stranger(self) -> Iterator[Host]:
        """A host on the same network that is no node of Ray and has no token."""
        host = self.head.beside("stranger", _STRANGER)
        try:
            yield host
        finally:
            host.remove()

    def sweep(self) -> None:
        """Ends what a run left on any host, whose own test has failed."""
        for host in self.hosts.values():
            for process in [one for title in _OURS for one in host.processes(title)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            for folder in host.scratch_folders():
                shutil.rmtree(folder, ignore_errors=True)

    def wait_until_clean(self, but: str = "") -> None:
        """Nothing of a run is left on any host but the one of that name."""

        def left() -> dict[str, list[str]]:
            found = {name: host.left() for name, host in self.hosts.items() if name != but}
            return {name: what for name, what in found.items() if what}

        try:
            wait_until(lambda: not left(), _GONE_TIMEOUT_S, "nothing is left on any host")
        except AssertionError as error:
            raise AssertionError(f"{error}: {left()}") from None


def _has_started(server: subprocess.Popen[bytes], log: Path) -> bool:
    told = log.read_text(errors="replace")
    assert server.poll() is None, told
    return "Started HTTPService" in told and "Started Metrics Service" in told


@contextlib.contextmanager
def cluster(folder: Path, *names: str) -> Iterator[Cluster]:
    """A head and hosts of these names, all nodes of one Ray. Skips where the system does not let it be made."""
    missing = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    missing += [] if os.geteuid() == 0 else ["root"]
    if missing:
        pytest.skip(f"hosts of one's own on this machine need {' and '.join(missing)}")
    lan = f"sq{os.getpid()}"
    with contextlib.ExitStack() as stack:
        tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sqt", dir="/tmp")))
        hosts: dict[str, Host] = {}
        try:
            _ip(f"netns add {lan}")
            stack.callback(_ip, f"netns del {lan}")
            _ip(f"-n {lan} link add lan type bridge")
            _ip(f"-n {lan} link set lan up")
            for number, name in enumerate((HEAD, *names), 1):
                hosts[name] = Host(name, number, tmp, lan)
                stack.callback(hosts[name].remove)
        except OSError as error:
            pytest.skip(f"no hosts of one's own on this machine: {error}")
        made = Cluster(hosts, tmp, folder)
        made.start_ray()
        yield made


def _at_once(steps: Sequence[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(max(1, len(steps))) as pool:
        for done in [pool.submit(step) for step in steps]:
            done.result()


def _ip(words: str) -> None:
    """Raises OSError with its own reason."""
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {words}: {done.stderr.strip()}")
