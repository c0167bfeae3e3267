"""The wheel of the squall that runs here, from its files: no compiler, no index; the same files give the same bytes."""

from __future__ import annotations

import base64
import hashlib
import sysconfig
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from squall.cluster.remote.shipped import staged
from squall.scenarios.errors import ClusterError

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest instant that a zip file can name."""


def write_wheel(folder: Path) -> Path:
    """The file, in `folder`. Raises ClusterError where squall is not installed, or without its C parts; OSError."""
    with tempfile.TemporaryDirectory(prefix="squall-wheel-") as work:
        package, *metadata = staged(Path(work))
        if not metadata:
            raise ClusterError(
                "squall runs from a folder here and is not installed: pip install it, and try again"
            )
        if not any(package.rglob("*.so")):
            raise ClusterError("squall's C parts were not built here: install it where a C compiler is")
        (facts,) = metadata
        tag = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        (facts / "WHEEL").write_text(
            f"Wheel-Version: 1.0\nGenerator: squall\nRoot-Is-Purelib: false\nTag: {tag}\n", encoding="utf-8"
        )
        scripts = (one for one in distribution("squall").entry_points if one.group == "console_scripts")
        lines = [f"{one.name} = {one.value}" for one in scripts]
        (facts / "entry_points.txt").write_text(
            "\n".join(["[console_scripts]", *lines, ""]), encoding="utf-8"
        )
        wheel = folder / f"{facts.name.removesuffix('.dist-info')}-{tag}.whl"
        _pack(Path(work), f"{facts.name}/RECORD", wheel)
        return wheel


def _pack(folder: Path, record: str, wheel: Path) -> None:
    """All files of `folder`, and `record`, which names them with their digests (PEP 427)."""
    lines = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            name, data = path.relative_to(folder).as_posix(), path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}")
            _add(archive, name, data)
        _add(archive, record, "\n".join([*lines, f"{record},,", ""]).encode())


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    facts = zipfile.ZipInfo(name, _EPOCH)
    facts.compress_type, facts.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    archive.writestr(facts, data)
