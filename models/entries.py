"""Entries of a user's data as the inputs of a model: held to its datatypes and dims, and joined to requests.

Conversions lose nothing but digits that a float has not: whole numbers go into any type of integers that holds them and
into floats, numbers with a fraction into floats (rounded to nearest, and never to infinity), booleans into BOOL, text
and bytes into BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from squall.models.made import Made, dims_of, is_present, make_input, refuse_needed
from squall.models.payload import NUMPY, objects, read_tensor
from squall.models.pictures import decoded
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.data.folders import IMAGE_SUFFIXES
from squall.scenarios.data.opening import Data
from squall.scenarios.data.source import Cell, Entry, Picture, Raw
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.plan import kinds_of

Array = NDArray[np.generic]
Inputs = dict[str, Array]
_NAMELESS = ("text", "npy", "images")
"""Formats of one column, which is that of the only input."""
_EXACT_KINDS = {"BOOL": "b", "BYTES": "O"}
_BF16_INFINITY = 0x7F80
_MOST_UNSEEN = 2**20
"""Elements of a cell that is read before its shape is looked at."""


class Fitting:
    """How entries become inputs of one model.

    `columns`: of inputs that are not called as their column is; `made`: how inputs are made that the data has not. One
    that the model calls optional, and neither has, is left out. `data_key` and `inputs_key`: where both stand in the
    scenario.
    """

    def __init__(
        self,
        spec: ModelSpec,
        data: Data,
        columns: Mapping[str, str],
        made: Made | None = None,
        seed: int = 0,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        data_key: str = "clients.data",
        inputs_key: str = "clients.inputs",
    ) -> None:
        """Raises ScenarioError where an input has no column and is not made."""
        self._spec, self._data, self._seed, self._inputs_key = spec, data, seed, inputs_key
        self._made, self._shapes = made or {}, shapes or {}
        spec.validate_input_names(f"{data_key}.columns", columns)
        spec.validate_input_names(inputs_key, self._made)
        for name in columns:
            if name in self._made:
                raise ScenarioError(
                    f"{inputs_key}.{name}: {data_key}.columns has it too; it is made or given"
                )
        refuse_needed(spec, self._made)
        given = [tensor for tensor in spec.inputs if tensor.name not in self._made]
        needed = [tensor for tensor in given if not tensor.is_optional] or given
        if len(needed) == 1 and data.format in _NAMELESS and not columns:
            columns = {needed[0].name: data.names[0]}
        found = {tensor: columns.get(tensor.name, tensor.name) for tensor in given}
        self._columns = {
            tensor.name: column
            for tensor, column in found.items()
            if column in data.names or tensor.name in columns or not tensor.is_optional
        }
        for name, column in self._columns.items():
            if column not in data.names:
                raise ScenarioError(
                    f"{data.path}: has no column {column!r} for input {name} of model {spec.name}, it has"
                    f" {', '.join(data.names) or 'none'}; {_mend(data, data_key)}"
                )
        self._of_name = {tensor.name: tensor for tensor in spec.inputs}

    @property
    def left_out(self) -> tuple[str, ...]:
        """Optional inputs that no request has: neither the data nor `made` knows them."""
        return tuple(name for name in self._of_name if name not in self._columns and name not in self._made)

    def requests(self, codes: NDArray[np.int64]) -> Iterator[tuple[int, int, Inputs]]:
        """(rows, entry, inputs) of each of the sorted kinds `codes` (`squall.scenarios.plan.plan.kind_code`), by
        entries.

        A request of several rows has the entries from its own on, and after the last the first again. Holds as many
        entries at a time as a request has rows, and those at the begin of the data that its last requests need. Raises
        ScenarioError, with file and row, for what the model does not take.
        """
        for name, column in self._columns.items():
            shape = self._data.shapes.get(column, ())
            if prod(shape) > _MOST_UNSEEN:  # before an entry is read
                try:
                    _shape_as(self._of_name[name], shape, self._shapes.get(name))
                except ValueError as error:
                    raise self._data.fault(0, f"{_named(name, column)} {error}") from error
        rows, firsts = kinds_of(codes)
        n = self._data.n_entries
        order = np.lexsort((rows, firsts))
        rows, firsts = rows[order], firsts[order]
        used = np.zeros(n, np.bool_)
        for count in np.unique(rows).tolist():
            of_count = firsts[rows == count]
            for more in range(min(count, n)):
                used[(of_count + more) % n] = True
        wrapped = min(int(rows.max(initial=1)) - 1, n)
        held: dict[int, Inputs] = {}
        at = 0

        def ready(last: int) -> Iterator[tuple[int, int, Inputs]]:
            """Those whose entries have been read up to `last`."""
            nonlocal at
            while at < firsts.size and (last == n - 1 or firsts[at] + rows[at] - 1 <= last):
                count, number = int(rows[at]), int(firsts[at])
                parts = [held[(number + more) % n] for more in range(count)]
                yield count, number, self._request(count, number, parts)
                at += 1

        numbers = np.flatnonzero(used)
        for number, entry in self._data.read(numbers, tuple(dict.fromkeys(self._columns.values()))):
            held[number] = self._fitted(number, entry)
            yield from ready(n - 1 if number == numbers[-1] else number)
            next_first = int(firsts[at]) if at < firsts.size else n
            for old in [one for one in held if wrapped <= one < next_first]:
                del held[old]

    def _fitted(self, number: int, entry: Entry) -> Inputs:
        """The inputs that the entry has, without a batch dimension. Raises ScenarioError with its row."""
        found = {}
        for name, column in self._columns.items():
            tensor = self._of_name[name]
            if column not in entry:
                if tensor.is_optional:
                    continue
                raise self._data.fault(number, f"has no {column!r}, or null")
            try:
                found[name] = fit(tensor, entry[column], self._shapes.get(name))
            except ValueError as error:
                raise self._data.fault(number, f"{_named(name, column)} {error}") from error
        return found

    def _request(self, rows: int, number: int, parts: list[Inputs]) -> Inputs:
        """Of `rows` rows, whose first is the entry `number`. Raises ScenarioError where shapes differ."""
        inputs = {}
        for tensor in self._spec.inputs:
            name = tensor.name
            if name in self._made:
                if is_present(self._made[name], name, number, self._seed):
                    inputs[name] = self._make(tensor, rows, number, parts[0])
                continue
            arrays = [part[name] for part in parts if name in part]
            if not arrays:
                continue
            if len(arrays) < len(parts):
                raise self._data.fault(
                    number,
                    f"{name} is in {len(arrays)} of the {rows} entries of one request, and not in the others: use"
                    " clients.rows of 1",
                )
            if len({array.shape for array in arrays}) > 1:
                odd = next(array.shape for array in arrays if array.shape != arrays[0].shape)
                raise self._data.fault(
                    number,
                    f"{name} is {list(arrays[0].shape)}, and {list(odd)} in another of the {rows} entries of one"
                    " request: its rows have one shape; use clients.rows of 1, or entries of one shape",
                )
            inputs[name] = np.stack(arrays) if self._spec.is_batched else arrays[0]
        if not inputs:
            raise self._data.fault(number, f"has no input of model {self._spec.name}")
        return inputs

    def _make(self, tensor: TensorSpec, rows: int, number: int, given: Inputs) -> Array:
        """Of the input that this one is like, if that is in the data, the sizes are those of its entry."""
        how = self._made[tensor.name]
        sizes: list[int] | None = None
        if how.like in given:
            whose = self._of_name[how.like]
            sizes = [size for size, dim in zip(given[how.like].shape, whose.dims, strict=True) if dim == -1]
        dims = dims_of(
            tensor, self._spec, number, self._seed, self._shapes, self._made, sizes, self._inputs_key
        )
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, rows, number]))
        fixed = replace(tensor, dims=dims)
        return make_input(fixed, rows if self._spec.is_batched else None, rng, how)


def fit(tensor: TensorSpec, cell: Cell, shape: tuple[int, ...] | None = None) -> Array:
    """The cell as that input, without a batch dimension; `shape`: its dims where the data does not say them.

    Raises ValueError, in words that follow the name of the input, where it is of another type or shape.
    """
    if isinstance(cell, Picture):
        array = objects([cell.data]) if tensor.datatype == "BYTES" else decoded(cell.data, tensor.dims)
    elif isinstance(cell, Raw):
        return _from_raw(tensor, cell, shape)
    else:
        array = cell
    return _shaped(_typed(array, tensor.datatype), tensor, shape)


def _mend(data: Data, data_key: str) -> str:
    """What to do where an input has no column; `data_key`: where the data stands in the scenario."""
    if data.format == "folder" and any(name.lower().endswith(IMAGE_SUFFIXES) for name in data.names):
        return f"if its pictures are the entries, state {data_key}.format: images"
    return f"name it in {data_key}.columns"


def _named(name: str, column: str) -> str:
    return f"input {name}" if name == column else f"input {name} (column {column!r})"


def _typed(array: NDArray[np.generic], datatype: str) -> Array:
    kind = array.dtype.kind
    wanted = _EXACT_KINDS.get(datatype)
    if not array.size:
        return np.empty(array.shape, object if wanted == "O" else NUMPY.get(datatype, np.uint16))
    fits = kind == wanted if wanted else kind in ("iu" if datatype[0] in "IU" else "iuf")
    if not fits:
        names = {"O": "text or bytes", "b": "booleans", "f": "numbers with a fraction"}
        raise ValueError(f"is {datatype}, and the data has {names.get(kind, 'whole numbers')}")
    if wanted:
        return array
    if datatype == "BF16":
        return _rounded_to_bf16(array)
    dtype = np.dtype(NUMPY[datatype])
    if np.can_cast(array.dtype, dtype):
        return array.astype(dtype, copy=False)
    if dtype.kind == "f":
        return _as_float(array, dtype)
    limits, low, high = np.iinfo(cast(Any, dtype)), int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        raise ValueError(f"is {datatype}, which does not hold {low if low < limits.min else high}")
    return array.astype(dtype)


def _as_float(array: NDArray[np.generic], dtype: np.dtype[np.generic]) -> Array:
    with np.errstate(over="ignore"):
        found = array.astype(dtype)
    if not np.array_equal(np.isfinite(found), np.isfinite(array)):
        raise ValueError(f"is {dtype.name}, which does not hold {np.abs(array).max():g}")
    return found


def _rounded_to_bf16(array: NDArray[np.generic]) -> Array:
    """The upper half of FP32, to nearest, ties to even (as IEEE 754 rounds)."""
    floats = _as_float(array, np.dtype(np.float32))
    bits = floats.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    is_nan = np.isnan(floats)
    is_lost = (rounded & np.uint32(0x7FFF) == _BF16_INFINITY) & np.isfinite(floats)
    if is_lost.any():
        raise ValueError(f"is BF16, which does not hold {np.abs(floats[is_lost]).max():g}")
    return np.where(is_nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def _shaped(array: Array, tensor: TensorSpec, stated: tuple[int, ...] | None) -> Array:
    """As it is where it has the dims; a flat one in row-major order."""
    return array.reshape(_shape_as(tensor, array.shape, stated))


def _shape_as(tensor: TensorSpec, shape: tuple[int, ...], stated: tuple[int, ...] | None) -> tuple[int, ...]:
    """That an array of `shape` has as this input. Raises ValueError where it has not the dims."""
    if tensor.takes(shape):
        return shape
    if len(shape) > 1:
        raise ValueError(f"has the shape {list(shape)}, and its dims are {list(tensor.dims)}")
    n_elements = prod(shape)  # which say the one dim that is open
    dims = stated if -1 in tensor.dims and stated is not None else tensor.dims
    n_open, fixed = dims.count(-1), prod(dim for dim in dims if dim != -1)
    if n_open > 1:
        raise ValueError(
            f"is a flat list, and of its dims {list(dims)} several are open: nest the lists, or state model.shapes"
        )
    if (n_open and fixed and n_elements % fixed) or (not n_open and n_elements != fixed):
        takes = f"a multiple of {fixed}" if n_open else str(fixed)
        raise ValueError(f"has {n_elements} elements, and its dims {list(dims)} take {takes}")
    return tuple(n_elements // max(fixed, 1) if dim == -1 else dim for dim in dims)


def _from_raw(tensor: TensorSpec, cell: Raw, stated: tuple[int, ...] | None) -> Array:
    """Bytes as they travel, but for a text file of a BYTES input, which has an element a line."""
    if tensor.datatype == "BYTES" and cell.is_lines:
        lines = cell.data.removesuffix(b"\n").split(b"\n")
        return _shaped(objects([line.removesuffix(b"\r") for line in lines]), tensor, stated)
    dtype = np.dtype(NUMPY.get(tensor.datatype, np.uint16))  # BF16 is the upper half of FP32
    if tensor.datatype == "BYTES":
        flat = read_tensor("BYTES", (-1,), cell.data)
    elif len(cell.data) % dtype.itemsize:
        raise ValueError(
            f"is {tensor.datatype}, and {len(cell.data)} bytes are no multiple of {dtype.itemsize}"
        )
    else:
        flat = np.frombuffer(cell.data, dtype)
    if cell.shape is None:
        return _shaped(flat, tensor, stated)
    if prod(cell.shape) != flat.size:
        raise ValueError(f"has {flat.size} elements, and its shape {list(cell.shape)} {prod(cell.shape)}")
    return _shaped(flat.reshape(cell.shape), tensor, stated)
