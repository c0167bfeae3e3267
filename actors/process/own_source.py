"""Which squall this process runs: its version and its source, to be held to another node's."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

PACKAGES = tuple(f"squall.{name}" for name in ("scenarios", "models", "actors", "analysis", "cluster"))


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
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).rglob("*.py")):
                total.update(f"{package}/{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return total.hexdigest()[:12]


def missing_libraries() -> list[str]:
    """What squall needs, as pip writes it, that this Python has not, or in a version that does not do."""
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in requires("squall") or ()]
    except PackageNotFoundError:
        return []
    found = []
    for one in needed:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        try:
            is_there = one.specifier.contains(version(one.name), prereleases=True)
        except PackageNotFoundError:
            is_there = False
        if not is_there:
            found.append(f"{one.name}{one.specifier}")
    return found
