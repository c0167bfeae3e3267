"""`Place`: a folder of files, wherever it is, and `FarPart`: a part of a table that lies in one."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squall.analysis.storage.beneath import MOST_SMALL_BYTES, new_file, passing_name, too_large
from squall.scenarios.errors import StoreError

_PIECE_BYTES = 8 * 1024**2


class Place(Protocol):
    """A folder of files under names such as `tables/requests/part-00000.parquet`. For any thread; pickles.

    A file is there whole or not at all: whoever is cut off while writing leaves what was there before. All methods may
    wait for a network, and raise OSError with one line that says why.
    """

    @property
    def address(self) -> str:
        """Where it is, for people and for `squall analyze`. It names no secret."""
        ...

    def sizes(self, under: str = "") -> dict[str, int]:
        """The bytes of each file whose name begins with `under`, which is empty or ends with `/`; sorted by name."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """The file to be read in any order; only what is read is fetched. FileNotFoundError where there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Puts a file there, in the place of one of that name."""
        ...

    def send(self, name: str, path: Path) -> None:
        """Puts a copy of the file at `path` there, which need not fit in memory."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file; one that is not there already is no error."""
        ...


@dataclass(frozen=True)
class FarPart:
    """A closed part of a table that lies in a place: what a Path is to a part here. Pickles."""

    place: Place
    file: str
    """From the run directory: `tables/requests/part-00000.parquet`."""

    @property
    def name(self) -> str:
        """Without its folder."""
        return self.file.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.place.address}/{self.file}"


Part = Path | FarPart


def opened(part: Part) -> Path | pa.NativeFile:
    """What pyarrow reads the part from. Raises OSError."""
    return part.place.open(part.file) if isinstance(part, FarPart) else part


def parquet_file(part: Part) -> pq.ParquetFile:
    """The part, its footer read; columns of one read are fetched together. Text is read by dictionary, also where it
    stands plain: a long one of many rows is held once. Raises OSError, pa.ArrowException."""
    source = opened(part)  # once: far away each is a request
    metadata = pq.read_metadata(source)
    return pq.ParquetFile(
        source,
        metadata=metadata,
        pre_buffer=isinstance(part, FarPart),
        read_dictionary=_plain_texts(metadata),
    )


def _plain_texts(metadata: pq.FileMetaData) -> list[str]:
    """Columns of plain text that can be read by dictionary: not differences, as DuckDB writes some of ours."""
    texts = {field.name for field in metadata.schema.to_arrow_schema() if field.type == pa.string()}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [
        name
        for i in range(metadata.num_columns)
        if (name := metadata.schema.column(i).path) in texts
        and not any(one.startswith("DELTA") for group in groups for one in group.column(i).encodings)
    ]


def metadata_of(part: Part) -> pq.FileMetaData:
    """Its footer. Raises OSError, pa.ArrowException."""
    return pq.read_metadata(opened(part))


def rows_of(part: Part, columns: list[str] | None = None, keeps: pc.Expression | None = None) -> pa.Table:
    """Its rows, those that `keeps` is true of. Raises OSError, pa.ArrowException."""
    if keeps is None:
        with parquet_file(part) as file:
            return file.read(columns=columns)
    source = opened(part)
    plain = _plain_texts(pq.read_metadata(source))
    return pq.read_table(source, columns=columns, filters=keeps, partitioning=None, read_dictionary=plain)


def bytes_of(part: Part) -> int:
    """Its size. Raises OSError."""
    if isinstance(part, FarPart):
        with part.place.open(part.file) as file:
            return int(file.size())
    return part.stat().st_size


def sha256_of(part: Part) -> str:
    """SHA-256 of its content, in hex. Raises OSError."""
    if isinstance(part, FarPart):
        digest = hashlib.sha256()
        with part.place.open(part.file) as file:
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
        return digest.hexdigest()
    with open(part, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def name_of(part: Part, run_dir: Path) -> str:
    """Its name from the run directory."""
    return part.file if isinstance(part, FarPart) else part.relative_to(run_dir).as_posix()


def read_bytes(place: Place, name: str, most_bytes: int = MOST_SMALL_BYTES) -> bytes:
    """The whole file. Raises OSError, also for one of more than `most_bytes`."""
    with place.open(name) as file:
        if file.size() > most_bytes:
            raise too_large(most_bytes)
        return bytes(file.read())


def fetch(place: Place, name: str, path: Path) -> None:
    """Brings a file of a place to `path`, whole or not. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    incoming = passing_name(path, ".open")
    try:
        with place.open(name) as file, new_file(incoming) as out:
            while piece := file.read(_PIECE_BYTES):
                out.write(piece)
        incoming.replace(path)
    except BaseException:
        incoming.unlink(missing_ok=True)
        raise


def is_address(text: str) -> bool:
    """Whether it is meant as an address and no folder here; so is one with a slash too few, as a Path folds it:
    `s3:/bucket`."""
    return re.match(r"[a-z][a-z0-9+.-]*:/|s3:", text, re.IGNORECASE) is not None


def place_at(address: str) -> Place | None:
    """The place of an address of object storage, `s3://bucket/prefix`; None for anything else, such as a folder here.

    Raises StoreError for an address that cannot be one.
    """
    from squall.analysis.storage.places.object_folder import SCHEME, ObjectFolder

    if address.startswith(SCHEME):
        return ObjectFolder(address)
    if is_address(address):
        raise StoreError(f"{address}: object storage is known as s3://BUCKET/PREFIX alone")
    return None
