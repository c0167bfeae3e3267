"""The Triton servers of a scenario: where each comes from, TLS to them, and that several of them go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from squall.scenarios.errors import Sentences, holding
from squall.scenarios.fields import (
    EACH_ONCE,
    Count,
    Keys,
    Port,
    PositiveDuration,
    PositiveNumber,
    Section,
    Text,
    Whole,
    each_once,
)
from squall.scenarios.sizes import LARGEST_SERVER_COUNT
from squall.scenarios.units import NS_PER_S

_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^/:\s\[\]]+)"
SERVER_URL = rf"^(http://{_HOST}:[1-9]\d{{0,4}}|https://{_HOST}(:[1-9]\d{{0,4}})?)/?$"
IMAGE = r"^[A-Za-z0-9]\S*$"
"""One word that no runtime takes for an option of its own."""
LARGEST_PORT = 65_535
OWN_KEYS = ("url", "image", "runtime", "http_port", "grpc_port", "metrics_port")
"""Of one server alone: entries of `servers` do not take them from `server`."""


class LoadSettings(Section):
    """How a model is loaded: as its repository has it, but for `instances` of each of its instance groups, and keys of
    its configuration (Triton's ModelConfig as JSON), each in place of its own."""

    instances: Count | None = None
    config: dict[Text, Any] = Field(default_factory=dict)

    def misfits(self) -> Sentences:
        yield from holding({
            "config.name: a model has its name from the repository, leave it out": "name" in self.config,
            "instances and config.instance_group exclude each other": (
                self.instances is not None and "instance_group" in self.config
            ),
        })  # fmt: skip

    @property
    def has_changes(self) -> bool:
        """Whether the model is loaded otherwise than its repository has it."""
        return self.instances is not None or bool(self.config)


def _by_name(value: object) -> object:
    """A list of names stands for models as their repository has them."""
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return dict.fromkeys(each_once(value), LoadSettings())
    return value


class ControlConfig(Section):
    """Models loaded and unloaded before the load, of a server in explicit mode; the ones under load are loaded too.

    `after`: what becomes of that when the run is over; of a server that squall starts nothing is left.
    """

    load: Annotated[dict[Text, LoadSettings], BeforeValidator(_by_name)] = Field(default_factory=dict)
    unload: tuple[Text, ...] = ()
    after: Literal["restore", "keep"] = "restore"

    def misfits(self) -> Sentences:
        return (f"unload: {name!r} is in load too" for name in self.unload if name in self.load)


class ServerConfig(Section):
    """The Triton server: started here by default, else one that runs, else a container image."""

    url: Annotated[Text, Field(pattern=SERVER_URL)] | None = None
    image: Annotated[Text, Field(pattern=IMAGE)] | None = None
    runtime: Literal["docker", "podman"] | None = None
    listen: Literal["loopback", "cluster"] = "loopback"  # whom a server that squall starts answers
    http_port: Port | None = None
    grpc_port: Port | None = None
    metrics_port: Port | None = None
    nice: Annotated[int, Field(ge=0, le=19)] = 0  # niceness of the server, whatever this process has
    start_timeout_ns: PositiveDuration = 60 * NS_PER_S
    stop_timeout_ns: PositiveDuration = 10 * NS_PER_S
    control: ControlConfig | None = None  # none: the models of a running server are left as they are

    def misfits(self) -> Sentences:
        control, url = self.control, self.url
        port = (url or "").rstrip("/").rpartition(":")[2]
        needs_url = "is for a server at url; one that squall starts has what load says, and ends"
        yield from holding({
            "url (a server that runs) and image (one to start) exclude each other": url and self.image,
            "runtime needs image": self.runtime and not self.image,
            "http_port: beside url it says nothing, the port is in the url": url and self.http_port,
            "listen: is for a server that squall starts, the one at url listens already": (
                url and self.listen != "loopback"
            ),
            f"control.unload: {needs_url}": not url and control is not None and control.unload,
            f"control.after: {needs_url}": not url and control is not None and control.after == "keep",
            f"url: port {port} is above {LARGEST_PORT}": port.isdecimal() and int(port) > LARGEST_PORT,
        })  # fmt: skip


_SHARED_KEYS = {*ServerConfig.file_keys().values()} - {*OWN_KEYS}


class ServerEntry(ServerConfig):
    """One of several servers; what it leaves out is as in `server`, but for `OWN_KEYS`."""

    weight: PositiveNumber = 1.0  # its share of the load to those of the others, where the routing goes by it
    gpus: Annotated[tuple[Whole, ...], EACH_ONCE] | None = (
        None  # indices on its node that it may see; none: all
    )

    def misfits(self) -> Sentences:
        yield from super().misfits()
        if self.gpus is not None and self.url:
            yield "gpus: is for a server that squall starts, the one at url has its GPUs already"


class ServersCount(Section):
    """So many servers as in `server`, or one for each GPU or each server node."""

    count: Annotated[int, Field(strict=True, ge=2, le=LARGEST_SERVER_COUNT)] | None = None
    per: Literal["gpu", "node"] | None = None

    def misfits(self) -> Sentences:
        if (self.count is None) == (self.per is None):
            yield "needs exactly one of count and per, or is a list of servers"


class TlsConfig(Section):
    """TLS between clients and server; paths are on the client nodes. Without `ca`, the system's authorities."""

    ca: Text | None = None
    certificate: Text | None = None  # the client's own, for mutual TLS
    key: Text | None = None
    server_name: Text | None = None  # the name that the server's certificate must have, else the host
    verify: bool = True

    def misfits(self) -> Sentences:
        if (self.certificate is None) != (self.key is None):
            yield "certificate and key, the client's own, go together"


_ENTRIES = TypeAdapter(
    Annotated[tuple[ServerEntry, ...], Field(min_length=1, max_length=LARGEST_SERVER_COUNT)]
)


def _list_or_count(value: object) -> object:
    """Each form by itself: of a union every member would report what it misses."""
    if isinstance(value, list | tuple):
        return _ENTRIES.validate_python(value)
    if isinstance(value, Mapping):
        return ServersCount.model_validate(value)
    if value is None or isinstance(value, ServersCount):
        return value
    raise ValueError(f"{value!r} is neither a list of servers nor a mapping with count or per")


ServersField = Annotated[tuple[ServerEntry, ...] | ServersCount | None, BeforeValidator(_list_or_count)]


def shared_of(server: Mapping[str, Any]) -> Keys:
    """What `server` of a file says of all entries of `servers` that do not say otherwise."""
    return {key: value for key, value in server.items() if key in _SHARED_KEYS}
