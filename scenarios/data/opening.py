"""Opens data of any format, counts its entries and takes its digest.

Errors are one line: the file, the row (the first entry is row 1) and what is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from squall.scenarios.arrays import Int64s
from squall.scenarios.config.inputs import DataConfig, DataFormat
from squall.scenarios.config.models import ModelScenario
from squall.scenarios.data.arrays import ArraySource
from squall.scenarios.data.columnar import ColumnarSource
from squall.scenarios.data.folders import FolderSource, ImageSource, files_in
from squall.scenarios.data.jsondata import VALIDATION, JsonSource, has_validation
from squall.scenarios.data.lines import LineSource
from squall.scenarios.data.source import Entries, Source
from squall.scenarios.errors import ScenarioError, placed
from squall.scenarios.records import Frozen
from squall.scenarios.sizes import LARGEST_ENTRY_COUNT
from squall.scenarios.traces.faults import RowFault, faults_of

KIND = "file or folder of data"


class _Format(Frozen):
    """`magic`: how its files begin; `suffixes` tell those that nothing else does."""

    source: Callable[[Path], Source]
    magic: tuple[bytes, ...] = ()
    suffixes: tuple[str, ...] = ()
    is_folder: bool = False


FORMATS: dict[DataFormat, _Format] = {
    "parquet": _Format(ColumnarSource, (b"PAR1",), (".parquet",)),
    "arrow": _Format(ColumnarSource, (b"ARROW1",), (".arrow", ".arrows", ".feather", ".ipc")),
    "json": _Format(JsonSource, (), (".json",)),
    "npy": _Format(ArraySource, (b"\x93NUMPY",), (".npy",)),
    "npz": _Format(partial(ArraySource, is_zip=True), (b"PK\x03\x04",), (".npz",)),
    "text": _Format(LineSource, (), (".txt", ".text")),
    "images": _Format(ImageSource, is_folder=True),
    "folder": _Format(FolderSource, is_folder=True),
}

State = tuple[tuple[str, int, int], ...]
"""Name, bytes and time of the last change of each file."""


class Data:
    """The entries that a scenario names: the first `limit` of a file or folder. `state`: whether it has changed."""

    def __init__(self, config: DataConfig, source: Source, format: DataFormat, state: State) -> None:
        self.path = Path(config.path)
        self.format: DataFormat = format
        self.names, self.shapes = source.names, source.shapes
        self.n_entries = min(source.n_entries, config.limit or source.n_entries)
        self.state = state
        self._source = source

    def read(self, numbers: Int64s, names: tuple[str, ...]) -> Entries:
        """The entries of these numbers, each once and in rising order: see `Source.read`. Raises ScenarioError."""
        wanted = np.zeros(self.n_entries, np.bool_)
        wanted[numbers] = True
        with faults_of(self.path, KIND):
            yield from self._source.read(wanted, [name for name in self.names if name in names])
        if _state(self.path) != self.state:
            raise ScenarioError(f"{self.path}: changed while it was read")

    def fault(self, number: int, what: str) -> ScenarioError:
        """Of the entry `number`, from 0 on."""
        return ScenarioError(f"{self.path}: {self._source.place(number)}: {what}")

    def sha256(self) -> str:
        """In hex: of the file; of a folder, of the digests and names of its files."""
        digests = {}
        with faults_of(self.path, KIND):
            for name, _, _ in self.state:
                with (self.path / name).open("rb") as file:
                    digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
        if self.path.is_file():
            return digests["."]
        lines = (f"{digest}  {name}\n" for name, digest in digests.items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def open_data(config: DataConfig) -> Data:
    """The data, with its entries counted: anew only where the file has changed.

    Raises ScenarioError where it is not there, or no file of its format.
    """
    path = Path(config.path)
    with faults_of(path, KIND):
        form, state = config.format or recognised(path), _state(path)
        source = _source(path, form, state)
    if not source.n_entries:
        raise ScenarioError(f"{path}: holds no entry")
    data = Data(config, source, form, state)
    if data.n_entries > LARGEST_ENTRY_COUNT:
        raise ScenarioError(
            f"{path}: has {data.n_entries:,} entries, at most {LARGEST_ENTRY_COUNT:,} can be told apart; state limit"
        )
    return data


@lru_cache(maxsize=64)
def _source(path: Path, form: DataFormat, state: State) -> Source:
    """The entries of a file or folder, counted once while its `state` lasts."""
    if path.is_dir() != FORMATS[form].is_folder:
        raise RowFault(None, f"is {'a folder' if path.is_dir() else 'no folder'}, and format is {form}")
    if path.is_file() and not state[0][1]:
        raise RowFault(None, "is empty")
    return FORMATS[form].source(path)


def open_validation(path: Path) -> Data:
    """What perf_analyzer's JSON says that replies must be, an entry for each of its data. Raises ScenarioError."""
    with faults_of(path, KIND):
        state = _state(path)
        source, n_data = JsonSource(path, VALIDATION), _source(path, "json", state).n_entries
    if source.n_entries != n_data:
        raise ScenarioError(f"{path}: has {source.n_entries} entries of {VALIDATION} for {n_data} of data")
    return Data(DataConfig(path=str(path)), source, "json", state)


def is_validated(config: DataConfig) -> bool:
    """Whether the data says what replies must be. Raises ScenarioError for a file that cannot be read."""
    path = Path(config.path)
    with faults_of(path, KIND):
        return (config.format or recognised(path)) == "json" and has_validation(path)


def recognised(path: Path) -> DataFormat:
    """By first bytes and name. Raises RowFault where they say nothing."""
    if path.is_dir():
        files = files_in(path)
        return "images" if files and len(ImageSource(path).files) == len(files) else "folder"
    if path.exists() and not path.is_file():
        raise RowFault(None, "is neither a file nor a folder: what a pipe gives is read once alone")
    with path.open("rb") as file:
        start = file.read(8)
    by_magic = [name for name, form in FORMATS.items() if start.startswith(form.magic)]
    by_name = [name for name, form in FORMATS.items() if path.suffix.lower() in form.suffixes]
    found = by_magic or by_name
    if not found:
        known = ", ".join(name for name, form in FORMATS.items() if form.suffixes)
        raise RowFault(None, f"nothing says what it is; state format: {known}")
    return found[0]


def _state(path: Path) -> State:
    """OSError passes."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    states = ((file, file.stat()) for file in files)
    return tuple((str(file.relative_to(path)), state.st_size, state.st_mtime_ns) for file, state in states)


def faults_at(one: ModelScenario) -> AbstractContextManager[None]:
    """Faults of the data of a model begin with where this stands."""
    return placed(one.place_of("data"), ScenarioError, ScenarioError)
