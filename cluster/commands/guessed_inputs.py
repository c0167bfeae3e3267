"""How the inputs of a model may be made, guessed from their names, datatypes and dims: entries of `clients.inputs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from squall.cluster.commands.draft_lines import Line, scalar
from squall.models.spec import DATATYPE_BYTES, ModelSpec, TensorSpec

_LENGTHS = "{kind: lognormal, mean: 64, cv: 1, max: 512}"
_LONGEST = 512
_FEW = "{kind: uniform, low: 1, high: 8}"
_PICTURE = 224
_COLOURS = (1, 3, 4)
_LARGEST_BYTES = 4 * 2**20
"""Of an input whose size is drawn: larger ones are guessed to have a size of 1, such as a batch of pictures."""
_BYTES_OF_TEXT = 64  # about the mean of the law of its length
N_VARIANTS = 64
"""Payloads of a model whose sizes or lengths are drawn: so many draws of each law."""


def is_drawn(spec: ModelSpec) -> bool:
    """Whether sizes or lengths differ from payload to payload, so that a few of them say little."""
    return any(-1 in tensor.dims or tensor.datatype == "BYTES" for tensor in spec.inputs)


def input_lines(spec: ModelSpec) -> Iterator[Line]:
    """The entry of each input, two levels in."""
    is_needed = not all(tensor.is_optional for tensor in spec.inputs)
    for index, tensor in enumerate(spec.inputs):
        alike = [one.name for one in spec.inputs[:index] if -1 in one.dims and one.dims == tensor.dims]
        keys = [*_size_lines(tensor, alike), *_value_lines(tensor)]
        if tensor.is_optional:
            share = 0 if is_needed or index else 1
            keys.append(
                Line(
                    f"      present: {share}",
                    "share of the payloads that carry it: the model calls it optional",
                )
            )
        what = f"{tensor.datatype} {list(tensor.dims)}"
        if not keys:
            what += ", fair coins: there is nothing to state"
        yield Line(f"    {scalar(tensor.name)}:{'' if keys else ' {}'}", what)
        yield from keys


def _size_lines(tensor: TensorSpec, alike: Sequence[str]) -> Iterator[Line]:
    n_open = tensor.dims.count(-1)
    if not n_open:
        return
    if alike:
        yield Line(f"      like: {scalar(alike[0])}", "its open sizes are those of that input: a guess")
        return
    laws = _laws(tensor)
    text = laws[0] if n_open == 1 else f"[{', '.join(laws)}]"
    of_what = (
        "the size that the model leaves open" if n_open == 1 else "sizes that the model leaves open (-1)"
    )
    yield Line(f"      sizes: {text}", f"{of_what}: a guess, state yours")


def _laws(tensor: TensorSpec) -> list[str]:
    """One for each open dim: a picture's height and width, else lengths, of which the last varies most."""
    fixed, n_open = [dim for dim in tensor.dims if dim != -1], tensor.dims.count(-1)
    if n_open == 2 and len(fixed) == 1 and fixed[0] in _COLOURS:
        return [str(_PICTURE)] * 2
    n_bytes = prod(fixed) * _LONGEST * DATATYPE_BYTES.get(tensor.datatype, _BYTES_OF_TEXT) * 8 ** (n_open - 1)
    if n_bytes > _LARGEST_BYTES:
        return ["1"] * n_open
    return [_FEW] * (n_open - 1) + [_LENGTHS]


def _value_lines(tensor: TensorSpec) -> Iterator[Line]:
    datatype = tensor.datatype
    if datatype == "BOOL":
        return
    if datatype == "BYTES":
        yield Line(
            f"      length: {_LENGTHS}", "bytes of each element, letters and blanks: a guess, state yours"
        )
        return
    if datatype in ("FP16", "FP32", "FP64", "BF16"):
        yield Line("      low: 0", "numbers from this on; without low and high: standard normal")
        yield Line("      high: 1", "up to this: a guess, state yours")
        return
    if "mask" in tensor.name.lower():
        yield Line("      low: 1", "a mask by its name: nothing is masked")
        yield Line("      high: 1", "so every element is 1: a guess")
        return
    is_picture = datatype == "UINT8" and len(tensor.dims) > 2
    yield Line("      low: 0", "whole numbers from this on")
    yield Line(f"      high: {255 if is_picture else 99}", "up to this, included: a guess, state yours")
