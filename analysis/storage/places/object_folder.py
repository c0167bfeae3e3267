"""A prefix of a bucket of S3, or of a server that speaks its protocol, as a `Place`.

Who we are comes from where AWS's own tools take it: `AWS_ACCESS_KEY_ID` and its like, profiles, roles of the host;
`AWS_ENDPOINT_URL` names another server than Amazon's. Nothing of that is kept, pickled or told.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from squall.scenarios.errors import StoreError
from squall.scenarios.foreign_text import escaped, is_beneath

SCHEME = "s3://"
_CONNECT_TIMEOUT_S, _REQUEST_TIMEOUT_S = 5.0, 30.0
_PIECE_BYTES = 8 * 1024**2
_ADDRESS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s?#@:]+)*")
_REASONS = (
    (
        ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID",
         "MISSING_AUTHENTICATION_TOKEN", "HTTP status 403", "UNRECOGNIZED_CLIENT"),
        "access is denied: see that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile or role, may read and "
        "write there",
    ),
    (("NO_SUCH_BUCKET",), "there is no such bucket: make it first"),
    (
        ("NETWORK_CONNECTION", "curlCode", "REQUEST_TIMEOUT"),
        "the object store cannot be reached: see AWS_ENDPOINT_URL and the network",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class ObjectFolder:
    """The objects under an address `s3://bucket/prefix`. Raises StoreError for one that cannot be an address.

    A file that is removed stays as an empty object, which is as none: pyarrow puts an object for the folder when it
    deletes one, by which some servers lose what is in it (rclone 1.75.2, 2026-11-24).
    """

    address: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.address.rstrip("/"))
        if not _ADDRESS.fullmatch(self.address):
            raise StoreError(
                "object storage is named as s3://BUCKET/PREFIX: a bucket in lower case, without key, query or blank"
            )

    @property
    def _base(self) -> str:
        return self.address.removeprefix(SCHEME)

    def sizes(self, under: str = "") -> dict[str, int]:
        chosen = pafs.FileSelector(f"{self._base}/{under}".rstrip("/"), allow_not_found=True, recursive=True)
        with _told():
            found = _file_system().get_file_info(chosen)
        files = {one.path[len(self._base) + 1 :]: one.size for one in found if one.is_file and one.size}
        if strange := next((name for name in files if not is_beneath(name)), None):
            raise OSError(errno.EINVAL, f"an object there has a name that is no file's: {escaped(strange)}")
        return dict(sorted(files.items()))

    def open(self, name: str) -> pa.NativeFile:
        with _told():
            file = _file_system().open_input_file(f"{self._base}/{name}")
            if not file.size():
                raise _not_found()
        return file

    def write(self, name: str, content: bytes) -> None:
        with _told(), _file_system().open_output_stream(f"{self._base}/{name}") as stream:
            stream.write(content)

    def send(self, name: str, path: Path) -> None:
        # not piece by piece from here: a stream that a failure closes would be taken for whole
        with _told():
            pafs.copy_files(
                str(path.resolve()),
                f"{self._base}/{name}",
                source_filesystem=pafs.LocalFileSystem(),
                destination_filesystem=_file_system(),
                chunk_size=_PIECE_BYTES,
                use_threads=False,
            )

    def remove(self, name: str) -> None:
        if name in self.sizes(name.rpartition("/")[0] + "/" if "/" in name else ""):
            self.write(name, b"")


@cache
def _file_system() -> pafs.S3FileSystem:
    """One a process: it holds the connections."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    scheme, _, host = endpoint.rpartition("://") if endpoint else ("", "", "")
    if endpoint:
        # other servers than Amazon's refuse uploads with a checksum behind them (HTTP 411 or 501)
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    return pafs.S3FileSystem(
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        scheme=scheme or "https",
        endpoint_override=host.rstrip("/") or None,  # which asks by path: NAME.127.0.0.1 is no host
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
    )


@contextmanager
def _told() -> Iterator[None]:
    """AWS's errors in words that say what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise _not_found() from error
    except OSError as error:
        words = str(error)
        for marks, reason in _REASONS:
            if any(mark in words for mark in marks):
                raise OSError(error.errno or errno.EIO, reason) from error
        raise OSError(error.errno or errno.EIO, words.splitlines()[0]) from error


def _not_found() -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
