"""Keys of a scenario that cannot take effect: they configure a server, or a model there, that squall does not.

Where squall starts Triton with a model of the zoo it writes that model's configuration; a model of `repository` has its
own, and a server at `url` has its models already. What describes a model to the clients (`version`, `max_batch_size`,
`shapes`, `settings`) is used with every server.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from squall.scenarios.config.models.model import ModelConfig
from squall.scenarios.config.servers import ServerConfig

_BATCHER: Final = "config.dynamic_batching."
_OF_A_WRITTEN_MODEL: Final = {
    "instances": "instances",
    "preferred_batch_sizes": f"{_BATCHER}preferred_batch_size",
    "queue_delay": f"{_BATCHER}max_queue_delay_microseconds",
    "queue": f"{_BATCHER}default_queue_policy",
    "preserve_ordering": f"{_BATCHER}preserve_ordering",
    "framework": "config",
    "device": "config.instance_group",
    "precision": "config",
    "cuda_graphs": "config",
    "pinned": "config",
    "compile": "config",
}
"""Keys of a model whose configuration squall writes, and where `server.control.load.NAME` says it of another."""
_OF_A_START: Final = ("nice", "stop_timeout", "listen")
"""Keys of a server that squall starts."""


def model_keys_without_effect(model: ModelConfig, is_started: bool, has_zoo_check: bool) -> tuple[str, ...]:
    """Keys of `model`, stated or not, that change nothing. `is_started`: squall starts its servers; `has_zoo_check`:
    replies are held to the weights of a model of the zoo."""
    if is_started:
        return tuple(_OF_A_WRITTEN_MODEL) if model.repository is not None else ()
    return (*_OF_A_WRITTEN_MODEL, "repository", *(() if has_zoo_check else ("weights",)))


def server_keys_without_effect(server: ServerConfig) -> tuple[str, ...]:
    """Keys of `server`, stated or not, that change nothing."""
    if server.url is None:
        return ()
    return _OF_A_START if server.control is not None else (*_OF_A_START, "start_timeout")


def refuse_model_keys(where: str, model: ModelConfig, is_started: bool, has_zoo_check: bool) -> None:
    """Raises ValueError for a stated key of `model`, at the key path `where`, that changes nothing."""
    stated = stated_keys(model)
    idle = [key for key in model_keys_without_effect(model, is_started, has_zoo_check) if key in stated]
    if idle:
        also = f" (likewise {', '.join(idle[1:])})" if len(idle) > 1 else ""
        raise ValueError(f"{where}.{idle[0]}: {_why(idle[0], model.name, is_started)}{also}")


def refuse_server_keys(where: str, server: ServerConfig) -> None:
    """Raises ValueError for a stated key of `server`, at the key path `where`, that changes nothing."""
    stated = stated_keys(server) - {"listen"}  # which `ServerConfig` refuses
    for key in server_keys_without_effect(server):
        if key in stated:
            raise ValueError(
                f"{where}.{key}: is for a server that squall starts, the one at url runs already; leave it out"
            )


def stated_keys(section: ModelConfig | ServerConfig) -> set[str]:
    """Keys of the file that are given there."""
    fields = type(section).model_fields
    return {fields[name].alias or name for name in section.model_fields_set}


def without_keys(part: Mapping[str, Any], keys: Container[str]) -> dict[str, Any]:
    """`part` without these."""
    return {key: value for key, value in part.items() if key not in keys}


def has_its_own(is_started: bool) -> str:
    """Why squall does not configure the model, in words."""
    if is_started:
        return "the model of repository has a configuration of its own"
    return "a server at url has its models configured"


def _why(key: str, name: str, is_started: bool) -> str:
    if key == "weights":
        return "is for a model that squall serves or whose replies clients.check holds to them; leave it out"
    if key == "repository":
        return (
            "is for a server that squall starts, and the one at url has its models: leave one of both out;"
            " server.control says what it loads"
        )
    there = f"server.control.load.{name}.{_OF_A_WRITTEN_MODEL[key]}"
    return f"has no effect, {has_its_own(is_started)}: leave it out, or change it there with {there}"
