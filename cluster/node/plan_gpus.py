"""Which GPUs of this node a TensorRT plan is built for, and runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from squall.actors.sampling.gpu.source import gpu_capabilities, missing_reason
from squall.cluster.node.injected.process_gpus import Gpu, visible_gpus
from squall.models.plan_export import gpu_kind, misfit, records_of
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import TargetError


def building_gpu(environment: Mapping[str, str] | None = None) -> str:
    """The kind (`gpu_kind`) of the first CUDA device of a process with that environment (None: of this one), on which
    TensorRT builds.

    Raises TargetError where there is none, or where it cannot be told which one it is.
    """
    reason = missing_reason()
    if reason is not None:
        raise TargetError(
            f"a TensorRT plan is built on the GPU that it is for, and here is none ({reason}): run this on that host"
        )
    found = _seen(os.environ if environment is None else environment)
    if found is None:
        raise TargetError(
            "which GPU a TensorRT plan would be for cannot be told: set CUDA_DEVICE_ORDER=PCI_BUS_ID, and "
            "CUDA_VISIBLE_DEVICES to the UUID of that GPU (nvidia-smi -L)"
        )
    return found[0]


def refuse_other_gpus(models: Sequence[ModelConfig], environment: Mapping[str, str]) -> None:
    """Raises TargetError where a repository of these models has a plan of ours that no GPU of a server with that
    environment runs. Plans of others have no record, and are Triton's to judge."""
    plans = [
        (folder, record)
        for model in models
        if model.repository is not None
        for folder, record in records_of(Path(model.repository), model.name)
        if model.version is None or folder.name == model.version
    ]
    if not plans:
        return
    seen = _seen(environment)
    gpus = (
        seen
        if seen is not None
        else [gpu_kind(name, capability) for _, name, capability in gpu_capabilities()]
    )
    for folder, record in plans:
        why = misfit(folder, record, gpus)
        if why is not None:
            raise TargetError(f"model.repository: {why}")


def _seen(environment: Mapping[str, str]) -> list[str] | None:
    """Kinds of those that a process with that environment has, by CUDA's numbers; None where they cannot be told."""
    gpus = gpu_capabilities()
    kinds = {uuid: gpu_kind(name, capability) for uuid, name, capability in gpus}
    uuids = visible_gpus([Gpu(uuid, name) for uuid, name, _ in gpus], environment)
    return [kinds[uuid] for uuid in uuids] or None
