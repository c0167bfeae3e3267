"""The Triton servers of a scenario: where each comes from, TLS to them, and that several of them go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, model_validator

from squall.scenarios.fields import Count, Port, PositiveDuration, PositiveNumber, Section, Text, Whole
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

    @model_validator(mode="after")
    def _own_name(self) -> LoadSettings:
        if "name" in self.config:
            raise ValueError("config.name: a model has its name from the repository, leave it out")
        if self.instances is not None and "instance_group" in self.config:
            raise ValueError("instances and config.instance_group exclude each other")
        return self

    @property
    def has_changes(self) -> bool:
        """Whether the model is loaded otherwise than its repository has it."""
        return self.instances is not None or bool(self.config)


def _by_name(value: object) -> object:
    """A list of names stands for models as their repository has them."""
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        twice = [name for index, name in enumerate(value) if name in value[:index]]
        if twice:
            raise ValueError(f"{twice[0]!r} is named twice")
        return dict.fromkeys(value, LoadSettings())
    return value


class ControlConfig(Section):
    """Models loaded and unloaded before the load, of a server in explicit mode; the ones under load are loaded too.

    `after`: what becomes of that when the run is over; of a server that squall starts nothing is left.
    """

    load: Annotated[dict[Text, LoadSettings], BeforeValidator(_by_name)] = Field(default_factory=dict)
    unload: tuple[Text, ...] = ()
    after: Literal["restore", "keep"] = "restore"

    @model_validator(mode="after")
    def _one_way(self) -> ControlConfig:
        both = [name for name in self.unload if name in self.load]
        if both:
            raise ValueError(f"unload: {both[0]!r} is in load too")
        return self


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
    start_timeout_ns: PositiveDuration = Field(default=60 * NS_PER_S, alias="start_timeout")
    stop_timeout_ns: PositiveDuration = Field(default=10 * NS_PER_S, alias="stop_timeout")
    control: ControlConfig | None = None  # none: the models of a running server are left as they are

    @model_validator(mode="after")
    def _one_origin(self) -> ServerConfig:
        if self.url is not None and self.image is not None:
            raise ValueError("url (a server that runs) and image (one to start) exclude each other")
        if self.runtime is not None and self.image is None:
            raise ValueError("runtime needs image")
        if self.url is not None and self.http_port is not None:
            raise ValueError("http_port: beside url it says nothing, the port is in the url")
        if self.url is not None and self.listen != "loopback":
            raise ValueError("listen: is for a server that squall starts, the one at url listens already")
        if (
            self.url is None
            and self.control is not None
            and (self.control.unload or self.control.after == "keep")
        ):
            key = "unload" if self.control.unload else "after"
            raise ValueError(
                f"control.{key}: is for a server at url; one that squall starts has what load says, and ends"
            )
        port = (self.url or "").rstrip("/").rpartition(":")[2]
        if port.isdecimal() and int(port) > LARGEST_PORT:
            raise ValueError(f"url: port {port} is above {LARGEST_PORT}")
        return self


_SHARED_KEYS = {field.alias or name for name, field in ServerConfig.model_fields.items()} - set(OWN_KEYS)


class ServerEntry(ServerConfig):
    """One of several servers; what it leaves out is as in `server`, but for `OWN_KEYS`."""

    weight: PositiveNumber = 1.0  # its share of the load to those of the others, where the routing goes by it
    gpus: tuple[Whole, ...] | None = None  # indices on its node that it may see; none: all

    @model_validator(mode="after")
    def _own_gpus(self) -> ServerEntry:
        if self.gpus is not None and self.url is not None:
            raise ValueError("gpus: is for a server that squall starts, the one at url has its GPUs already")
        if self.gpus is not None and len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"gpus: {list(self.gpus)} names one twice")
        return self


class ServersCount(Section):
    """So many servers as in `server`, or one for each GPU or each server node."""

    count: Annotated[int, Field(strict=True, ge=2, le=LARGEST_SERVER_COUNT)] | None = None
    per: Literal["gpu", "node"] | None = None

    @model_validator(mode="after")
    def _one_number(self) -> ServersCount:
        if (self.count is None) == (self.per is None):
            raise ValueError("needs exactly one of count and per, or is a list of servers")
        return self


class TlsConfig(Section):
    """TLS between clients and server; paths are on the client nodes. Without `ca`, the system's authorities."""

    ca: Text | None = None
    certificate: Text | None = None  # the client's own, for mutual TLS
    key: Text | None = None
    server_name: Text | None = None  # the name that the server's certificate must have, else the host
    verify: bool = True

    @model_validator(mode="after")
    def _whole_identity(self) -> TlsConfig:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key, the client's own, go together")
        return self


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


def with_shared_keys(servers: object, server: object) -> object:
    """`servers` as in a file, each entry of a list with the keys of `server` that it does not set itself.

    What is no list of mappings is left as it is, for validation.
    """
    if not (isinstance(servers, list | tuple) and isinstance(server, Mapping)):
        return servers
    shared = {key: value for key, value in server.items() if key in _SHARED_KEYS}
    return [{**shared, **entry} if isinstance(entry, Mapping) else entry for entry in servers]


def without_shared_keys(
    servers: Sequence[Mapping[str, Any]], server: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Entries as `with_shared_keys` takes them: without what stands in `server` already."""
    shared = {key: value for key, value in server.items() if key in _SHARED_KEYS}
    return [
        {key: value for key, value in entry.items() if key not in shared or shared[key] != value}
        for entry in servers
    ]


def alike(server: ServerConfig, count: int) -> tuple[ServerEntry, ...]:
    """So many entries with the settings of `server`."""
    settings: dict[str, Any] = server.model_dump(mode="json", by_alias=True, exclude_none=True)
    return (ServerEntry.model_validate(settings),) * count


def refuse_bad_servers(server: ServerConfig, servers: tuple[ServerEntry, ...] | ServersCount) -> None:
    """Raises ValueError where several servers do not go together, or `server` says what only one of them can have."""
    own = [key for key in OWN_KEYS if getattr(server, key) is not None]
    if own:
        mend = "write servers as a list and put" if isinstance(servers, ServersCount) else "put"
        raise ValueError(f"server.{own[0]}: is of one server, {mend} it into the entries of servers")
    if not isinstance(servers, ServersCount):
        _refuse_bad_urls(servers)


def refuse_unloaded(models: Sequence[str], where: str, server: ServerConfig) -> None:
    """A model under load is not to be unloaded. Raises ValueError. `where`: the key path of `server`."""
    for name in server.control.unload if server.control is not None else ():
        if name in models:
            raise ValueError(f"{where}.control.unload: {name!r} is the model under load")


def refuse_tls_without_its_server(
    tls: TlsConfig | None, protocol: str, where: str, server: ServerConfig
) -> None:
    """A server that squall starts speaks no TLS; and over HTTP the port that is loaded is that of the URL.

    `where`: the key path of `server`. Raises ValueError.
    """
    if tls is None:
        return
    if server.url is None:
        raise ValueError(f"clients.tls: needs {where}.url, a server that squall starts speaks no TLS")
    if protocol == "http" and not server.url.startswith("https:"):
        raise ValueError(
            f"clients.tls: over protocol http it needs an https:// {where}.url, not {server.url!r}"
        )


def _refuse_bad_urls(entries: Sequence[ServerEntry]) -> None:
    """Either all servers run already or squall starts all, and no two of them are one."""
    started = [index for index, entry in enumerate(entries) if entry.url is None]
    attached = [index for index, entry in enumerate(entries) if entry.url is not None]
    if started and attached:
        raise ValueError(
            f"servers: [{attached[0]}] has a url and [{started[0]}] has none: give one to all or to none"
        )
    places = [_place(entry.url) for entry in entries if entry.url is not None]
    for index, place in enumerate(places):
        if place in places[:index]:
            raise ValueError(
                f"servers[{index}].url: {entries[index].url!r} is that of servers[{places.index(place)}] too"
            )


def _place(url: str) -> str:
    """The same for two spellings of one URL."""
    place = url.rstrip("/").lower()
    return place if place.rpartition(":")[2].isdecimal() else f"{place}:443"
