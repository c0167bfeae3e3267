"""The module of a model as it is exported: inputs and output as in its spec, and requests to try it with."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from importlib import resources
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.models.heads import make_weights
from squall.models.spec import ModelSpec
from squall.scenarios.errors import ScenarioError, TargetError

Weights = Mapping[str, NDArray[Any]]
NETWORKS = "networks_torch.py"
"""The models as PyTorch modules, in the folder of what Triton runs: data, loaded by path."""
_MEND = {
    "torch": "pip install 'squall[export]'",
    "onnx": "pip install 'squall[export]'",
    "onnxruntime": "pip install 'squall[export]'",
    "onnxscript": "pip install 'squall[export]'",
    "tensorrt": "pip install 'squall[tensorrt]' on a host with an NVIDIA GPU, at the version of the server's TensorRT",
}


def needed(name: str) -> ModuleType:
    """The package of that name, imported. Raises TargetError with the mend where it is missing or cannot be loaded."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # a package without its libraries raises either
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
        what = "is not installed" if is_missing else f"cannot be loaded ({error})"
        raise TargetError(f"{name} {what}, which this export needs: {_MEND[name]}") from error


def networks() -> ModuleType:
    """The module that `NETWORKS` is. Raises TargetError without torch."""
    needed("torch")
    path = str(resources.files("squall.models.backend").joinpath(NETWORKS))
    spec = importlib.util.spec_from_file_location("squall_networks_torch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def zoo_module(name: str, sizes: dict[str, int], weights: Weights | None) -> Any:
    """The `torch.nn.Module` of a model of the zoo: float32, on the CPU, in eval mode.

    `weights` None: the seeded ones. Raises ScenarioError where given ones do not fit the sizes, TargetError without
    torch.
    """
    code = networks()
    if weights is None and "width" in sizes:  # a head: of encoders the module makes the seeded ones itself
        weights = make_weights(name, sizes)
    try:
        return code.build(name, sizes, weights)
    except ValueError as error:
        raise ScenarioError(f"weights of {name}: {error}") from error


def in_half(module: Any) -> Any:
    """That module in half precision, its own from here on: float inputs are rounded first, the output is float32."""
    import torch

    class InHalf(torch.nn.Module):  # type: ignore[misc]  # of a library that need not be there
        def __init__(self) -> None:
            super().__init__()
            self.inner = module.half()

        def forward(self, *inputs: Any) -> Any:
            rounded = [one.half() if one.is_floating_point() else one for one in inputs]
            return self.inner(*rounded).float()

    return InHalf().eval()


def try_inputs(spec: ModelSpec, sizes: Mapping[str, int], rows: int, seed: int = 0) -> list[NDArray[Any]]:
    """Inputs of a request of `rows`, in the order of the spec: floats from N(0, 1), token ids below
    `sizes["vocabulary"]`, and masks of 1 up to a length of at least 1 and 0 from there on."""
    rng = np.random.default_rng([seed, rows])
    found: list[NDArray[Any]] = []
    for one in spec.inputs:
        shape = (rows, *one.dims)
        if one.datatype == "FP32":
            found.append(rng.standard_normal(shape, dtype=np.float32))
        elif one.name == "attention_mask":
            lengths = rng.integers(1, one.dims[-1] + 1, size=(rows, 1))
            found.append((np.arange(one.dims[-1]) < lengths).astype(np.int64))
        else:
            found.append(rng.integers(0, sizes["vocabulary"], size=shape, dtype=np.int64))
    return found
