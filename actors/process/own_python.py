"""A module of ours in a process of its own, whatever modules the working folder holds."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder


def own_command(module: str, *arguments: str) -> list[str]:
    """`python -P -m module arguments`: -P keeps the working folder, which is anybody's, off the import path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """This process's environment, with its own import path; the empty entry, which is the working folder, left out."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of squall's own processes", name=fullname)


def leave_out_pandas() -> None:
    """For a process of ours, at its start: `import pandas` fails in it from then on.

    Nothing that runs there uses it, and pyarrow imports it, where it is installed, when it first converts a value of
    Python's.
    """
    sys.meta_path.insert(0, _NoPandas())
