"""Right answers from a function of the user's: found by its name, called for each payload, held to the model's spec."""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.models.entries import typed
from squall.models.payload import KIND, TAKEN_AS, read_tensor, write_tensor
from squall.models.reference import Answers, Kind, Outputs, Request, comparable
from squall.models.spec import ModelSpec
from squall.scenarios.errors import ScenarioError
from squall.scenarios.foreign_text import printable

Arrays = Mapping[str, NDArray[Any]]
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class AnswerFunction:
    """`call` gives outputs by name for inputs by name. `sha256`: of the file that holds it, in hex; None where none
    does."""

    name: str
    call: Callable[[dict[str, NDArray[Any]]], Arrays | Sequence[Arrays]]
    sha256: str | None


def load_function(name: str) -> AnswerFunction:
    """The function that `package.module:function` or `path/to/file.py:function` names; a file is read anew each time.

    What it prints goes to stderr. Raises ScenarioError of one line where the module cannot be imported or has none.
    """
    where, place, attribute = _parts(name)
    source = _source(Path(place), where) if place.endswith(".py") else None
    try:
        with redirect_stdout(sys.stderr):
            module = importlib.import_module(place) if source is None else _module_of(Path(place), source)
    except (Exception, SystemExit) as error:  # whatever the user's code does as it is imported
        raise ScenarioError(f"{where}: cannot be imported: {_said(error)}") from error
    call = getattr(module, attribute, None)
    if not callable(call):
        what = "has no function" if call is None else "has something else, no function, of the name"
        raise ScenarioError(f"{where}: {place} {what} {attribute}")
    file = getattr(module, "__file__", None)
    sha256 = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else None
    return AnswerFunction(name, call, sha256)


def refuse_no_function(name: str) -> None:
    """Raises ScenarioError where `load_function` would find no file, or none that gives something this name. No code
    of it is run; what a compiled module has is not known."""
    where, place, attribute = _parts(name)
    path = Path(place) if place.endswith(".py") else _module_file(place, where)
    if path is None:
        return
    source = _source(path, where)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deep
        raise ScenarioError(f"{where}: cannot be imported: {_said(error)}") from error
    if not any(_names(node, attribute) for node in ast.walk(tree)):
        raise ScenarioError(f"{where}: {place} has no function {attribute}")


def _parts(name: str) -> tuple[str, str, str]:
    """What an error begins with, the file or module, the function."""
    place, _, attribute = name.rpartition(":")
    return f"clients.check.function: {name}", place, attribute


def _source(path: Path, where: str) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise ScenarioError(f"{where}: cannot be read: it is no file")
        return path.read_bytes()
    except OSError as error:
        raise ScenarioError(f"{where}: cannot be read: {error.strerror or error}") from error


def _module_file(module: str, where: str) -> Path | None:
    """The file of a module, which is looked for as Python does, but that no package above it is imported; None of one
    that has no source."""
    path: list[str] | None = None
    origin: str | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        try:
            spec = next((one for one in specs if one is not None), None)
        except KeyError:  # a folder without __init__.py in one of its kind: Python asks the imported one
            return None
        if spec is None:
            raise ScenarioError(f"{where}: cannot be imported: no module named {name}")
        path, origin = list(spec.submodule_search_locations or ()), spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _names(node: ast.AST, name: str) -> bool:
    """Whether it may bind `name`: as a definition, an import, or what is assigned to."""
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Store)
    if isinstance(node, ast.alias):
        return (node.asname or node.name) in (name, "*")
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name


def function_answers(
    function: AnswerFunction, spec: ModelSpec, requests: Iterable[Request], is_streamed: bool = False
) -> Answers:
    """Outputs by name for each (rows, variant or entry), as the function gives them to the inputs of these requests.

    `is_streamed`: requests are answered response by response: the function gives a list of the outputs of each, of any
    number of rows, or those of the one response. BF16 goes in and comes out as FP32, BYTES as an array of bytes
    objects; integers become those of the output's datatype. Outputs that it leaves out are not compared. Raises
    ScenarioError of one line where it raises, and for an output that the model has not, or not in this shape or kind.
    """
    answers: dict[Kind, Outputs | Sequence[Outputs]] = {}
    for rows, variant, arrays in requests:
        inputs = dict(arrays)
        for tensor in spec.carried(inputs):
            if tensor.datatype == "BF16":
                array = inputs[tensor.name]
                inputs[tensor.name] = read_tensor("BF16", array.shape, write_tensor(array))
        of = f"clients.check.function: {function.name}: for {rows} rows of payload {variant} it"
        try:
            with redirect_stdout(sys.stderr):
                given = function.call(inputs)
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise ScenarioError(f"{of} raised {_said(error)}") from error
        if is_streamed:
            answers[rows, variant] = tuple(
                _fitting_outputs(one, spec, -1, f"{of}, as response {number},")
                for number, one in enumerate(given if isinstance(given, list | tuple) else [given], 1)
            )
        else:
            answers[rows, variant] = _fitting_outputs(given, spec, rows, of)
    return answers


def _fitting_outputs(outputs: Any, spec: ModelSpec, rows: int, of: str) -> dict[str, NDArray[Any]]:
    if not isinstance(outputs, Mapping) or not outputs:
        what = "no output" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
        raise ScenarioError(f"{of} gave {what}, it must give arrays by name of the output")
    return {str(name): _fitting(name, array, spec, rows, of) for name, array in outputs.items()}


def _module_of(path: Path, source: bytes) -> ModuleType:
    """Raises what its code raises."""
    name = f"squall_answers_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    code = compile(source, str(path), "exec", dont_inherit=True)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    exec(code, module.__dict__)
    return module


def _fitting(name: object, array: Any, spec: ModelSpec, rows: int, of: str) -> NDArray[Any]:
    """The array as it is compared. Raises ScenarioError where the model has no such output."""
    tensor = next((one for one in spec.outputs if one.name == name), None)
    if tensor is None:
        names = ", ".join(one.name for one in spec.outputs)
        raise ScenarioError(f"{of} gave output {name}, model {spec.name} has {names}")
    if not isinstance(array, np.ndarray | np.generic):
        raise ScenarioError(f"{of} gave a {type(array).__name__} as output {name}, it must be a numpy array")
    found = np.asarray(array)
    asked = replace(tensor, dims=spec.shape(rows, tensor.dims))
    if not asked.takes(found.shape):
        raise ScenarioError(
            f"{of} gave output {name} shape {list(found.shape)}, the model's is {tensor.datatype} {list(asked.dims)}"
        )
    if KIND[tensor.datatype] == "f" and found.dtype.kind in TAKEN_AS["f"]:
        return comparable(found, tensor)
    try:
        if tensor.datatype == "BYTES" and not all(isinstance(one, bytes) for one in found.ravel().tolist()):
            raise ValueError("is BYTES, and has what is no bytes object")
        return typed(found, tensor.datatype)
    except ValueError as error:
        raise ScenarioError(f"{of} gave output {name}: it {error}") from error


def _said(error: BaseException) -> str:
    """In one line: its kind, its text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    try:
        text = printable(str(error))[:_MOST_CHARACTERS]
    except Exception:  # of an exception of the user's own
        text = ""
    return f"{type(error).__name__}: {text}{at}" if text else f"{type(error).__name__}{at}"
