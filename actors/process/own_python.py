"""A module of ours in a process of its own, whatever modules the working folder holds."""

from __future__ import annotations

import os
import sys


def own_command(module: str, *arguments: str) -> list[str]:
    """`python -P -m module arguments`: -P keeps the working folder, which is anybody's, off the import path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """This process's environment, with its own import path; the empty entry, which is the working folder, left out."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
