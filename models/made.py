"""Inputs that squall makes: seeded numbers and text, of sizes, ranges and lengths that a scenario may state."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from squall.models.payload import KIND, NUMPY, Tensor, objects
from squall.models.spec import Dims, ModelSpec, TensorSpec
from squall.scenarios.errors import ScenarioError

if TYPE_CHECKING:  # of a file's sections: a worker whose inputs are made as they come starts without them
    from numpy.random import Generator

    from squall.scenarios.config.inputs import InputConfig
    from squall.scenarios.config.rows import Law

_INTEGER_LIMIT = 100
_LENGTH = 16
_LARGEST_DRAWN = 2**31 - 1  # of `draw_rows`
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", np.uint8)
Shapes = Mapping[str, Dims]
Made = Mapping[str, "InputConfig"]
"""How inputs are made, by name."""
_ELEMENTS = {
    "length": ("O", "length is of BYTES"),
    "words": ("O", "words are of BYTES"),
    "low": ("iuf", "low and high are of numbers"),
    "values": ("iu", "values are of integers"),
}
"""Which kinds of elements a key of an input says, and that in words."""


def make_input(tensor: TensorSpec, shape: Dims, rng: Generator, how: InputConfig | None = None) -> Tensor:
    """A random array of that shape for an input.

    Floats are standard normal, integers uniform in 0..99 or as the model's own configuration says (`TensorSpec.drawn`),
    booleans fair, where `how` does not say their range; bytes
    are letters and spaces, 16 where it does not say their length, or the words that it says. BF16 is the upper half of
    FP32. Raises ScenarioError where `how` does not suit the datatype.
    """
    datatype, kind, where = tensor.datatype, KIND[tensor.datatype], f"clients.inputs.{tensor.name}"
    for key, (kinds, what) in _ELEMENTS.items():
        if getattr(how, key, None) is not None and kind not in kinds:
            raise ScenarioError(f"{where}: {what}, and the input is {datatype}")
    low, high, values = (getattr(how, key, None) for key in ("low", "high", "values"))
    if kind == "O":
        return _made_text(shape, rng, how)
    if kind == "f":
        floats = (
            rng.standard_normal(shape, np.float32) if low is None else low + (high - low) * rng.random(shape)
        )
        if datatype != "BF16":
            return floats.astype(NUMPY[datatype])
        return (floats.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    dtype = np.dtype(NUMPY[datatype])
    if values is not None:
        _refuse_larger(f"{where}.values", values, np.iinfo(dtype.name).max, datatype)
        return np.array(_drawn(values, rng, prod(shape)), dtype).reshape(shape)
    if low is None and tensor.drawn is not None and kind != "b":
        low, high = tensor.drawn
    if low is None or high is None:
        return rng.integers(0, 2 if kind == "b" else _INTEGER_LIMIT, shape).astype(dtype)
    limits = np.iinfo(dtype.name)
    if low < limits.min or high > limits.max or low % 1 or high % 1:
        raise ScenarioError(f"{where}: {low:g} to {high:g} are no whole numbers that {datatype} holds")
    return rng.integers(int(low), int(high), shape, dtype, endpoint=True)


def _refuse_larger(where: str, law: Law, largest: int, datatype: str) -> None:
    """Raises ScenarioError where a number of that law may be more than its datatype, or a draw, holds."""
    from squall.scenarios.config.rows import max_rows

    most = max_rows(law)
    if most > min(largest, _LARGEST_DRAWN):
        holder = datatype if most > largest else "a draw"
        raise ScenarioError(f"{where}: up to {most} is more than {holder} holds")


def make_inputs(
    spec: ModelSpec,
    rows: int,
    variant: int,
    seed: int,
    shapes: Shapes | None = None,
    made: Made | None = None,
) -> dict[str, Tensor]:
    """The inputs of one payload variant, by tensor name; the same for the same arguments on any machine.

    `shapes` gives the dims of inputs that the model leaves open (-1), `made` the law of these, of values and lengths.
    The sizes of a variant, and which optional inputs it has, are the same for any number of rows. An optional input
    that `made` does not name is left out, unless the model has no other. Raises ScenarioError where a dim is not
    stated, where `rows` is more than the model takes, and where `made` does not suit the model.
    """
    spec.validate_rows(rows)
    shapes, made = shapes or {}, made or {}
    spec.validate_input_names("clients.inputs", made)
    spec.validate_input_names("model.shapes", shapes)
    refuse_needed(spec, made)
    rng = np.random.default_rng([seed, rows, variant])
    inputs = {}
    unasked = {tensor.name for tensor in spec.inputs if tensor.is_optional and tensor.name not in made}
    if len(unasked) == len(spec.inputs):
        unasked = set()  # a request carries one input at least
    for tensor in spec.inputs:
        how = made.get(tensor.name)
        if tensor.name in unasked or (how is not None and how.present == 0):
            continue  # whose sizes need not be stated
        dims = dims_of(tensor, spec, variant, seed, shapes, made)
        if is_present(how, tensor.name, variant, seed):
            inputs[tensor.name] = make_input(tensor, spec.shape(rows, dims), rng, how)
    return inputs


def is_present(how: InputConfig | None, name: str, variant: int, seed: int) -> bool:
    """Whether that variant, or entry, carries the input: drawn apart from its sizes."""
    if how is None or how.present is None:
        return True
    rng = np.random.default_rng([seed, variant, zlib.crc32(name.encode()), 1])
    return bool(rng.random() < how.present)


def refuse_needed(spec: ModelSpec, made: Made) -> None:
    """Raises ScenarioError where an input is to be left out that requests must carry, and where all may be."""
    left_out = {name for name, how in made.items() if how.present is not None and how.present < 1}
    for tensor in spec.inputs:
        if tensor.name in left_out and not tensor.is_optional:
            raise ScenarioError(
                f"clients.inputs.{tensor.name}.present: model {spec.name} needs the input in every request, its"
                " configuration does not call it optional"
            )
    if left_out and left_out == {tensor.name for tensor in spec.inputs}:
        raise ScenarioError(
            f"clients.inputs: every input of model {spec.name} is to be left out of some requests, and a request"
            " carries one at least; let one have present: 1"
        )


def dims_of(
    tensor: TensorSpec,
    spec: ModelSpec,
    variant: int,
    seed: int,
    shapes: Shapes,
    made: Made,
    sizes: Sequence[int] | None = None,
    inputs_key: str = "clients.inputs",
) -> Dims:
    """The dims of an input in that variant. `sizes`: those of the input that it is like, where they are known; None:
    drawn by their law. `inputs_key`: where `made` stands in the scenario. Raises ScenarioError where one is open and
    nothing says it, and where what is said is not the model's."""
    dims = tuple(shapes.get(tensor.name, tensor.dims))
    if not tensor.takes(dims):
        raise ScenarioError(
            f"model.shapes.{tensor.name}: {list(dims)}, but model {spec.name} takes {list(tensor.dims)}"
        )
    how, n_open, where = made.get(tensor.name), dims.count(-1), f"{inputs_key}.{tensor.name}"
    if how is None or (how.sizes is None and how.like is None):
        if n_open:
            raise ScenarioError(
                f"model.shapes.{tensor.name}: model {spec.name} leaves the size open ({list(tensor.dims)}), state it,"
                f" or the law of it in {where}.sizes"
            )
        return dims
    if sizes is None:
        whose = how.like or tensor.name
        laws = made[whose].sizes if whose in made else None
        if laws is None:
            raise ScenarioError(f"{where}.like: {whose!r} is no input with sizes in {inputs_key}")
        rng = np.random.default_rng([seed, variant, zlib.crc32(whose.encode())])
        sizes = [_drawn(law, rng, 1)[0] for law in laws]
    if len(sizes) != n_open:
        raise ScenarioError(f"{where}: {len(sizes)} sizes are stated, and {n_open} of {list(dims)} are open")
    left = iter(sizes)
    return tuple(next(left) if dim == -1 else dim for dim in dims)


def _drawn(law: Law, rng: Generator, count: int) -> list[int]:
    """`count` whole numbers from 1 on."""
    from squall.scenarios.plan.mix import draw_rows

    drawn: list[int] = draw_rows(law, rng, count).tolist()
    return drawn


def _made_text(shape: Dims, rng: Generator, how: InputConfig | None) -> NDArray[np.object_]:
    """Words drawn from those that are stated, else letters and spaces, of lengths that the law gives."""
    if how is not None and how.words is not None:
        words = objects([word.encode() for word in how.words])
        return words[rng.integers(0, words.size, shape)]
    n = prod(shape)
    lengths = [_LENGTH] * n if how is None or how.length is None else _drawn(how.length, rng, n)
    letters = _LETTERS[rng.integers(0, _LETTERS.size, sum(lengths))].tobytes()
    ends = [*accumulate(lengths, initial=0)]
    return objects([letters[at:end] for at, end in pairwise(ends)]).reshape(shape)
