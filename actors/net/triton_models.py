"""What a server says of its models: where it answers about one, which are ready, what is an answer."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

from squall.actors.net.triton_control import Control, ControlError
from squall.scenarios.foreign_text import is_component

STATISTICS = "/v2/models/stats"
INSPECTION_S = 60.0
"""For all that a server is asked before a load, together."""
MOST_32, MOST_64 = 2**31 - 1, 2**63 - 1
MOST_STEPS = 1_000
_INDEX = "/v2/repository/index"
_MOST_VERSIONS = 1_000
_MOST_TENSORS = 4_096
_MOST_DIMS = 64
_MOST_ELEMENTS = 2**26
"""Of all inputs of a row: what squall makes of them is held in memory. One of BYTES counts as `_BYTES_WEIGHT`."""
_BYTES_WEIGHT = 64
_NAME_CHARACTERS = 1_024
_REASON_CHARACTERS = 200
_MOST_DIGITS = 20


def path_of(model: str) -> str:
    """Where a server answers about the model of that name."""
    return f"/v2/models/{urllib.parse.quote(model)}"


def whole_of(value: Any, most: int = MOST_32, least: int = 0) -> int:
    """The number that a server states. Raises ValueError and TypeError for what is none, or beyond the bounds."""
    if len(str(value)) > _MOST_DIGITS or not least <= int(value) <= most:
        raise ValueError(f"{str(value)[:_MOST_DIGITS]} is no number from {least} to {most}")
    return int(value)


def index_of(control: Control) -> list[dict[str, Any]]:
    """Each version of each model of its repository: `name`, and `version`, `state` and `reason` as text, empty where it
    states none. Raises ControlError, and ValueError for an answer that is none, or has a name that no folder has."""
    index = control.ask_json(_INDEX, "POST")
    if not isinstance(index, list) or not all(isinstance(one, dict) for one in index):
        raise ValueError(f"{_INDEX} is no list of models")
    for one in index:
        if not is_component(one.get("name")):
            raise ValueError(f"{_INDEX} has a model that has no name")
    return [
        {"name": one["name"]}
        | {key: str(one.get(key) or "")[:_REASON_CHARACTERS] for key in ("version", "state", "reason")}
        for one in index
    ]


def ready_models(control: Control) -> set[str]:
    """Models that the server says are ready; none where it does not list them."""
    with suppress(ControlError, ValueError):
        return {one["name"] for one in index_of(control) if one["state"] == "READY"}
    return set()


def object_of(control: Control, path: str) -> dict[str, Any]:
    """The JSON object that the server has at `path`. Raises ControlError, and ValueError for any other JSON."""
    content = control.ask_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} gave {type(content).__name__}, not an object")
    return content


def step_names(config: Mapping[str, Any]) -> list[str]:
    """The models that an ensemble's steps ask, in their order; none of another model. Raises ValueError for what is no
    list of them."""
    try:
        steps = (config.get("ensemble_scheduling") or {}).get("step") or ()
        names = [one["model_name"] for one in steps]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("the steps of an ensemble are no list of models") from error
    if len(names) > MOST_STEPS or not all(map(is_component, names)):
        raise ValueError(
            f"an ensemble has more than {MOST_STEPS:,} steps, or one of a model that has no name"
        )
    return names


@dataclass(frozen=True)
class Described:
    """What a server says of one model. `refused`: the calls that it refuses who asks, with why; where it refuses the
    configuration, `config` has the inputs and outputs of the metadata alone."""

    version: str
    versions: tuple[str, ...]
    config: Mapping[str, Any]
    refused: Mapping[str, str]


def describe_model(control: Control, name: str, version: str | None, most_rows: int) -> Described:
    """The model in `version`, None: the latest. `most_rows`: of a request, where the configuration is refused.

    Raises ControlError, ValueError and KeyError as `object_of`; and ControlError, a refusal, where it refuses so much
    that its inputs or its version are not known.
    """
    named, refused = path_of(name), dict[str, str]()
    metadata: Mapping[str, Any] = {}
    denied = ControlError()
    try:
        metadata = object_of(control, named)
    except ControlError as error:
        if not error.is_refused:
            raise
        refused["metadata"], denied = str(error), error
    of_model = version or (latest(metadata) if metadata else _version_elsewhere(control, name, denied))
    versions = tuple(_versions(metadata)) or (of_model,)
    try:
        config = object_of(control, f"{named}/versions/{of_model}/config")
    except ControlError as error:
        if not error.is_refused:
            raise
        if not metadata:
            raise _refusal(f"configuration and metadata of model {name}: {error}", error) from error
        refused["configuration"] = str(error)
        config = _as_config(metadata, most_rows)
    _refuse_odd(config, name)
    return Described(of_model, versions, config, refused)


def _refuse_odd(config: Mapping[str, Any], name: str) -> None:
    """Raises ValueError, TypeError or KeyError for a configuration that no Triton has of the model of that name."""
    if config["name"] != name:
        raise ValueError(f"it calls model {name} otherwise")
    whole_of(config.get("max_batch_size", 0))
    n_elements = 0
    for key in ("input", "output"):
        tensors = config.get(key) or ()
        if len(tensors) > _MOST_TENSORS:
            raise ValueError(f"model {name} has {len(tensors):,} tensors of {key}")
        for one in tensors:
            tensor, datatype, dims = one["name"], one["data_type"], one["dims"]
            texts = (tensor, datatype)
            if not all(isinstance(text, str) and 0 < len(text) <= _NAME_CHARACTERS for text in texts):
                raise ValueError(f"model {name} has a tensor of {key} without name or datatype")
            sizes = [whole_of(dim, least=-1) for dim in dims[:_MOST_DIMS]]
            if len(dims) > _MOST_DIMS or 0 in sizes:
                raise ValueError(f"{key} {tensor} of model {name} has {len(dims):,} dims, or one of 0")
            if key == "input":
                weight = _BYTES_WEIGHT if datatype.endswith(("STRING", "BYTES")) else 1
                n_elements += weight * prod(size for size in sizes if size != -1)
    if n_elements > _MOST_ELEMENTS:
        raise ValueError(f"the inputs of a row of model {name} have more than {_MOST_ELEMENTS:,} elements")


def _refusal(text: str, error: ControlError) -> ControlError:
    """What follows from `error`, which is a refusal too."""
    found = ControlError(text)
    found.status = error.status
    return found


def _version_elsewhere(control: Control, name: str, denied: ControlError) -> str:
    """The highest version that the repository or the statistics name, where the metadata are refused.

    Raises ControlError, a refusal, where none does.
    """
    found: list[Any] = []
    with suppress(ControlError, ValueError):
        found += [
            one["version"] for one in index_of(control) if one["name"] == name and one["state"] == "READY"
        ]
    with suppress(ControlError, KeyError, TypeError):
        found += [one["version"] for one in control.ask_json(f"{path_of(name)}/stats")["model_stats"]]
    if not any(map(_is_version, found)):
        raise _refusal(f"metadata of model {name}, which say its version: {denied}", denied)
    return max((str(one) for one in found if _is_version(one)), key=int)


def _is_version(one: Any) -> bool:
    """Whether it names a version's folder, as Triton does."""
    text = str(one)
    return text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS


def _versions(metadata: Mapping[str, Any]) -> list[str]:
    """Those that a model's metadata name. Raises ValueError for more than a model has, TypeError for no list."""
    versions = metadata.get("versions") or ()
    if len(versions) > _MOST_VERSIONS:
        raise ValueError(f"the model names {len(versions):,} versions of itself")
    return [str(one) for one in versions if _is_version(one)]


def _as_config(metadata: Mapping[str, Any], most_rows: int) -> dict[str, Any]:
    """What the metadata say, as a configuration says it. Triton writes -1 for the rows before the dimensions of every
    tensor of a model with batches; one without, all of whose tensors begin with an open dimension, looks the same."""
    tensors = {key: metadata.get(f"{key}s") or () for key in ("input", "output")}
    shapes = [one["shape"] for ones in tensors.values() for one in ones]
    is_batched = bool(shapes) and all([int(dim) for dim in shape[:1]] == [-1] for shape in shapes)
    described = {
        key: [
            {"name": one["name"], "data_type": one["datatype"], "dims": list(one["shape"])[int(is_batched) :]}
            for one in ones
        ]
        for key, ones in tensors.items()
    }
    return {"name": str(metadata["name"]), "max_batch_size": most_rows if is_batched else 0, **described}


def latest(metadata: Mapping[str, Any]) -> str:
    """The highest version that a model's metadata name. Raises ValueError where they name none."""
    versions = _versions(metadata)
    if not versions:
        raise ValueError("the model names no version of itself")
    return max(versions, key=int)
