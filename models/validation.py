"""Right values that stand beside the data: `validation_data` of perf_analyzer's JSON."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from squall.models.entries import Fitting
from squall.models.payload import Tensor
from squall.models.reference import Kind, comparable
from squall.models.spec import ModelSpec
from squall.scenarios.data.opening import open_validation
from squall.scenarios.errors import ScenarioError, placed
from squall.scenarios.plan.plan import kind_code

SUFFIX = ".json"
"""Of such a file."""


def read_validation(
    path: Path, spec: ModelSpec, kinds: Collection[Kind]
) -> tuple[dict[Kind, dict[str, Tensor]], str]:
    """Outputs by name for each (rows, entry), and the file's sha256 in hex; a request of several rows has those of the
    entries that it carries.

    Outputs that the file does not name are not compared. Raises ScenarioError for a file that cannot be read, lacks an
    entry, or names what is no output of the model.
    """
    tensors = {tensor.name: tensor for tensor in spec.outputs}
    codes = np.unique([kind_code(*kind) for kind in kinds])
    with placed("clients.check.reference", ScenarioError, ScenarioError):
        data = open_validation(path)
        strange = [name for name in data.names if name not in tensors]
        if strange or not data.names:
            named = repr(strange[0]) if strange else "no output"
            raise ScenarioError(
                f"{path}: validation_data has {named}, the model's outputs are {sorted(tensors)}"
            )
        as_inputs = replace(spec, inputs=tuple(tensors[name] for name in data.names), outputs=())
        answers = {
            (rows, entry): {name: comparable(array, tensors[name]) for name, array in outputs.items()}
            for rows, entry, outputs in Fitting(as_inputs, data, {}).requests(codes)
        }
    return answers, data.sha256()
