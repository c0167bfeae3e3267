"""A prefix of a bucket of S3, or of a server that speaks its protocol, as a folder of files.

Who we are comes from where AWS's own tools take it: `AWS_ACCESS_KEY_ID` and its like, profiles, roles of the host;
`AWS_ENDPOINT_URL` names another server than Amazon's. A process on another node is given it as `Access`. Nothing of
that is kept or told.
"""

from __future__ import annotations

import configparser
import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.fs as pafs

from squall.analysis.storage.beneath import too_large, write_atomically
from squall.scenarios.errors import ScenarioError, StoreError
from squall.scenarios.foreign_text import escaped, is_beneath
from squall.scenarios.records import Frozen

if TYPE_CHECKING:
    import pyarrow.dataset as ds

SCHEME = "s3://"
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
    (
        "NO_SUCH_KEY|INVALID_RANGE|HTTP status 416|Path does not exist|Parquet file size is 0 bytes",
        "a file of it is gone: another process has changed it meanwhile; see that none does, and begin again",
    ),
)  # fmt: skip
PASSING = ".spill-"
"""How folders begin that are gone once what they are for is done; those that dead processes left are swept."""


class ObjectFolder(Frozen):
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

    def __str__(self) -> str:
        return self.address

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

    def write(self, name: str, content: bytes | pa.Buffer) -> None:
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

    def remove_all(self, names: Iterable[str]) -> None:
        """Removes files as far as the store lets us: what it keeps is swept another time."""
        with suppress(OSError):
            for name in names:
                self.remove(name)

    @contextmanager
    def passing(self) -> Iterator[ObjectFolder]:
        """A new folder in this one for what tasks share, whose files are gone at the end."""
        folder = ObjectFolder(f"{self.address}/{PASSING}{secrets.token_hex(8)}")
        try:
            yield folder
        finally:
            with suppress(OSError):
                folder.remove_all(folder.sizes())

    def _path(self, name: str) -> str:
        return f"{self.address.removeprefix(SCHEME)}/{name}"


class ObjectFile(Frozen):
    """A file of an `ObjectFolder`. Pickles."""

    folder: ObjectFolder
    name: str

    def open(self) -> pa.NativeFile:
        """See `ObjectFolder.open`."""
        return self.folder.open(self.name)


Part = Path | ObjectFile
"""A Parquet file of a table: here, or in object storage."""


def dataset_of(files: Sequence[ObjectFile]) -> ds.Dataset:
    """Parquet files as one table of Arrow's: a query over it reads the columns that it names of the row groups that its
    conditions leave, one after another. Raises OSError."""
    import pyarrow.dataset as ds

    class Dataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
        def scanner(self, **asked: Any) -> ds.Scanner:  # which is what DuckDB calls
            return super().scanner(batch_readahead=1, fragment_readahead=1, **asked)

    form, store = ds.ParquetFileFormat(), _file_system()
    fragments = [form.make_fragment(file.folder._path(file.name), store) for file in files]
    with _told():
        return Dataset(fragments, fragments[0].physical_schema, form, store)


def is_address(text: str) -> bool:
    """Whether it is meant as an address and no folder here; so is one with a slash too few, as a Path folds it:
    `s3:/bucket`."""
    return re.match(r"[a-z][a-z0-9+.-]*:/|s3:", text, re.IGNORECASE) is not None


def place_at(address: str) -> ObjectFolder | None:
    """The place of an address of object storage, `s3://bucket/prefix`; None for anything else, such as a folder here.

    Raises StoreError for an address that cannot be one.
    """
    if address.startswith(SCHEME):
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


class Access(Frozen):
    """Where the object store is and who asks, for a process on another node: it pickles, and is never shown."""

    endpoint: str = ""
    region: str = ""
    keys: tuple[str, ...] = field(default=(), repr=False)
    """Access key, secret key and session token; none of a role, or of a program that AWS's tools ask: each node then
    asks as it can itself."""

    @classmethod
    def of_environment(cls) -> Self:
        """What the environment says, and of keys the profile where it has none."""
        found = os.environ
        keys = tuple(found.get(name.upper(), "") for name in _KEYS)
        if not all(keys[:2]):
            profiles = configparser.RawConfigParser()
            path = Path(found.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
            with suppress(OSError, ValueError, configparser.Error):
                profiles.read(path)
            profile = found.get("AWS_PROFILE") or "default"
            keys = tuple(profiles.get(profile, name, fallback="") for name in _KEYS)
        return cls(
            found.get("AWS_ENDPOINT_URL_S3") or found.get("AWS_ENDPOINT_URL") or "",
            found.get("AWS_REGION") or found.get("AWS_DEFAULT_REGION") or "",
            keys if all(keys[:2]) else (),
        )


_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_given: list[Access] = []
"""What another process gave this one, last."""


def access_here() -> Access:
    """That of this process, for another one."""
    return replace(Access.of_environment(), region=getattr(_file_system(), "region", ""))


def take_access(access: Access) -> None:
    """From now on this process asks as the one does whose access that is."""
    if _given != [access]:
        _given[:] = [access]
        _file_system.cache_clear()


@cache
def _file_system() -> pafs.FileSystem:
    """One a process: it holds the connections."""
    access = _given[0] if _given else Access.of_environment()
    scheme, _, host = access.endpoint.rpartition("://")
    if access.endpoint:
        # other servers than Amazon's refuse uploads with a checksum behind them (HTTP 411 or 501)
        os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    names = ("access_key", "secret_key", "session_token")
    return pafs.S3FileSystem(
        **dict(zip(names, access.keys if _given else (), strict=False)),
        region=access.region or None,
        scheme=scheme or "https",
        endpoint_override=host.rstrip("/") or None,  # which asks by path: NAME.127.0.0.1 is no host
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
    )


def reason_in(words: str, of_objects: bool = True) -> str | None:
    """What to do about an error of AWS's that says these words; None of any other. `of_objects`: what they are about
    lies in object storage, where a file without bytes is one that is gone."""
    found = next((reason for marks, reason in _REASONS if re.search(marks, words)), None)
    return found if of_objects or found != _REASONS[-1][1] else None


@contextmanager
def _told() -> Iterator[None]:
    """AWS's errors in words that say what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
    except OSError as error:
        words = str(error)
        raise OSError(error.errno or errno.EIO, reason_in(words) or words.splitlines()[0]) from error
