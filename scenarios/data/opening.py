"""Opens data of any format, counts its entries and takes its digest.

Errors are one line: the file, the row (the first entry is row 1) and what is wrong.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.config.clients.data import DataConfig, DataFormat
from squall.scenarios.config.models import ModelScenario
from squall.scenarios.data.arrays import ArraySource
from squall.scenarios.data.columnar import ColumnarSource
from squall.scenarios.data.folders import IMAGE_SUFFIXES, FolderSource, ImageSource, files_in
from squall.scenarios.data.jsondata import VALIDATION, JsonSource, has_validation
from squall.scenarios.data.lines import LineSource
from squall.scenarios.data.source import Entry, Source
from squall.scenarios.errors import ScenarioError
from squall.scenarios.sizes import LARGEST_ENTRY_COUNT
from squall.scenarios.traces.parts.faults import RowFault

_SUFFIXES: dict[str, DataFormat] = {
    ".parquet": "parquet", ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".json": "json", ".npy": "npy", ".npz": "npz", ".txt": "text", ".text": "text",
}  # fmt: skip
_MAGIC: tuple[tuple[bytes, DataFormat], ...] = (
    (b"PAR1", "parquet"), (b"ARROW1", "arrow"), (b"\x93NUMPY", "npy"), (b"PK\x03\x04", "npz"),
)  # fmt: skip
State = tuple[tuple[str, int, int], ...]
"""Name, bytes and time of the last change of each file."""


class Data:
    """The entries that a scenario names: the first `limit` of a file or folder. `state`: whether it has changed."""

    def __init__(self, config: DataConfig, source: Source, format: DataFormat) -> None:
        self.path = Path(config.path)
        self.format: DataFormat = format
        self.names, self.shapes = source.names, source.shapes
        self.n_entries = min(source.n_entries, config.limit or source.n_entries)
        self.state = _state(self.path)
        self._source = source

    def read(self, numbers: NDArray[np.int64], names: tuple[str, ...]) -> Iterator[tuple[int, Entry]]:
        """The entries of these numbers, each once and in rising order: see `Source.read`. Raises ScenarioError."""
        wanted = np.zeros(self.n_entries, np.bool_)
        wanted[numbers] = True
        with faults_of(self.path):
            yield from self._source.read(wanted, names)
        if _state(self.path) != self.state:
            raise ScenarioError(f"{self.path}: changed while it was read")

    def fault(self, number: int, what: str) -> ScenarioError:
        """Of the entry `number`, from 0 on."""
        return ScenarioError(f"{self.path}: {self._source.place(number)}: {what}")

    def sha256(self) -> str:
        """In hex: of the file; of a folder, of the digests and names of its files."""
        with faults_of(self.path):
            if self.path.is_file():
                return _file_sha256(self.path)
            digest = hashlib.sha256()
            for name, _, _ in self.state:
                digest.update(f"{_file_sha256(self.path / name)}  {name}\n".encode())
            return digest.hexdigest()


def open_data(config: DataConfig) -> Data:
    """The data, with its entries counted. Raises ScenarioError where it is not there, or no file of its format."""
    path = Path(config.path)
    with faults_of(path):
        form = config.format or recognised(path)
        source = _source(path, form)
    if not source.n_entries:
        raise ScenarioError(f"{path}: holds no entry")
    data = Data(config, source, form)
    if data.n_entries > LARGEST_ENTRY_COUNT:
        raise ScenarioError(
            f"{path}: has {data.n_entries:,} entries, at most {LARGEST_ENTRY_COUNT:,} can be told apart; state limit"
        )
    return data


def open_validation(path: Path) -> Data:
    """What perf_analyzer's JSON says that replies must be, an entry for each of its data. Raises ScenarioError."""
    with faults_of(path):
        source, n_data = JsonSource(path, VALIDATION), JsonSource(path).n_entries
    if source.n_entries != n_data:
        raise ScenarioError(f"{path}: has {source.n_entries} entries of {VALIDATION} for {n_data} of data")
    return Data(DataConfig(path=str(path)), source, "json")


def is_validated(config: DataConfig) -> bool:
    """Whether the data says what replies must be. Raises ScenarioError for a file that cannot be read."""
    path = Path(config.path)
    with faults_of(path):
        return (config.format or recognised(path)) == "json" and has_validation(path)


def count_entries(config: DataConfig) -> int:
    """How many entries there are to draw from. Raises as `open_data`."""
    with faults_of(Path(config.path)):
        state = _state(Path(config.path))
    n_entries = _counted(config.path, config.format, state)
    return min(n_entries, config.limit or n_entries)


@lru_cache(maxsize=64)
def _counted(path: str, form: DataFormat | None, state: State) -> int:
    del state  # else one that has changed would be counted as it was
    return open_data(DataConfig(path=path, format=form)).n_entries


def recognised(path: Path) -> DataFormat:
    """By name and first bytes. Raises RowFault where they say nothing."""
    if path.is_dir():
        files = files_in(path)
        is_images = files and all(file.suffix.lower() in IMAGE_SUFFIXES for file in files)
        return "images" if is_images else "folder"
    if path.exists() and not path.is_file():
        raise RowFault(None, "is neither a file nor a folder: what a pipe gives is read once alone")
    with path.open("rb") as file:
        start = file.read(8)
    for magic, form in _MAGIC:
        if start.startswith(magic):
            return form
    if path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    raise RowFault(
        None, f"nothing says what it is; state format: {', '.join(dict.fromkeys(_SUFFIXES.values()))}"
    )


def _source(path: Path, form: DataFormat) -> Source:
    if path.is_dir() != (form in ("folder", "images")):
        raise RowFault(None, f"is {'a folder' if path.is_dir() else 'no folder'}, and format is {form}")
    if path.is_file() and not path.stat().st_size:
        raise RowFault(None, "is empty")
    match form:
        case "parquet" | "arrow":
            return ColumnarSource(path)
        case "json":
            return JsonSource(path)
        case "npy" | "npz":
            return ArraySource(path, is_zip=form == "npz")
        case "text":
            return LineSource(path)
        case "images":
            return ImageSource(path)
        case "folder":
            return FolderSource(path)
        case _:
            assert_never(form)


def _state(path: Path) -> State:
    """OSError passes."""
    if not path.is_dir():
        found = path.stat()
        return ((path.name, found.st_size, found.st_mtime_ns),)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return tuple(
        (str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files
    )


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def faults_at(one: ModelScenario) -> Iterator[None]:
    """Faults of the data of a model begin with where this stands."""
    try:
        yield
    except ScenarioError as error:
        raise ScenarioError(f"{one.place_of('data')}: {error}") from error


@contextmanager
def faults_of(path: Path) -> Iterator[None]:
    """Maps what readers and the libraries below them raise to ScenarioError with the file's name."""
    import pyarrow as pa

    try:
        yield
    except RowFault as error:
        raise ScenarioError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise ScenarioError(f"{path}: no such file or folder of data") from error
    except PermissionError as error:
        raise ScenarioError(f"{path}: no permission to read it") from error
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, pa.ArrowException) as error:
        said = " ".join(str(error).split())[:200]
        raise ScenarioError(f"{path}: cannot be read, is it whole? {said}") from error
