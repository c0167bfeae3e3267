"""Entries of a user's data as the inputs of a model: held to its datatypes and dims, and joined to requests.

Conversions lose nothing but digits that a float has not: whole numbers go into any type of integers that holds them and
into floats, numbers with a fraction into floats (rounded to nearest, and never to infinity), booleans into BOOL, text
and bytes into BYTES.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, cast

import numpy as np

from squall.models.made import Made, Shapes, dims_of, is_present, make_input, refuse_needed
from squall.models.payload import KIND, NUMPY, TAKEN_AS, Tensor, objects, read_tensor
from squall.models.pictures import decoded
from squall.models.spec import Dims, ModelSpec, TensorSpec
from squall.scenarios.arrays import Int64s
from squall.scenarios.data.folders import IMAGE_SUFFIXES
from squall.scenarios.data.opening import Data
from squall.scenarios.data.source import Cell, Entry, Picture, Raw
from squall.scenarios.errors import ScenarioError
from squall.scenarios.plan.plan import kinds_of

Inputs = dict[str, Tensor]
_NAMELESS = ("text", "npy", "images")
"""Formats of one column, which is that of the only input."""
_IN_WORDS = {"O": "text or bytes", "b": "booleans", "f": "numbers with a fraction"} | dict.fromkeys(
    "iu", "whole numbers"
)
"""Elements of each of numpy's kinds."""
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
        shapes: Shapes | None = None,
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

    def requests(self, codes: Int64s) -> Iterator[tuple[int, int, Inputs]]:
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
        entries = self._data.read(
            carried_entries(rows, firsts, n), tuple(dict.fromkeys(self._columns.values()))
        )
        wrapped = min(int(rows.max(initial=1)) - 1, n)
        held: dict[int, Inputs] = {}
        at = -1
        order = np.lexsort((rows, firsts))
        for count, first in zip(rows[order].tolist(), firsts[order].tolist(), strict=True):
            while at < min(first + count, n) - 1:  # those of the begin are held
                for old in [one for one in held if wrapped <= one < first]:
                    del held[old]
                at, entry = next(entries)
                held[at] = self._fitted(at, entry)
            parts = [held[(first + more) % n] for more in range(count)]
            yield count, first, self._request(count, first, parts)
        next(entries, None)  # which looks whether the data has changed

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
            shapes = [list(shape) for shape in dict.fromkeys(array.shape for array in arrays)]
            if len(shapes) > 1:
                raise self._data.fault(
                    number,
                    f"{name} is {shapes[0]}, and {shapes[1]} in another of the {rows} entries of one"
                    " request: its rows have one shape; use clients.rows of 1, or entries of one shape",
                )
            inputs[name] = np.stack(arrays) if self._spec.is_batched else arrays[0]
        if not inputs:
            raise self._data.fault(number, f"has no input of model {self._spec.name}")
        return inputs

    def _make(self, tensor: TensorSpec, rows: int, number: int, given: Inputs) -> Tensor:
        """Of the input that this one is like, if that is in the data, the sizes are those of its entry."""
        how = self._made[tensor.name]
        sizes: list[int] | None = None
        if how.like in given:
            whose = self._of_name[how.like]
            sizes = [size for size, dim in zip(given[how.like].shape, whose.dims, strict=True) if dim == -1]
        dims = dims_of(
            tensor, self._spec, number, self._seed, self._shapes, self._made, sizes, self._inputs_key
        )
        rng = np.random.default_rng([self._seed, rows, number])
        return make_input(tensor, self._spec.shape(rows, dims), rng, how)


def carried_entries(rows: Int64s, firsts: Int64s, n: int) -> Int64s:
    """The numbers, rising, of the entries that requests of so many rows, from these first entries on, carry of data
    that has `n`; after the last comes the first again."""
    ends = firsts + np.minimum(rows, n)
    n_open = np.bincount(firsts, minlength=2 * n) - np.bincount(ends, minlength=2 * n)
    is_open = np.cumsum(n_open).reshape(2, n) > 0
    return np.flatnonzero(is_open.any(axis=0))


def fit(tensor: TensorSpec, cell: Cell, shape: Dims | None = None) -> Tensor:
    """The cell as that input, without a batch dimension; `shape`: its dims where the data does not say them.

    Raises ValueError, in words that follow the name of the input, where it is of another type or shape.
    """
    if isinstance(cell, Raw):
        array = _from_raw(tensor.datatype, cell)
    elif isinstance(cell, Picture) and tensor.datatype != "BYTES":
        array = typed(decoded(cell.data, tensor.dims), tensor.datatype)
    else:
        array = typed(objects([cell.data]) if isinstance(cell, Picture) else cell, tensor.datatype)
    return array.reshape(_shape_as(tensor, array.shape, shape))


def _mend(data: Data, data_key: str) -> str:
    """What to do where an input has no column; `data_key`: where the data stands in the scenario."""
    if data.format == "folder" and any(name.lower().endswith(IMAGE_SUFFIXES) for name in data.names):
        return f"if its pictures are the entries, state {data_key}.format: images"
    return f"name it in {data_key}.columns"


def _named(name: str, column: str) -> str:
    return f"input {name}" if name == column else f"input {name} (column {column!r})"


def typed(array: Tensor, datatype: str) -> Tensor:
    """The array as the datatype holds it. Raises ValueError, in words that follow a name, where it does not."""
    kind, own = array.dtype.kind, KIND[datatype]
    if not array.size:
        return np.empty(array.shape, object if own == "O" else NUMPY.get(datatype, np.uint16))
    if kind not in TAKEN_AS[own]:
        raise ValueError(f"is {datatype}, and the data has {_IN_WORDS.get(kind, array.dtype)}")
    if own in "bO":
        return array
    dtype = np.dtype(NUMPY.get(datatype, np.float32))
    if datatype != "BF16" and np.can_cast(array.dtype, dtype):
        return array.astype(dtype, copy=False)
    if own == "f":
        return _as_float(array, datatype)
    limits, low, high = np.iinfo(cast(Any, dtype)), int(array.min()), int(array.max())
    if low < limits.min or high > limits.max:
        raise ValueError(f"is {datatype}, which does not hold {low if low < limits.min else high}")
    return array.astype(dtype)


def _as_float(array: Tensor, datatype: str) -> Tensor:
    """To nearest, ties to even (as IEEE 754 rounds); BF16 is the upper half of FP32."""
    with np.errstate(over="ignore"):
        rounded: Tensor = array.astype(NUMPY.get(datatype, np.float32))
    found = rounded
    if datatype == "BF16":
        bits = rounded.view(np.uint32)
        nearest = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
        found = np.where(np.isnan(rounded), quiet, nearest).astype(np.uint16)
        rounded = read_tensor("BF16", found.shape, found.tobytes())
    if not np.array_equal(np.isfinite(rounded), np.isfinite(array)):
        raise ValueError(f"is {datatype}, which does not hold {np.abs(array).max():g}")
    return found


def _shape_as(tensor: TensorSpec, shape: Dims, stated: Dims | None) -> Dims:
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


def _from_raw(datatype: str, cell: Raw) -> Tensor:
    """Bytes as they travel, but for a text file of a BYTES input, which has an element a line."""
    if datatype == "BYTES" and cell.is_lines:
        lines = cell.data.removesuffix(b"\n").split(b"\n")
        return objects([line.removesuffix(b"\r") for line in lines])
    if datatype == "BYTES":
        flat = read_tensor(datatype, (-1,), cell.data)
    else:
        flat = np.frombuffer(cell.data, NUMPY.get(datatype, np.uint16))  # BF16 is the upper half of FP32
    if cell.shape is None:
        return flat
    if prod(cell.shape) != flat.size:
        raise ValueError(f"has {flat.size} elements, and its shape {list(cell.shape)} {prod(cell.shape)}")
    return flat.reshape(cell.shape)
