"""Several models under one load: which they are, the share of the requests of each, and the servers that serve it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field

from squall.scenarios.config.clients.check import ValueCheckConfig
from squall.scenarios.config.clients.client import ClientConfig
from squall.scenarios.config.clients.data import DataConfig, TraceOrder
from squall.scenarios.config.clients.inputs import InputConfig
from squall.scenarios.config.clients.request import RequestConfig
from squall.scenarios.config.clients.rows import RowsConfig, TraceRows
from squall.scenarios.config.models.model import ModelConfig
from squall.scenarios.fields import Count, Number, Text, Whole
from squall.scenarios.sizes import LARGEST_MODEL_COUNT, LARGEST_VARIANT_COUNT

Share = Annotated[Number, Field(ge=0)]
_OF_ONE_MODEL: Final = ("sequences",)
"""Keys of `clients` that requests to several models cannot have yet."""
_OWN_OF_CLIENTS: Final = ("rows", "inputs", "data", "request", "check", "payload_variants")
_BY_SERVER: Final = ("round-robin", "random", "weighted", "sticky")
"""Kinds of routing among those servers that serve the model of an arrival."""


class ModelEntry(ModelConfig):
    """One of several models: its share of the requests to those of the others, and what is other than in `clients`."""

    share: Share = 1.0
    servers: Annotated[tuple[Whole | Text, ...], Field(min_length=1)] | None = (
        None  # that serve it; none: all
    )
    rows: RowsConfig | None = None  # in every phase
    inputs: dict[str, InputConfig] | None = None
    data: DataConfig | None = None  # inputs of the user's in place of made ones
    request: RequestConfig | None = None
    check: ValueCheckConfig | None = None
    payload_variants: Annotated[Count, Field(le=LARGEST_VARIANT_COUNT)] | None = None

    def clients_of(self, clients: ClientConfig) -> ClientConfig:
        """Those of a scenario, with what this model has of its own."""
        own = {key: getattr(self, key) for key in _OWN_OF_CLIENTS if getattr(self, key) is not None}
        return clients.model_copy(update=own)


ModelsField = Annotated[tuple[ModelEntry, ...], Field(min_length=2, max_length=LARGEST_MODEL_COUNT)]


def served_at(models: Sequence[ModelEntry], n_servers: int) -> tuple[tuple[int, ...], ...]:
    """The servers of each model, by their numbers, sorted. Raises ValueError for one that there is not."""
    return tuple(
        _servers_of(entry, f"models[{index}].servers", n_servers) for index, entry in enumerate(models)
    )


def _servers_of(entry: ModelEntry, where: str, n_servers: int) -> tuple[int, ...]:
    if entry.servers is None:
        return tuple(range(n_servers))
    names = [f"server-{number}" for number in range(n_servers)]
    found = set()
    for server in entry.servers:
        number = names.index(server) if server in names else server
        if not isinstance(number, int) or number >= n_servers:
            raise ValueError(f"{where}: there is no server {server!r}, {_span(names)}")
        if number in found:
            raise ValueError(f"{where}: names {names[number]} twice")
        found.add(number)
    return tuple(sorted(found))


def refuse_bad_models(models: Sequence[ModelEntry], clients: ClientConfig, n_servers: int | None) -> None:
    """Raises ValueError for models, clients and servers that do not go together; `n_servers` None: the nodes say it."""
    names = [entry.name for entry in models]
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise ValueError(f"models: the name {twice[0]!r} is used twice")
    for key in _OF_ONE_MODEL:
        if getattr(clients, key) is not None:
            raise ValueError(f"clients.{key}: is for a scenario with one model, and models are several")
    _refuse_bad_data(models, clients)
    for where, rows in [
        ("clients.rows", clients.rows),
        *((f"models[{index}].rows", entry.rows) for index, entry in enumerate(models)),
    ]:
        refuse_trace_rows(where, rows)
    compressed = [_compression_of(entry.clients_of(clients).request) for entry in models]
    for index, entry in enumerate(models):
        request = entry.request
        if compressed[index] != compressed[0]:
            raise ValueError(
                f"models[{index}].request.compression: requests are compressed to all models or to none; say it in"
                " clients.request"
            )
        if clients.protocol == "grpc" and request is not None and not request.binary:
            raise ValueError(
                f"models[{index}].request.binary: false is for protocol http, gRPC carries tensors as bytes"
            )
    _refuse_bad_places(models, clients, n_servers)


def _refuse_bad_data(models: Sequence[ModelEntry], clients: ClientConfig) -> None:
    """Data that is of no model, that a trace would choose from, or that stands beside what it does not go with."""
    if clients.data is not None:
        raise ValueError(
            "clients.data: is for a scenario with one model, and models are several; give each its own in models[].data"
        )
    for index, entry in enumerate(models):
        if entry.data is None:
            continue
        if isinstance(entry.data.order, TraceOrder):
            raise ValueError(
                f"models[{index}].data.order: kind 'trace' is for a scenario with one model, for a trace does not say"
                " which model a request asks; use sequence, random or zipf"
            )
        if entry.payload_variants is not None:
            raise ValueError(
                f"models[{index}].data: each entry is a payload of its own; leave payload_variants out"
            )
        if clients.shared_memory is not None:
            raise ValueError(
                f"models[{index}].data: its entries travel in messages; leave clients.shared_memory out"
            )


def _compression_of(request: RequestConfig | None) -> str | None:
    return None if request is None else request.compression


def refuse_trace_rows(where: str, rows: RowsConfig | None) -> None:
    """Raises ValueError for sizes of a trace, which does not say whose they are."""
    if isinstance(rows, TraceRows):
        raise ValueError(
            f"{where}: kind 'trace' is for a scenario with one model, and models are several; use another kind, such"
            " as 'empirical' with the same file"
        )


def _refuse_bad_places(models: Sequence[ModelEntry], clients: ClientConfig, n_servers: int | None) -> None:
    """Servers that are not there, that serve nothing, or among which the routing cannot choose."""
    placed = [index for index, entry in enumerate(models) if entry.servers is not None]
    if not placed:
        return
    where = f"models[{placed[0]}].servers"
    if n_servers is None:
        raise ValueError(
            f"{where}: only the nodes say how many servers there are; write servers as a list, or its count"
        )
    of_model = served_at(models, n_servers)
    idle = set(range(n_servers)) - {server for servers in of_model for server in servers}
    if idle:
        raise ValueError(f"models: server-{min(idle)} serves none of them")
    if all(len(servers) == n_servers for servers in of_model):
        return
    kind = clients.routing.kind
    if kind not in _BY_SERVER:
        raise ValueError(
            f"{where}: clients.routing {kind!r} is for servers that all serve the same models; use"
            f" {', '.join(_BY_SERVER)}"
        )


def shares_of(models: Sequence[ModelEntry], own: Mapping[str, float] | None, where: str) -> tuple[float, ...]:
    """Of each model, in order, where a phase at `where` has shares of its `own` or none. Raises ValueError for a model
    that there is not, and where nothing is left."""
    names = [entry.name for entry in models]
    for name in own or ():
        if name not in names:
            raise ValueError(f"{where}.{name}: there is no such model, there are {', '.join(names)}")
    shares = tuple(entry.share if own is None else own.get(entry.name, 0.0) for entry in models)
    if not any(shares):
        raise ValueError(f"{'models' if own is None else where}: the shares are all 0, one must be above")
    return shares


def _span(names: Sequence[str]) -> str:
    return f"there are {names[0]} to {names[-1]}" if len(names) > 1 else f"there is {names[0]} alone"
