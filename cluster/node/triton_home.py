"""Where a Triton server comes from: an installed `tritonserver`, or the one of a wheel, in a cache."""

from __future__ import annotations

import ctypes.util
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

from squall.scenarios.errors import TargetError
from squall.scenarios.records import Frozen

WHEEL = "nvidia-pytriton==0.7.0"
"""Linux x86-64. Its dependencies stay out (they pin numpy 1): only the server is used."""
_WHEEL_VERSION = "2.51.0"
_VERSION_FILE = "TRITON_VERSION"
_WHEEL_SHA256 = "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df"
NUMPY = "numpy==1.26.4"
_NUMPY_SHA256 = {  # by version of Python, Linux x86-64; there is none for 3.13 and later
    "3.11": "666dbfb6ec68962c033a450943ded891bed2d54e6755e35e5835d63f4f6931d5",
    "3.12": "675d61ffbfa78604709862923189bad94014bef562cc35cf61d3a07bba02a7ed",
}
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_READ_PYTHONPATH = (
    "import os, sys; "
    "sys.path[:0] = [p for p in os.environ.get('PYTHONPATH', '').split(os.pathsep) if p and p not in sys.path]\n"
)
_DLPACK = """

# Of squall: the stub renames the capsule of a DLPack tensor as numpy 1 does not know it, which then ends the process by
# endless recursion; from an array of numpy, and a capsule that may be of one, a tensor is made as `Tensor(name, array)`
# instead. The stub sets `Tensor` once the model is imported.
class _OnCpu:
    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_):
        return self._capsule

    def __dlpack_device__(self):
        return 1, 0


class _Utilities(type(json)):
    def __setattr__(self, name, value):
        if name == "Tensor" and np.__version__.startswith("1."):
            given = value.from_dlpack

            def from_dlpack(name, x):
                if type(x).__name__ == "PyCapsule":
                    try:
                        x = np.from_dlpack(_OnCpu(x))
                    except Exception:  # on a GPU, or of a type that numpy lacks: no array of numpy's
                        return given(name, x)
                return value(name, x) if isinstance(x, np.ndarray) else given(name, x)

            value.from_dlpack = staticmethod(from_dlpack)
        super().__setattr__(name, value)


__import__("sys").modules[__name__].__class__ = _Utilities
"""
_NUMPY_MEND = (
    "return outputs with Tensor.from_dlpack, or put a tritonserver on the PATH that was built for numpy 2"
)
_TRITON_MEND = (
    "connect this machine to a package index once, copy the cache folder from a machine that has it "
    "(SQUALL_CACHE_DIR), put tritonserver on the PATH, or pass --server URL"
)
_NEEDED = ("pytriton/tritonserver/", "nvidia_pytriton.libs/")
_FETCH_TIMEOUT_S = 600


class TritonHome(Frozen):
    """A server binary, the folder of its backends (None: its own default) and the libraries it needs.

    `source` says in one word where it came from: PATH or wheel. `version`: of the server, before it is started; None
    where nothing beside it tells.
    """

    binary: Path
    backends: Path | None
    library_dirs: tuple[Path, ...]
    source: str
    version: str | None
    programs: Path | None = None
    """To be first on the server's PATH: its Python backend takes the `python3` that it finds there for its own."""


def cache_dir() -> Path:
    """`SQUALL_CACHE_DIR`, else `squall` in the user's cache folder (XDG base directory specification)."""
    chosen = os.environ.get("SQUALL_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "squall"


def cached_home() -> Path | None:
    """The folder of the wheel's server in the cache, where it is there and whole."""
    home = cache_dir() / f"triton-{WHEEL.replace('==', '-')}"
    return home if (home / "complete").exists() else None


def find_triton() -> TritonHome:
    """`tritonserver` on the PATH, else the wheel's, fetched on first use. Raises TargetError."""
    installed = shutil.which("tritonserver")
    if installed:
        return TritonHome(Path(installed), None, (), "PATH", _installed_version(Path(installed)))
    return _wheel_home()


def _installed_version(binary: Path) -> str | None:
    """What the file TRITON_VERSION says, which NVIDIA's images have beside the folder `bin` of the binary itself."""
    try:
        text = (binary.resolve().parents[1] / _VERSION_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError, IndexError):
        return None
    version = text.strip()
    return version if re.fullmatch(r"\d+\.\d+\.\d+\S*", version) else None


def _wheel_home() -> TritonHome:
    python = _PYTHON
    home = cache_dir() / f"triton-{WHEEL.replace('==', '-')}"
    if not (home / "complete").exists():
        _unpack_wheel(home)
    triton = home / "pytriton" / "tritonserver"
    stub = triton / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not (triton / "bin" / "tritonserver").is_file() or not stub.parent.parent.is_dir():
        raise TargetError(f"the cached Triton server is damaged: remove {home}, and it is fetched again")
    if not stub.exists():
        have = sorted(path.name for path in stub.parent.parent.iterdir())
        raise TargetError(
            f"the embedded Triton has Python backends for {', '.join(have)}, not for {python}: "
            "make the environment with one of those, or pass --server URL"
        )
    backends = home / f"backends-{python}-3"  # the last number: of what `_make_backends` makes
    if not backends.exists():
        _make_backends(backends, triton / "backends" / "python", stub)
    environment = home / f"environment-{python}"
    if not (environment / "bin" / "python3").exists():  # a link into the Python of the machine that made it
        shutil.rmtree(environment, ignore_errors=True)
        _make_environment(environment)
    libraries = (home / "nvidia_pytriton.libs", *_python_library_dirs(python))
    binary = triton / "bin" / "tritonserver"
    return TritonHome(binary, backends, libraries, "wheel", _WHEEL_VERSION, environment / "bin")


def require_numpy() -> str:
    """What `numpy_for_models` unpacks, without fetching it. Raises TargetError with the mend if nothing is known."""
    if _PYTHON not in _NUMPY_SHA256:
        raise TargetError(f"there is no numpy 1 for Python {_PYTHON}; {_NUMPY_MEND}")
    return NUMPY


def numpy_for_models() -> Path:
    """The folder of a numpy 1, for the import path of the models of the wheel's server; fetched on first use.

    The Python backend of that wheel was built for numpy 1: a numpy 2 array as an output leaves it without a byte and
    without an error. Raises TargetError with the mend if there is none for this Python, or it cannot be fetched.
    """
    require_numpy()
    folder = cache_dir() / f"{NUMPY.replace('==', '-')}-python{_PYTHON}"
    if not folder.exists():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                wheel = _fetch_wheel(Path(work), NUMPY, _NUMPY_SHA256[_PYTHON], _NUMPY_MEND)
                unfinished = Path(work) / "whole"
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(unfinished)
                _publish(unfinished, folder)
        except OSError as error:
            raise TargetError(f"cannot unpack {NUMPY} into {folder.parent}: {error.strerror}") from error
    return folder


def _make_backends(folder: Path, python_backend: Path, stub: Path) -> None:
    """The backend folder Triton expects: the Python backend with the stub of our Python beside it, and `_DLPACK`."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        target = Path(unfinished) / "python"
        shutil.copytree(python_backend, target)
        shutil.copy(stub, target)
        with (target / "triton_python_backend_utils.py").open("a", encoding="utf-8") as utilities:
            utilities.write(_DLPACK)
        _publish(Path(unfinished), folder)


def _make_environment(folder: Path) -> None:
    """A virtual environment for Python models, which imports what PYTHONPATH names.

    The stub embeds Python isolated, so that models would import from the Python that the PATH leads to and nothing
    else; a .pth file, which is run at the start, reads the variable in its place.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        venv.EnvBuilder(symlinks=True).create(unfinished)
        (packages,) = Path(unfinished).glob("lib/python*/site-packages")
        (packages / "pythonpath.pth").write_text(_READ_PYTHONPATH, encoding="utf-8")
        _publish(Path(unfinished), folder)


def _publish(unfinished: Path, folder: Path) -> None:
    """Gives a finished folder its name at once; another process that was faster wins."""
    moved = unfinished.with_name(unfinished.name + "-whole")
    os.rename(unfinished, moved)
    unfinished.mkdir()  # for its owner, who removes it
    try:
        os.rename(moved, folder)
    except OSError:
        shutil.rmtree(moved)


def _python_library_dirs(python: str) -> tuple[Path, ...]:
    """Folders of libpython for the Python backend's stub. Raises TargetError where there is none."""
    name = f"libpython{python}.so.1.0"
    own = Path(sysconfig.get_config_var("LIBDIR") or "/nonexistent")
    if os.path.exists(own / name):  # not in a folder that is not ours to look into, either
        return (own,)
    if ctypes.util.find_library(f"python{python}"):
        return ()
    raise TargetError(
        f"the embedded Triton needs {name}, and this Python was built without it: install it "
        f"(Debian and Ubuntu: apt install libpython{python}), or pass --server URL"
    )


def _unpack_wheel(home: Path) -> None:
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as work:
            wheel = _fetch_wheel(Path(work), WHEEL, _WHEEL_SHA256, _TRITON_MEND)
            unfinished = Path(work) / "home"
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    if member.startswith(_NEEDED):
                        archive.extract(member, unfinished)
            triton = unfinished / "pytriton" / "tritonserver"
            for program in (triton / "bin" / "tritonserver", *triton.glob("python_backend_stubs/*/*stub")):
                program.chmod(0o755)
            (unfinished / "complete").touch()
            if not (home / "complete").exists():
                shutil.rmtree(home, ignore_errors=True)  # a copy that was cut off: it would stand in the way
            _publish(unfinished, home)
    except OSError as error:
        raise TargetError(f"cannot unpack the Triton server into {home.parent}: {error.strerror}") from error


def _fetch_wheel(folder: Path, requirement: str, sha256: str, mend: str) -> Path:
    """The wheel of `requirement`, by pip. Raises TargetError with the mend if that fails or it is not the known one."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--retries=1",
        "--timeout=15", "--disable-pip-version-check", "--dest", str(folder), requirement,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"fetching {requirement} took more than {_FETCH_TIMEOUT_S} s; {mend}") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        words = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            done.stderr.strip()
        ]
        raise TargetError(f"{requirement} is not cached and could not be fetched ({words[-1]}); {mend}")
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != sha256:
        raise TargetError(f"{wheels[0].name} has sha256 {digest}, not {sha256}: it is not the known wheel")
    return wheels[0]
