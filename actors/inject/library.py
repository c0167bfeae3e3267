"""The library that records a server's batches: where it was built, and the environment that preloads it; and the names
of the variables by which ours are loaded and told where to record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER_VARIABLE, KERNEL_FOLDER_VARIABLE = "SQUALL_BATCHES", "SQUALL_KERNELS"
"""In a server's environment: the folder for its rings of batches, and of kernels."""
PRELOAD_VARIABLE, INJECTION_VARIABLE = "LD_PRELOAD", "CUDA_INJECTION64_PATH"
"""By these the dynamic linker, and CUDA, load the libraries. nsys takes the latter out of what it launches, or names
its own."""
CUPTI_VARIABLE = "SQUALL_CUPTI"
"""The file of CUPTI for processes that have not loaded one themselves."""
_BUILT = Path(__file__).parents[1]
"""`setup.py` builds it as `squall.actors._batches`, for want of another way to build; it is no module of Python."""


def batch_library() -> Path | None:
    """The built library; None where no C compiler was at hand at the install."""
    return next(iter(sorted(_BUILT.glob("_batches*.so"))), None)


def batch_environment(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment `inherited` of a server, so that it records its batches into rings in `folder`.

    What is preloaded already stays, behind the library. `folder` must be there when the first batch ends, and is best
    in memory (tmpfs): on a disk the server may wait for it. Raises ValueError, in one line, where the library was not
    built, or stands where it cannot be preloaded.
    """
    library = batch_library()
    if library is None:
        raise ValueError("the batch library was not built: install squall where there is a C compiler")
    if any(mark in str(library) for mark in " \t:"):
        raise ValueError(f"LD_PRELOAD takes no path with a space or a colon: {library}")
    preloaded = [str(library), inherited.get(PRELOAD_VARIABLE, "")]
    return {PRELOAD_VARIABLE: ":".join(filter(None, preloaded)), FOLDER_VARIABLE: str(folder)}
