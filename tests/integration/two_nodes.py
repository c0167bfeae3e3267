"""Two nodes of Ray on one machine, the second in namespaces that give it addresses and a monotonic clock of its own.

root namespace: Ray head, Triton ── veth ── network and time namespaces: second node
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.integration.live_runs import RAY_AUTH, hosted_ray, living_in, wait_until
from tests.integration.serving import serving

AHEAD_S = 7_654
"""How far the second node's clock is ahead, exactly: both are of one kernel."""
QUEUE_DELAY = "20ms"
"""Makes a median latency of which the clock bound of a busy machine is less than a tenth."""
_START_TIMEOUT_S = 60.0
_DISK_BYTES = 2**30


class FarNode:
    """A node of Ray in a network namespace of its own, with a monotonic clock that is AHEAD_S ahead and with a disk, at
    `tmp`, that nobody else sees."""

    def __init__(self, number: int, tmp: Path) -> None:
        """`number`, below 256, is in its names and addresses. Raises OSError where a namespace cannot be had."""
        name = self._namespace = f"sqn{number}"
        self.tmp = tmp
        self._raylet: subprocess.Popen[bytes] | None = None
        self.peer_host, self._host, self.elsewhere = (f"10.214.{number}.{last}" for last in (1, 2, 3))
        _ip(f"netns add {name}")  # where it is there already, it is another's
        try:
            for words in (
                f"link add {name} type veth peer name far netns {name}",
                f"address add {self.peer_host}/24 dev {name}",
                f"address add {self.elsewhere}/24 dev {name}",
                f"link set {name} up",
                f"-n {name} address add {self._host}/24 dev far",
                f"-n {name} link set far up",
                f"-n {name} link set lo up",
            ):
                _ip(words)
            _check(self._command("true"))
        except OSError:
            self.remove()
            raise

    def join(self, address: str) -> None:
        """Returns when Ray's head at `address` knows it."""
        log = self.tmp / "ray.log"
        words = f"start --address {address} --node-ip-address {self._host} --num-cpus 1 --block"
        environment = {**os.environ, **RAY_AUTH, "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(self.tmp)}
        with log.open("wb") as output:
            self._raylet = subprocess.Popen(
                self._command(sys.executable, "-m", "ray.scripts.scripts", *words.split(),
                    f"--object-store-memory={100 * 2**20}"),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
            )  # fmt: skip
        wait_until(lambda: b"Ray runtime started" in log.read_bytes(), _START_TIMEOUT_S, "the second node")

    def processes(self, title: str = "") -> list[psutil.Process]:
        """Those that live in it, whose command line holds `title`."""
        return living_in(self._namespace, title)

    def scratch_folders(self) -> list[Path]:
        """Those on its disk, while it lives."""
        assert self._raylet is not None
        return [*Path(f"/proc/{self._raylet.pid}/root{self.tmp}").glob("squall-tmp-*")]

    def kill(self) -> None:
        """SIGKILL to everything in it, as if its power were cut; its addresses stay."""

        def is_empty() -> bool:
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            return not self.processes()

        wait_until(is_empty, 10, "the end of the second node")
        if self._raylet is not None:
            self._raylet.wait(10)

    def unplug(self) -> None:
        """Nothing comes from it any more, not even that a port is closed."""
        _ip(f"-n {self._namespace} link set far down")

    def remove(self) -> None:
        """Ends it; the namespaces go too."""
        try:
            self.kill()
        finally:
            for words in (f"netns del {self._namespace}", f"link del {self._namespace}"):
                with contextlib.suppress(OSError):  # the link goes with the namespace, a little later
                    _ip(words)

    def _command(self, *words: str) -> list[str]:
        ahead = f"--monotonic {AHEAD_S} --boottime {AHEAD_S}".split()
        disk = f"mount -t tmpfs -o size={_DISK_BYTES} tmpfs {shlex.quote(str(self.tmp))}"
        own = ("sh", "-c", f'{disk} && exec "$0" "$@"')  # `ip` has made a namespace of mounts
        return ["ip", "netns", "exec", self._namespace, "unshare", "-T", *ahead, "--", *own, *words]


def _ip(words: str) -> None:
    _check(["ip", *words.split()])


def _check(command: list[str]) -> None:
    """Raises OSError with the command's own reason."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@dataclass(frozen=True)
class Pair:
    """Address of the Ray of two nodes, and the Triton beside its head."""

    ray: str
    near_tmp: Path
    far: FarNode
    url: str
    records: Path


@contextlib.contextmanager
def two_nodes(number: int) -> Iterator[Pair]:
    """Of a number that no other pair on this machine has. Skips where the second node cannot be had."""
    missing = [tool for tool in ("ip", "unshare") if shutil.which(tool) is None]
    missing += [] if os.geteuid() == 0 else ["root"]
    if missing:
        pytest.skip(f"a second node on this machine needs {' and '.join(missing)}")
    with contextlib.ExitStack() as stack:
        near_tmp, far_tmp, folder = (Path(stack.enter_context(_short_folder())) for _ in range(3))
        try:
            far = FarNode(number, far_tmp)
        except OSError as error:
            pytest.skip(f"no network and time namespaces here: {error}")
        stack.callback(far.remove)
        with ThreadPoolExecutor(1) as pool:
            starting = pool.submit(stack.enter_context, hosted_ray(near_tmp, {}, far.peer_host))
            serves = serving(folder, address=far.peer_host, queue_delay=QUEUE_DELAY)
            server, endpoint = stack.enter_context(serves)
            address = starting.result()
        far.join(address)
        yield Pair(address, near_tmp, far, endpoint.url, server.records)


def _short_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sqt", dir="/tmp", ignore_cleanup_errors=True)
