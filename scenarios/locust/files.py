"""The locustfile and what lies beside it, as they are brought to the nodes."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from squall.scenarios.config.locust import LocustConfig
from squall.scenarios.errors import ScenarioError

MOST_BYTES = 64 * 2**20
"""Of all of them: they travel to every worker."""
MOST_SOURCE_BYTES = 2 * 2**20
"""Of the locustfile itself, which is compiled: that may take 600 bytes of memory for each."""
_NEVER = {"__pycache__", ".git", ".venv"}
"""Folders that are left out."""
MOST_SHOWN = 80
"""Characters of a line that is no Python."""


@dataclass(frozen=True)
class LocustFiles:
    """The locustfile, and all files by their path below its folder, it among them."""

    locustfile: str
    contents: dict[str, bytes]

    def sha256(self) -> str:
        """Hex digest of all names and contents."""
        digest = hashlib.sha256(os.fsencode(self.locustfile))
        for name, content in sorted(self.contents.items()):
            digest.update(os.fsencode(f"\n{name}\n{len(content)}\n"))
            digest.update(content)
        return digest.hexdigest()

    def write(self, folder: Path) -> Path:
        """Puts them below `folder`; where the locustfile is. Raises OSError."""
        for name, content in self.contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder / self.locustfile


def read_locust_files(config: LocustConfig) -> LocustFiles:
    """Raises ScenarioError for a file that is not there or cannot be read, a locustfile that is no Python, in Python's
    own words, one of more than `MOST_SOURCE_BYTES`, and more than `MOST_BYTES` in all, of which no more is read."""
    path = Path(config.file)
    source = _read(path, "load.locust.file", MOST_SOURCE_BYTES)
    if len(source) > MOST_SOURCE_BYTES:
        raise ScenarioError(
            f"load.locust.file: {path}: more than {MOST_SOURCE_BYTES // 2**20} MiB of Python; put data, or modules that"
            " it imports, beside it and name them in load.locust.include"
        )
    folder, contents = path.parent, {path.name: source}
    for named in config.include:
        for one in _files_of(Path(named)):
            name = one.relative_to(folder).as_posix()
            if name not in contents:
                left = MOST_BYTES - sum(map(len, contents.values()))
                contents[name] = _read(one, "load.locust.include", left)
                if len(contents[name]) > left:
                    raise ScenarioError(
                        f"load.locust.include: more than {MOST_BYTES // 2**20} MiB in all, which every worker would be"
                        " sent; put data where all nodes see it"
                    )
    _refuse_no_python(path.name, contents[path.name])
    return LocustFiles(path.name, contents)


def _refuse_no_python(name: str, source: bytes) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):  # they are for whoever runs it
            compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # ValueError: null bytes, before Python 3.11.4; the last two: nested too deep, in the words of each version
        line = " ".join((error.text or "").split()) if isinstance(error, SyntaxError) else ""
        where = f" ({line[:MOST_SHOWN]})" if line else ""
        kind = "SyntaxError" if isinstance(error, ValueError) else type(error).__name__
        said = "nested too deep" if isinstance(error, RecursionError | MemoryError) else str(error)
        raise ScenarioError(f"load.locust.file: {name}: {kind}: {said}{where}") from error


def _files_of(path: Path) -> Iterator[Path]:
    """A file, or all files of a folder, sorted; links are followed, each folder once."""
    if not path.is_dir():
        yield path
        return
    seen = {os.path.realpath(path)}
    for above, folders, files in os.walk(path, followlinks=True):
        kept = []
        for one in sorted(set(folders) - _NEVER):
            real = os.path.realpath(os.path.join(above, one))
            if real not in seen:
                seen.add(real)
                kept.append(one)
        folders[:] = kept
        yield from (file for one in sorted(files) if (file := Path(above, one)).is_file())


def _read(path: Path, key: str, most_bytes: int) -> bytes:
    """One byte more than `most_bytes` at most. Raises ScenarioError."""
    try:
        if path.exists() and not path.is_file():  # a folder, or a pipe that would be waited for
            raise ScenarioError(f"{key}: {path}: is a {'folder' if path.is_dir() else 'device'}, no file")
        with path.open("rb") as file:
            return file.read(most_bytes + 1)
    except OSError as error:
        raise ScenarioError(f"{key}: {path}: {error.strerror}") from error
