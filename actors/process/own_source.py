"""Which squall this process runs: its version and its source, to be held to another node's."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = tuple(f"squall.{name}" for name in ("scenarios", "models", "actors", "analysis", "cluster"))


@dataclass(frozen=True)
class OwnCode:
    """Versions of squall and Python, and `source_digest()`: calls are pickled between processes of one code alone."""

    squall: str
    python: str
    source: str

    def __str__(self) -> str:
        return f"squall {self.squall} (source {self.source}) in Python {self.python}"


def own_code() -> OwnCode:
    """Of this process."""
    try:
        squall = version("squall")
    except PackageNotFoundError:
        squall = "without a version"
    return OwnCode(squall, platform.python_version(), source_digest())


def source_digest() -> str:
    """Short sha256 of squall's Python files: tells two copies of one version apart."""
    total = hashlib.sha256()
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).rglob("*.py")):
                total.update(f"{package}/{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:12]
