"""Writes requirements.txt on stdout: constraints.txt with the SHA-256 of each wheel that a host may need:
`make hashes` runs it."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from pip._internal.models.index import PyPI

PINS = Path(__file__).parents[2] / "constraints.txt"
PYTHONS = (11, 12, 13)
MACHINES = ("x86_64", "aarch64")
HEAD = """\
# What `make` installs, on Linux with CPython 3.11 to 3.13: the wheels of constraints.txt, made by `make hashes`.
--only-binary :all:
"""


def pins() -> dict[str, str]:
    """Version by name, as constraints.txt has them."""
    lines = [line for line in PINS.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def fits(tag: Tag, python: int, machine: str) -> bool:
    """Whether CPython 3.`python` of glibc on such a machine can install a wheel with this tag."""
    if tag.platform != "any" and not re.fullmatch(rf"(manylinux\w*|linux)_{machine}", tag.platform):
        return False
    own = re.fullmatch(r"(?:cp|py)3(\d*)", tag.interpreter)
    if own is None or tag.abi not in ("none", "abi3", f"cp3{python}"):
        return False
    is_later = tag.abi == "abi3" or tag.interpreter.startswith("py")
    return int(own[1] or 0) <= python if is_later else int(own[1]) == python


def wheels(name: str, version: str) -> list[str]:
    """SHA-256 of each wheel that fits somewhere, sorted. Raises SystemExit where a host has none."""
    page = urllib.request.Request(
        f"{PyPI.simple_url}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(page, timeout=60) as reply:
        files: list[dict[str, Any]] = json.load(reply)["files"]
    found: set[str] = set()
    own = [(parse_wheel_filename(one["filename"]), one) for one in files if is_wheel_of(one, version)]
    for python in PYTHONS:
        for machine in MACHINES:
            here = {
                one["hashes"]["sha256"]
                for (*_, tags), one in own
                if any(fits(tag, python, machine) for tag in tags)
            }
            if not here:
                sys.exit(f"{name}=={version}: no wheel for Python 3.{python} on {machine}")
            found |= here
    return sorted(found)


def is_wheel_of(file: dict[str, Any], version: str) -> bool:
    """Whether a file of the index is a wheel of this version that was not withdrawn."""
    return (
        file["filename"].endswith(".whl") and file["filename"].split("-")[1] == version and not file["yanked"]
    )


if __name__ == "__main__":
    print(HEAD, end="")
    for name, version in pins().items():
        print(
            f"{name}=={version}", *(f"--hash=sha256:{one}" for one in wheels(name, version)), sep=" \\\n    "
        )
