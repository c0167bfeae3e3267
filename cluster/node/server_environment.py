"""What a server that squall starts inherits from this process: some of its environment, and where to import from."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from squall.cluster.node.triton_home import TritonHome
from squall.scenarios.errors import TargetError

_KEPT_ENVIRONMENT = (
    "PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "LC_ALL", "TZ", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_VISIBLE_DEVICES", "DOCKER_HOST", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""What the server inherits. nsys writes the environment of what it profiles into its report: no secrets.

Of CUDA: which GPUs, in which order, and where MPS listens. Not CUDA_HOME, which only compilers read, and nothing that
changes what a model computes or how fast (NVIDIA_TF32_OVERRIDE, PYTORCH_*): the scenario says that.
"""
_MODEL_PACKAGES = ("numpy", "nvidia", "torch", "triton")
"""What the models of the zoo import (triton: the language of torch.compile's kernels), each in the folder from which
this process would import it."""


def server_environment(
    folder: Path,
    home: TritonHome | None,
    injected: Mapping[str, str] | None = None,
    first: Sequence[Path] = (),
) -> dict[str, str]:
    """The whole environment of a server: temporary files go to `folder`.

    `home`: where the server lies, None in a container; `injected`: what libraries of ours in it need; `first`: folders
    from which its models import before any other.
    """
    env = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    env["TMPDIR"] = str(folder)
    env["PYTHONPATH"] = os.pathsep.join([*map(str, first), *model_folders()])
    libraries = [*map(str, home.library_dirs if home is not None else ()), env.get("LD_LIBRARY_PATH", "")]
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    if home is not None and home.programs is not None:
        env["PATH"] = os.pathsep.join([str(home.programs), env.get("PATH", os.defpath)])
    return env | dict(injected or {})


def visible_gpus(gpus: Sequence[int], allowed: str | None, uuids: Sequence[str]) -> list[str]:
    """The GPUs of those indices, among those that this process may use, as CUDA_VISIBLE_DEVICES takes them: UUIDs, or
    indices where NVML tells none.

    `allowed`: CUDA_VISIBLE_DEVICES of this process, None where it has none; `uuids`: in NVML's order. Raises
    TargetError for an index beyond them.
    """
    names = [one.strip() for one in allowed.split(",")] if allowed is not None else list(uuids)
    names = [uuids[int(one)] if one.isdecimal() and int(one) < len(uuids) else one for one in names if one]
    if not names and not uuids:
        return [str(index) for index in gpus]
    beyond = [index for index in gpus if index >= len(names)]
    if beyond:
        raise TargetError(
            f"servers: gpus names number {beyond[0]} from 0, and the node has {len(names)} GPUs"
        )
    return [names[index] for index in gpus]


def model_folders() -> list[str]:
    """Folders from which the models import, for PYTHONPATH: this environment's and those of their packages elsewhere.

    In the order in which this process looks through them. Nothing is imported to find them.
    """
    found = {sysconfig.get_path("purelib")}
    for package in _MODEL_PACKAGES:
        spec = importlib.util.find_spec(package)
        found.update(str(Path(place).parent) for place in (spec and spec.submodule_search_locations) or ())
    order = {folder: index for index, folder in reversed(list(enumerate(sys.path)))}
    return sorted(found, key=lambda folder: (order.get(folder, len(order)), folder))
