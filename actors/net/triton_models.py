"""What a server says of its models: where it answers about one, which are ready, what is an answer."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from squall.actors.net.triton_control import Control, ControlError

STATISTICS = "/v2/models/stats"


def path_of(model: str) -> str:
    """Where a server answers about the model of that name."""
    return f"/v2/models/{urllib.parse.quote(model)}"


def ready_models(control: Control) -> set[str]:
    """Models that the server says are ready; none where it does not list them."""
    try:
        index = control.ask_json("/v2/repository/index", "POST")
        return {str(one["name"]) for one in index if one.get("state") == "READY"}
    except (ControlError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def object_of(control: Control, path: str) -> dict[str, Any]:
    """The JSON object that the server has at `path`. Raises ControlError, and ValueError for any other JSON."""
    content = control.ask_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} gave {type(content).__name__}, not an object")
    return content


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
    versions = tuple(str(one) for one in metadata.get("versions") or (of_model,))
    try:
        config = object_of(control, f"{named}/versions/{of_model}/config")
    except ControlError as error:
        if not error.is_refused:
            raise
        if not metadata:
            raise _refusal(f"configuration and metadata of model {name}: {error}", error) from error
        refused["configuration"] = str(error)
        config = _as_config(metadata, most_rows)
    return Described(of_model, versions, config, refused)


def _refusal(text: str, error: ControlError) -> ControlError:
    """What follows from `error`, which is a refusal too."""
    found = ControlError(text)
    found.status = error.status
    return found


def _version_elsewhere(control: Control, name: str, denied: ControlError) -> str:
    """The highest version that the repository or the statistics name, where the metadata are refused.

    Raises ControlError, a refusal, where none does.
    """
    found: list[str] = []
    with suppress(ControlError, ValueError, KeyError, TypeError, AttributeError):
        index = control.ask_json("/v2/repository/index", "POST")
        found += [str(one["version"]) for one in index if one["name"] == name and one.get("state") == "READY"]
    with suppress(ControlError, ValueError, KeyError, TypeError):
        found += [str(one["version"]) for one in control.ask_json(f"{path_of(name)}/stats")["model_stats"]]
    if not any(map(str.isdecimal, found)):
        raise _refusal(f"metadata of model {name}, which say its version: {denied}", denied)
    return max(filter(str.isdecimal, found), key=int)


def _as_config(metadata: Mapping[str, Any], most_rows: int) -> dict[str, Any]:
    """What the metadata say, as a configuration says it. Triton writes -1 for the rows before the dimensions of every
    tensor of a model with batches; one without, all of whose tensors begin with an open dimension, looks the same."""
    tensors = {key: metadata.get(f"{key}s") or () for key in ("input", "output")}
    shapes = [[int(dim) for dim in one["shape"]] for ones in tensors.values() for one in ones]
    is_batched = bool(shapes) and all(shape[:1] == [-1] for shape in shapes)
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
    versions = [str(one) for one in metadata.get("versions") or () if str(one).isdecimal()]
    if not versions:
        raise ValueError(f"model {metadata.get('name')} names no version of itself")
    return max(versions, key=int)
