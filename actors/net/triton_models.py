"""What a server says of its models: where it answers about one, which are ready, what is an answer."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

from squall.actors.net.triton_control import Control, ControlError


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


def latest(metadata: Mapping[str, Any]) -> str:
    """The highest version that a model's metadata name. Raises ValueError where they name none."""
    versions = [str(one) for one in metadata.get("versions") or () if str(one).isdecimal()]
    if not versions:
        raise ValueError(f"model {metadata.get('name')} names no version of itself")
    return max(versions, key=int)
