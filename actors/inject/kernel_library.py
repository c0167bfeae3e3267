"""The environment that makes CUDA load the kernel library, CUPTI on this machine, and the rings that there are."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from squall.actors.inject.kernel_ring import KernelKinds
from squall.actors.inject.library import CUPTI_VARIABLE, INJECTION_VARIABLE, KERNEL_FOLDER_VARIABLE

DEFAULT_KINDS = KernelKinds.KERNELS | KernelKinds.COPIES
_WHEELS = ("cu13/lib/libcupti.so.13", "cuda_cupti/lib/libcupti.so.12", "cuda_cupti/lib/libcupti.so.11.8")
_TOOLKITS = ("/usr/local/cuda/extras/CUPTI/lib64/libcupti.so", "/usr/local/cuda/lib64/libcupti.so")


def find_cupti() -> Path | None:
    """The CUPTI that this process's environment names, else that of this Python's CUDA wheels, else of the machine's
    toolkit; None where none is there.

    For processes that have not loaded one themselves: PyTorch has, Triton itself has not.
    """
    if named := os.environ.get(CUPTI_VARIABLE):
        return Path(named)
    return next((path for path in _places() if path.exists()), None)


def _places() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from (Path(folder) / wheel for wheel in _WHEELS)
    yield from map(Path, _TOOLKITS)


def kernel_environment(
    library: Path, rings: Path, kinds: KernelKinds = DEFAULT_KINDS, cupti: Path | None = None
) -> dict[str, str]:
    """What a server's environment must have so that every process of it that uses CUDA makes a ring in `rings`.

    `rings` is a folder of the user that runs the server, and must exist. Recording is off until a reader switches it.
    """
    found = {
        INJECTION_VARIABLE: str(library),
        KERNEL_FOLDER_VARIABLE: str(rings),
        "SQUALL_KERNEL_KINDS": ",".join(str(kind.name).lower() for kind in kinds),
    }
    return found | ({CUPTI_VARIABLE: str(cupti)} if cupti else {})


def find_rings(folder: Path, known: Collection[Path] = ()) -> list[Path]:
    """Files of rings in `folder` that are not `known`, by name. A process of an older library may not
    have made its own ready yet (RingError)."""
    return sorted(path for path in folder.glob("kernels-*.ring") if path not in known)
