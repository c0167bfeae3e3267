"""Which GPUs of this node a TensorRT plan is built for, and runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from squall.actors.sampling.gpu.source import gpu_memories, missing_reason
from squall.cluster.node.injected.process_gpus import Gpu as NamedGpu
from squall.cluster.node.injected.process_gpus import visible_gpus
from squall.models.export.plan_record import PLAN_FILE, Gpu, misfit, records_of
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.errors import TargetError


def building_gpu(environment: Mapping[str, str] | None = None) -> Gpu:
    """The first CUDA device of a process with that environment (None: of this one), on which TensorRT builds.

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
    gpus = seen if seen is not None else [Gpu(*one[1:]) for one in gpu_memories()]
    for folder, record in plans:
        why = misfit(folder / PLAN_FILE, record, gpus)
        if why is not None:
            raise TargetError(f"model.repository: {why}")


def _seen(environment: Mapping[str, str]) -> list[Gpu] | None:
    """Those that a process with that environment has, by CUDA's numbers; None where they cannot be told."""
    facts = {one[0]: Gpu(*one[1:]) for one in gpu_memories()}
    uuids = visible_gpus([NamedGpu(uuid, gpu.name) for uuid, gpu in facts.items()], environment)
    return [facts[uuid] for uuid in uuids] or None
