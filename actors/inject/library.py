"""The libraries that record a server's batches and kernels: where they were built, the environment that preloads that
of batches, and the names of the variables by which both are loaded and told where to record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

FOLDER_VARIABLE, KERNEL_FOLDER_VARIABLE = "SQUALL_BATCHES", "SQUALL_KERNELS"
"""In a server's environment: the folder for its rings of batches, and of kernels."""
PRELOAD_VARIABLE, INJECTION_VARIABLE = "LD_PRELOAD", "CUDA_INJECTION64_PATH"
"""By these the dynamic linker, and CUDA, load the libraries. nsys takes the latter out of what it launches, or names
its own."""
CUPTI_VARIABLE = "SQUALL_CUPTI"
"""The file of CUPTI for processes that have not loaded one themselves."""
_BUILT = Path(__file__).parents[1]
"""`setup.py` builds them as `squall.actors._batches` and `_kernels`, for want of another way to build; they are no
modules of Python."""


def built_library(of: Literal["batches", "kernels"]) -> Path | None:
    """The library that records these, absolute; None where squall was installed without a C compiler."""
    return next((path.absolute() for path in sorted(_BUILT.glob(f"_{of}*.so"))), None)


def batch_environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment `inherited` of a server, so that it records its batches into rings in `folder`.

    What is preloaded already stays, behind the library. `folder` must be there when the first batch ends, and is best
    in memory (tmpfs): on a disk the server may wait for it. Raises ValueError, in one line, where the library was not
    built, or stands where it cannot be preloaded.
    """
    library = built_library("batches")
    if library is None:
        raise ValueError("the batch library was not built: install squall where there is a C compiler")
    if any(mark in str(library) for mark in " \t:"):
        raise ValueError(f"LD_PRELOAD takes no path with a space or a colon: {library}")
    preloaded = [str(library), inherited.get(PRELOAD_VARIABLE, "")]
    return {PRELOAD_VARIABLE: ":".join(filter(None, preloaded)), FOLDER_VARIABLE: str(folder)}
