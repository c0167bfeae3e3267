"""The locustfile and what lies beside it, as they are brought to the nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from squall.scenarios.config.locust.load import LocustConfig
from squall.scenarios.errors import ScenarioError

MOST_BYTES = 64 * 2**20
"""Of all of them: they travel to every worker."""
_NEVER = ("__pycache__", ".git", ".venv")


@dataclass(frozen=True)
class LocustFiles:
    """The locustfile, and all files by their path below its folder, it among them."""

    locustfile: str
    contents: dict[str, bytes]

    def sha256(self) -> str:
        """Hex digest of all names and contents."""
        digest = hashlib.sha256(self.locustfile.encode())
        for name, content in sorted(self.contents.items()):
            digest.update(f"\n{name}\n{len(content)}\n".encode())
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
    own words, and for more than `MOST_BYTES`."""
    path = Path(config.file)
    folder, contents = path.parent, {path.name: _read(path, "load.locust.file")}
    for named in config.include:
        for one in _files_of(Path(named)):
            contents[str(one.relative_to(folder))] = _read(one, "load.locust.include")
    if sum(map(len, contents.values())) > MOST_BYTES:
        raise ScenarioError(
            f"load.locust.include: more than {MOST_BYTES // 2**20} MiB, which every worker would be sent; put data"
            " where all nodes see it"
        )
    try:
        compile(contents[path.name], path.name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, which Python 3.11 calls so
        where = f" ({error.text.strip()})" if isinstance(error, SyntaxError) and error.text else ""
        raise ScenarioError(f"load.locust.file: {type(error).__name__}: {error}{where}") from error
    return LocustFiles(path.name, contents)


def _files_of(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for one in sorted(path.rglob("*")):
        if one.is_file() and not set(one.parts) & set(_NEVER):
            yield one


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ScenarioError(f"{key}: {path}: {error.strerror}") from error
