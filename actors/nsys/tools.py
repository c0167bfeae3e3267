"""Where Nsight Systems lies on a node, what that version can do, and the repair of an importer it does not find.

`nsys stop` writes a `.qdstrm` and has a second program, QdstrmImporter, make the report of it. nsys looks for it in
`../host-linux-x64` beside its own real path only. Debian's package and Nsight Compute put it elsewhere; then `stop`
waits for nothing (2 s with 2022.4.2, over a minute with 2025.3.1) and leaves the bare `.qdstrm`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from squall.actors.nsys.step import run_step
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen

MEND = (
    "install Nsight Systems and put nsys on the PATH (Debian: package nsight-systems, component non-free), "
    "or name it in SQUALL_NSYS"
)
_ASK_TIMEOUT_S = 20
_IMPORTER = "QdstrmImporter"
_VERSION = re.compile(r"Nsight Systems (?:version )?(\d+(?:\.\d+)+)")
_OPTION = re.compile(r"^\s+(?:\(Deprecated\)\s+)?(?:-\w, )?(--[a-z][a-z-]*)", re.MULTILINE)
_TYPES = re.compile(r"^\s+-t, --type=\s+Possible values are:?(?P<types>[^.]*)\.", re.MULTILINE)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_INSIDE = ("", "bin", "target-linux-x64", "host/target-linux-x64", "target-linux-sbsa-armv8")
_SEARCHED = (
    ("Nsight Systems", "opt/nvidia/nsight-systems*/*/bin/nsys"),
    ("Nsight Systems", "opt/nvidia/nsight-systems*/*/target-linux-*/nsys"),
    ("Nsight Compute", "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys"),
    ("CUDA toolkit", "usr/local/cuda*/bin/nsys"),
    ("CUDA toolkit", "usr/local/cuda*/nsight-*/bin/nsys"),
    ("CUDA toolkit", "usr/local/cuda*/nsight-*/target-linux-*/nsys"),
    ("Debian", "usr/lib/nsight-systems/bin/nsys"),
    ("Debian", "usr/lib/*/nsight-systems/target-linux-*/nsys"),
)
_SPLIT_IMPORTERS = ("usr/lib/nsight-systems/host-linux-*", "usr/lib/*/nsight-systems/host-linux-*")
_PACKAGES = {"libdw.so.1": "libdw1 (Fedora: elfutils-libs)", "libGL.so.1": "libgl1 (Fedora: mesa-libGL)"}


class Problem(Frozen):
    """What of nsys does not work here, and what mends it. `is_fatal`: there are no reports without the mend."""

    what: str
    mend: str
    is_fatal: bool = True


class NsysTools(Frozen):
    """An nsys that answers, and what it can do by its own `--help`.

    `found`: where, in a word or two, without a path. `importer`: for a bare `.qdstrm`; None if there is none of this
    version. `is_repaired`: `nsys` is the copy in squall's cache that finds its importer.
    """

    nsys: Path
    version: tuple[int, ...]
    found: str
    importer: Path | None
    export_types: tuple[str, ...] = ("sqlite",)
    launch_options: frozenset[str] = frozenset()
    start_options: frozenset[str] = frozenset()
    is_repaired: bool = False
    problems: tuple[Problem, ...] = ()

    @property
    def version_text(self) -> str:
        """As in 2022.4.2.1."""
        return ".".join(map(str, self.version))

    @property
    def env(self) -> dict[str, str]:
        """What the environment of nsys must hold beside PATH: libraries that its importer may need."""
        libraries = os.environ.get("LD_LIBRARY_PATH")
        return {"LD_LIBRARY_PATH": libraries} if libraries else {}


def find_nsys(cache: Path | None = None, root: Path = Path("/")) -> NsysTools | None:
    """The nsys of SQUALL_NSYS, else of the PATH, else the newest of the known places below `root`; None without any.

    With `cache` an nsys that does not find its importer is repaired there; nothing is written anywhere else. Raises
    ClusterError where SQUALL_NSYS names no nsys that runs.
    """
    tools = _chosen() or _on_path() or _newest(root)
    if tools is None:
        return None
    tools = _with_importer(_with_options(tools), root)
    if cache is not None and tools.importer is not None and not _finds_importer(tools.nsys):
        tools = _repaired(tools, cache)
    return replace(tools, problems=tuple(_problems(tools)))


def _chosen() -> NsysTools | None:
    named = os.environ.get("SQUALL_NSYS")
    if not named:
        return None
    path = Path(named)
    candidates = [path / inside / "nsys" for inside in _INSIDE] if path.is_dir() else [path]
    for nsys in candidates:
        version = _version_of(nsys)
        if version is not None:
            return NsysTools(nsys, version, "SQUALL_NSYS", None)
    raise ClusterError(
        f"SQUALL_NSYS: {named} is no nsys that runs, nor a folder that holds one: correct it or unset it"
    )


def _on_path() -> NsysTools | None:
    found = shutil.which("nsys")
    version = _version_of(Path(found)) if found else None
    return NsysTools(Path(found), version, "PATH", None) if found and version else None


def _newest(root: Path) -> NsysTools | None:
    """The newest that answers; of equal versions the first in the order of `_SEARCHED`."""
    best: NsysTools | None = None
    for found, pattern in _SEARCHED:
        for nsys in sorted(root.glob(pattern)):
            version = _version_of(nsys)
            if version is not None and (best is None or version > best.version):
                best = NsysTools(nsys, version, found, None)
    return best


def _ask(*command: str) -> str | None:
    """What a command that ends with code 0 prints; None where it cannot run or says nothing in time."""
    try:
        return run_step(command, os.environ, _ASK_TIMEOUT_S).text
    except ClusterError:
        return None


def _version_of(program: Path) -> tuple[int, ...] | None:
    words = _VERSION.search((_ask(str(program), "--version") or "") if program.is_file() else "")
    return tuple(map(int, words[1].split("."))) if words else None


def _with_options(tools: NsysTools) -> NsysTools:
    """`tools` with what `--help` of launch, start and export offers."""
    launch, start, export = (
        _ask(str(tools.nsys), step, "--help") or "" for step in ("launch", "start", "export")
    )
    return replace(
        tools, launch_options=options_in(launch), start_options=options_in(start),
        export_types=export_types_in(export) or ("sqlite",),
    )  # fmt: skip


def options_in(text: str) -> frozenset[str]:
    """The options that a `nsys STEP --help` describes; those it calls no longer supported are left out."""
    starts = [*_OPTION.finditer(text)]
    ends = [*(found.start() for found in starts), len(text)][1:]
    return frozenset(
        found[1]
        for found, end in zip(starts, ends, strict=True)
        if "no longer supported" not in text[found.start() : end]
    )


def export_types_in(text: str) -> tuple[str, ...]:
    """The values of `--type` in `nsys export --help`."""
    found = _TYPES.search(text)
    words = re.findall(r"[a-z]+", found["types"]) if found else []
    return tuple(word for word in words if word not in ("and", "or"))


def _folder_of(nsys: Path) -> Path:
    """The folder of the program that runs in the end: nsys looks from there."""
    return nsys.resolve().parent


def _finds_importer(nsys: Path) -> bool:
    """True where nsys itself finds its importer, and for a script, which runs an nsys that we do not see."""
    beside = any(_folder_of(nsys).parent.glob(f"host-linux-*/{_IMPORTER}"))
    with nsys.open("rb") as program:
        return beside or program.read(2) == b"#!"


def _beside(nsys: Path) -> list[Path]:
    """Importers of the same installation, the one that nsys finds itself first."""
    above = _folder_of(nsys).parent
    return [
        path
        for kind in ("host-linux-*", "linux-desktop-*")
        for path in sorted(above.glob(f"{kind}/{_IMPORTER}"))
    ]


def _with_importer(tools: NsysTools, root: Path) -> NsysTools:
    """`tools` with the importer of its own installation, else one elsewhere that says the same version."""
    elsewhere = (path for pattern in _SPLIT_IMPORTERS for path in sorted(root.glob(f"{pattern}/{_IMPORTER}")))
    same = (path for path in elsewhere if _version_of(path) == tools.version or missing_libraries(path))
    return replace(tools, importer=next(iter(_beside(tools.nsys)), None) or next(same, None))


def missing_libraries(program: Path) -> tuple[str, ...]:
    """Shared libraries that the dynamic linker does not find for it, by ldd(1)."""
    return tuple(_MISSING.findall(_ask("ldd", str(program)) or ""))


def _problems(tools: NsysTools) -> Iterator[Problem]:
    if tools.importer is None:
        if not _finds_importer(tools.nsys):
            yield Problem(
                f"nsys {tools.version_text} has no {_IMPORTER}, which makes reports of its recordings",
                f"install the whole of Nsight Systems {tools.version_text}, or another and name it in SQUALL_NSYS",
            )
        return
    for library in missing_libraries(tools.importer):
        package = _PACKAGES.get(library)
        mend = f"install {package}" if package else f"install the package that holds {library}"
        yield Problem(f"{_IMPORTER} of nsys lacks {library}", f"{mend}, or put it on LD_LIBRARY_PATH")
    if not _finds_importer(tools.nsys):
        yield Problem(
            f"nsys {tools.version_text} does not find its importer: every stop takes seconds longer",
            "let squall repair it: its cache folder (SQUALL_CACHE_DIR) must be writable",
            is_fatal=False,
        )


def _repaired(tools: NsysTools, cache: Path) -> NsysTools:
    """`tools` as a layout in `cache` in which nsys finds its importer; unchanged where that cannot be made.

    nsys goes by the real path of its program, which therefore is a copy (41 MB with 2022.4.2); the rest are links. Made
    under another name and renamed: of several processes one wins, and the others take its layout.
    """
    assert tools.importer is not None
    nsys = tools.nsys.resolve()
    state = nsys.stat()
    key = hashlib.sha256(f"{nsys}|{tools.importer}|{state.st_size}|{state.st_mtime_ns}".encode()).hexdigest()[
        :12
    ]
    home = cache / f"nsys-{tools.version_text}-{key}"
    copy = home / nsys.parent.name / "nsys"
    try:
        if not copy.exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as work:
                _lay_out(Path(work) / "home", nsys, tools.importer)
                _publish(Path(work) / "home", home)
    except OSError:
        return tools
    if _version_of(copy) != tools.version:
        return tools
    return replace(tools, nsys=copy, is_repaired=True)


def _lay_out(home: Path, nsys: Path, importer: Path) -> None:
    target = home / nsys.parent.name
    target.mkdir(parents=True)
    for path in nsys.parent.iterdir():
        if path.name != nsys.name:
            (target / path.name).symlink_to(path)
    shutil.copy2(nsys, target / "nsys")
    host = "host-" + nsys.parent.name.removeprefix("target-")
    (home / host).symlink_to(importer.parent.resolve(), target_is_directory=True)


def _publish(unfinished: Path, home: Path) -> None:
    """Gives a finished layout its name at once; of another process that was faster, that one stays."""
    try:
        os.rename(unfinished, home)
    except OSError:
        if not home.is_dir():
            raise
