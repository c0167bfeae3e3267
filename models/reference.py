"""The answers that a model must give to seeded payloads: one of the zoo by the weights that its repository serves,
another model by a file of the user's (by a function: `answer_function.py`).
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.models.encoders import MOST_CHECKED_WEIGHTS, encode, n_weights, weights_of
from squall.models.heads import Array, forward, make_weights
from squall.models.made import Made, Shapes, make_inputs
from squall.models.payload import KIND, Tensor
from squall.models.spec import DATATYPE_BYTES, ENCODERS, ModelSpec, Sizes, TensorSpec, head_of, head_spec
from squall.scenarios.errors import ScenarioError, TargetError

_CHUNK_ROWS = 256
_COMPARABLE_KINDS = "biuf"
_RESPONSE = re.compile("[^/]*/([0-9]+)/([0-9]+)/([0-9]+)")
Kind = tuple[int, int]
"""Rows and payload variant, or entry of the data: what tells one template from another."""
Outputs = Mapping[str, Tensor]
"""By name."""
Answers = Mapping[Kind, Outputs | Sequence[Outputs]]
"""Right outputs; where requests are answered response by response, of each."""
Request = tuple[int, int, Mapping[str, Tensor]]
"""These two, and inputs by name."""


def made_requests(
    spec: ModelSpec,
    kinds: Iterable[Kind],
    seed: int,
    shapes: Shapes | None = None,
    made: Made | None = None,
) -> Iterator[Request]:
    """Each (rows, variant) once, with the inputs that squall makes; see `make_inputs`, which raises."""
    return ((*kind, make_inputs(spec, *kind, seed, shapes, made)) for kind in sorted(set(kinds)))


def answers_to(
    spec: ModelSpec, settings: Sizes, requests: Iterable[Request], checkpoint: str | None = None
) -> dict[Kind, dict[str, Tensor]]:
    """Outputs by name for each of these requests to the zoo's `spec.name`, in float32 as the served model computes.

    `checkpoint`: what the scenario's `model.weights` names, which is read here. Raises ScenarioError for an unknown
    model or size, for such a file and for an encoder that is too large (`refuse_large`); TargetError where `spec`, that
    of the running model, is not that of the zoo.
    """
    sizes = head_of(spec.name).sizes(settings)
    promised = head_spec(spec.name, spec.version, sizes, spec.max_batch_size)
    if (spec.inputs, spec.outputs) != (promised.inputs, promised.outputs):
        raise TargetError(
            f"clients.check: the model {spec.name} that is served has other tensors than that of the zoo with "
            "the scenario's model.settings; give clients.check.function or reference, its right values"
        )
    compute = _network_of(spec, sizes, checkpoint)
    answers: dict[Kind, dict[str, Tensor]] = {}
    for chunk in _chunks(requests):
        outputs = compute(
            *(np.concatenate([arrays[one.name] for _, _, arrays in chunk]) for one in spec.inputs)
        )
        first = 0
        for rows, number, _ in chunk:
            answers[rows, number] = {"OUTPUT": outputs[first : first + rows].copy()}
            first += rows
    return answers


def refuse_large(name: str, sizes: Sizes, where: str = "clients") -> None:
    """Raises ScenarioError for an encoder whose answers would take too long here; `where`: key path of the check."""
    n = n_weights(name, sizes) if name in ENCODERS else 0
    if n > MOST_CHECKED_WEIGHTS:
        raise ScenarioError(
            f"{where}.check: {name} has {n / 1e6:.0f} million weights, too many to compute right answers with on one"
            " core here: give check.function or reference, or leave check out (every instance compares itself with the"
            " module in float32 before it is ready)"
        )


def _network_of(spec: ModelSpec, sizes: Sizes, checkpoint: str | None) -> Callable[..., Array]:
    """The forward pass of a model of the zoo, of its inputs in their order."""
    if spec.name in ENCODERS:
        refuse_large(spec.name, sizes)
        return partial(encode, spec.name, sizes, weights_of(spec.name, sizes, checkpoint))
    weights = make_weights(spec.name, sizes)
    if "position" in weights:  # no layer mixes positions, and only the first is read
        weights["position"] = weights["position"][:1]
    return partial(forward, weights)


def read_answers(
    path: Path, spec: ModelSpec, kinds: Iterable[Kind], is_streamed: bool = False
) -> tuple[Answers, str]:
    """The same from an .npz file with an array `OUTPUT/ROWS/VARIANT` each, and the file's sha256 in hex.

    `is_streamed`: requests are answered response by response, and an array `OUTPUT/ROWS/VARIANT/RESPONSE` is there for
    each, from 0 on; a request without any has no response. Outputs that the file does not name are not compared. Raises
    ScenarioError for a file that cannot be read, names an output that the model has not, or lacks an array.
    """
    where = f"clients.check.reference: {path}"
    try:
        content = path.read_bytes()
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = dict(file)
    except OSError as error:
        raise ScenarioError(f"{where}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ScenarioError(f"{where}: is no .npz file of plain arrays") from error
    names = sorted({name.partition("/")[0] for name in arrays})
    tensors = {tensor.name: tensor for tensor in spec.outputs if tensor.datatype in DATATYPE_BYTES}
    if not names or not set(names) <= set(tensors):
        raise ScenarioError(
            f"{where}: has {names}, the model's outputs that can be compared are {sorted(tensors)}"
        )

    def outputs(key: str) -> Outputs:
        found = {}
        for name in names:
            array = arrays.get(f"{name}/{key}")
            if array is None or array.dtype.kind not in _COMPARABLE_KINDS:
                raise ScenarioError(f"{where}: has no array of numbers {name}/{key}")
            found[name] = comparable(array, tensors[name])
        return found

    sha256 = hashlib.sha256(content).hexdigest()
    if not is_streamed:
        return {kind: outputs("{}/{}".format(*kind)) for kind in set(kinds)}, sha256
    n_responses: Counter[Kind] = Counter()
    for key in arrays:
        numbers = _RESPONSE.fullmatch(key)
        if numbers is None:
            raise ScenarioError(f"{where}: {key} is no OUTPUT/ROWS/VARIANT/RESPONSE")
        rows, variant, index = map(int, numbers.groups())
        n_responses[rows, variant] = max(n_responses[rows, variant], index + 1)
    return {
        kind: tuple(outputs("{}/{}/{}".format(*kind, index)) for index in range(n_responses[kind]))
        for kind in set(kinds)
    }, sha256


def comparable(array: NDArray[Any], tensor: TensorSpec) -> NDArray[Any]:
    """Right values of an output of floats as floats, so that they are compared within a tolerance."""
    is_float = KIND.get(tensor.datatype) == "f"
    return array.astype(np.float64) if is_float and array.dtype.kind != "f" else array


def of_asked(answers: Answers, asked: ModelSpec) -> Answers:
    """Right outputs, or those of each response, without outputs that requests do not ask for.

    Raises ScenarioError where none of an answer is left.
    """
    names = [tensor.name for tensor in asked.outputs]

    def left(outputs: Outputs) -> Outputs:
        found = {name: array for name, array in outputs.items() if name in names}
        if outputs and not found:
            raise ScenarioError(
                f"clients.check: has right values of {', '.join(outputs)}, and clients.request.outputs asks for"
                f" {', '.join(names)}"
            )
        return found

    return {
        kind: left(one) if isinstance(one, Mapping) else tuple(map(left, one))
        for kind, one in answers.items()
    }


def _chunks(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """Groups of few enough rows to compute at once."""
    chunk: list[Request] = []
    for one in requests:
        if chunk and sum(rows for rows, _, _ in chunk) + one[0] > _CHUNK_ROWS:
            yield chunk
            chunk = []
        chunk.append(one)
    if chunk:
        yield chunk
