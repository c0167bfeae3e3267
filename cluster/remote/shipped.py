"""This squall for nodes that have none or another: its packages and C parts, unpacked there by Ray."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from squall.actors.process.own_source import PACKAGES

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.c", "*.h", "*.pyc")


def upload() -> list[str]:
    """URIs for `py_modules` of a runtime environment, in the store of the Ray that this process has joined; the same
    bytes are brought there once. Nothing is fetched from a package index, neither here nor there.

    Raises OSError, and what Ray raises.
    """
    from ray._private.runtime_env.py_modules import upload_py_modules_if_needed

    with tempfile.TemporaryDirectory(prefix="squall-ship-") as folder:
        modules = [str(path) for path in staged(Path(folder))]
        found = upload_py_modules_if_needed(
            {"py_modules": modules}, include_gitignore=False, scratch_dir=folder
        )
        return list(found["py_modules"])


def staged(folder: Path) -> list[Path]:
    """Folders made in `folder`: the package `squall` as this process imports it, and what pip knows of it."""
    package = folder / "squall"
    package.mkdir()
    for name in ("squall", *PACKAGES):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        (source,) = map(Path, spec.submodule_search_locations or ())
        if name == "squall":  # of a checkout the root is the package: tests and all else lie there too
            for file in ("__init__.py", "py.typed"):
                shutil.copy(source / file, package)
        else:
            shutil.copytree(source, package / name.removeprefix("squall."), ignore=_LEFT_OUT)
    try:
        told = distribution("squall")
    except PackageNotFoundError:
        return [package]
    metadata = folder / f"squall-{told.version}.dist-info"
    metadata.mkdir()
    text = told.read_text("METADATA") or told.read_text(
        "PKG-INFO"
    )  # the latter where it was built in its own folder
    (metadata / "METADATA").write_text(text or "", encoding="utf-8")
    return [package, metadata]
