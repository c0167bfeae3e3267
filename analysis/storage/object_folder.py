"""A prefix of a bucket of S3, or of a server that speaks its protocol, as a folder of files.

Who we are comes from where AWS's own tools take it: `AWS_ACCESS_KEY_ID` and its like, profiles, roles of the host;
`AWS_ENDPOINT_URL` names another server than Amazon's. Nothing of that is kept or told.
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

from squall.analysis.storage.beneath import too_large, write_atomically
from squall.scenarios.errors import ScenarioError, StoreError
from squall.scenarios.foreign_text import escaped, is_beneath

_SCHEME = "s3://"
_CONNECT_TIMEOUT_S, _REQUEST_TIMEOUT_S = 5.0, 30.0
_PIECE_BYTES = 8 * 1024**2
_ADDRESS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s?#@:]+)*")
_REASONS = (
    (
        "ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID"
        "|MISSING_AUTHENTICATION_TOKEN|HTTP status 403|UNRECOGNIZED_CLIENT",
        "access is denied: see that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile or role, may read and "
        "write there",
    ),
    ("NO_SUCH_BUCKET", "there is no such bucket: make it first"),
    (
        "NETWORK_CONNECTION|curlCode|REQUEST_TIMEOUT",
        "the object store cannot be reached: see AWS_ENDPOINT_URL and the network",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class ObjectFolder:
    """The objects under an address `s3://bucket/prefix`. Raises StoreError for one that cannot be an address.

    Names are such as `tables/requests/part-00000.parquet`. A file is there whole or not at all: a process that ends
    while it writes leaves what was there before. Methods wait for the network, and raise OSError with one line that
    says why. A file that is removed stays as an empty object, which is as none: pyarrow puts an object for the folder
    when it deletes one, by which some servers lose what is in it (rclone 1.75.2, 2026-11-24).
    """

    address: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.address.rstrip("/"))
        if not _ADDRESS.fullmatch(self.address):
            raise StoreError(
                "object storage is named as s3://BUCKET/PREFIX: a bucket in lower case, without key, query or blank"
            )

    def sizes(self) -> dict[str, int]:
        """The bytes of each file, sorted by name."""
        base = self._path("")
        chosen = pafs.FileSelector(base.rstrip("/"), allow_not_found=True, recursive=True)
        with _told():
            found = _file_system().get_file_info(chosen)
        files = {one.path.removeprefix(base): one.size for one in found if one.is_file and one.size}
        if strange := next((name for name in files if not is_beneath(name)), None):
            raise OSError(errno.EINVAL, f"an object there has a name that is no file's: {escaped(strange)}")
        return dict(sorted(files.items()))

    def open(self, name: str) -> pa.NativeFile:
        """The file to be read. Raises FileNotFoundError if there is none."""
        with _told():
            file = _file_system().open_input_file(self._path(name))
            if not file.size():
                raise FileNotFoundError
        return file

    def read(self, name: str, most_bytes: int) -> bytes:
        """The whole file. Raises OSError, also for one of more than `most_bytes`."""
        with self.open(name) as file:
            if file.size() > most_bytes:
                raise too_large(most_bytes)
            return bytes(file.read())

    def fetch(self, name: str, path: Path) -> None:
        """Brings a file to `path`, whole or not."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.open(name) as file:
            write_atomically(path, iter(lambda: file.read(_PIECE_BYTES), b""))

    def write(self, name: str, content: bytes) -> None:
        """Puts a file there, in the place of one of that name."""
        with _told(), _file_system().open_output_stream(self._path(name)) as stream:
            stream.write(content)

    def send(self, name: str, path: Path) -> None:
        """Puts a copy of the file at `path` there, which need not fit in memory."""
        # not piece by piece from here: a stream that a failure closes would be taken for whole
        with _told():
            pafs.copy_files(
                str(path.resolve()),
                self._path(name),
                source_filesystem=pafs.LocalFileSystem(),
                destination_filesystem=_file_system(),
                chunk_size=_PIECE_BYTES,
                use_threads=False,
            )

    def remove(self, name: str) -> None:
        """Removes a file that is there."""
        self.write(name, b"")

    def _path(self, name: str) -> str:
        return f"{self.address.removeprefix(_SCHEME)}/{name}"


def is_address(text: str) -> bool:
    """Whether it is meant as an address and no folder here; so is one with a slash too few, as a Path folds it:
    `s3:/bucket`."""
    return re.match(r"[a-z][a-z0-9+.-]*:/|s3:", text, re.IGNORECASE) is not None


def place_at(address: str) -> ObjectFolder | None:
    """The place of an address of object storage, `s3://bucket/prefix`; None for anything else, such as a folder here.

    Raises StoreError for an address that cannot be one.
    """
    if address.startswith(_SCHEME):
        return ObjectFolder(address)
    if is_address(address):
        raise StoreError(f"{address}: object storage is known as s3://BUCKET/PREFIX alone")
    return None


def refuse_address(out: Path | str) -> None:
    """Raises ScenarioError where `out`, which is to be a folder or file here, is an address."""
    if is_address(str(out)):
        raise ScenarioError(
            "--out: name a place on this disk: object storage, s3://BUCKET/PREFIX, takes runs of squall run alone"
        )


@cache
def _file_system() -> pafs.FileSystem:
    """One a process: it holds the connections."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    scheme, _, host = endpoint.rpartition("://")
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
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    except OSError as error:
        words = str(error)
        reasons = [reason for marks, reason in _REASONS if re.search(marks, words)]
        raise OSError(error.errno or errno.EIO, *(reasons or words.splitlines())[:1]) from error
