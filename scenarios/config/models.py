"""The models under load: how each is served, its share of the requests, and what these say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from squall.scenarios.config.clients.check import ValueCheckConfig
from squall.scenarios.config.clients.client import ClientConfig
from squall.scenarios.config.clients.data import DataConfig, TraceOrder
from squall.scenarios.config.clients.inputs import InputConfig
from squall.scenarios.config.clients.request import RequestConfig
from squall.scenarios.config.clients.rows import RowsConfig, TraceRows
from squall.scenarios.fields import Count, Duration, Number, Section, Text, Version, Whole, refuse, repeated
from squall.scenarios.sizes import LARGEST_BATCH, LARGEST_VARIANT_COUNT


class QueuePolicy(Section):
    """Triton's queue of a model: longest length (0 = unbounded) and longest wait (0 = no limit)."""

    max_size: Whole = 0
    timeout_ns: Duration = Field(default=0, alias="timeout")
    on_timeout: Literal["reject", "delay"] = "reject"


class ModelConfig(Section):
    """The model that is served: one of the zoo, or one from a user's own repository."""

    name: Text
    version: Version | None = None  # the latest that the server has ready; 1 of a head that squall writes
    settings: dict[str, Whole] = Field(default_factory=dict)
    instances: Count = 1
    max_batch_size: Annotated[Count, Field(le=LARGEST_BATCH)] = 32
    preferred_batch_sizes: tuple[Count, ...] = ()
    queue_delay_ns: Duration = Field(default=0, alias="queue_delay")
    queue: QueuePolicy = QueuePolicy()
    preserve_ordering: bool | None = (
        None  # of a model of the zoo: answers leave in the order in which requests came
    )
    framework: Literal["numpy", "torch"] = "numpy"  # what computes a model of the zoo
    device: Literal["cpu", "gpu"] | None = None  # else the CPU for numpy, a GPU for torch
    precision: Literal["fp32", "fp16"] = "fp32"
    cuda_graphs: bool = False  # torch on a GPU: one graph per batch size, captured before the server is ready
    pinned: bool | None = None  # torch on a GPU: buffers on the host are page-locked, if this is not false
    is_compiled: bool | None = Field(default=None, alias="compile")  # torch.compile
    weights: Text | None = (
        None  # of an encoder of the zoo: file, folder or name in the hub's cache; None: seeded
    )
    repository: Text | None = None
    shapes: dict[str, tuple[Whole, ...]] = Field(default_factory=dict)  # dims of inputs the model leaves open

    @model_validator(mode="after")
    def _parts_fit(self) -> ModelConfig:
        is_on_gpu = self.framework == "torch" and self.device != "cpu"
        largest = max(self.preferred_batch_sizes, default=0)
        refuse({
            "framework numpy computes in fp32 on the CPU: use framework torch": (
                self.framework == "numpy" and (self.device == "gpu" or self.precision != "fp32")
            ),
            "cuda_graphs needs framework torch on a GPU": self.cuda_graphs and not is_on_gpu,
            "pinned: false needs framework torch on a GPU": self.pinned is False and not is_on_gpu,
            "compile needs framework torch": self.is_compiled and self.framework != "torch",
            "weights are of an encoder of the zoo, and the model is from repository": self.weights and self.repository,
            f"preferred batch size {largest} is above max_batch_size {self.max_batch_size}": (
                largest > self.max_batch_size
            ),
        })  # fmt: skip
        return self

    @property
    def is_cpu_head(self) -> bool:
        """Whether it is a model of the zoo that computes on the CPU."""
        return self.repository is None and (self.framework == "numpy" or self.device == "cpu")


Share = Annotated[Number, Field(ge=0)]


class ModelEntry(ModelConfig):
    """One of the models under load: its share of the requests to those of the others, and what is other than in
    `clients`."""

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


_OF_REQUESTS: Final = tuple(ModelEntry.model_fields.keys() - ModelConfig.model_fields - {"share", "servers"})
"""Keys of `clients` that a model may have of its own."""
_BY_SERVER: Final = ("round-robin", "random", "weighted", "sticky")
"""Kinds of routing among those servers that serve the model of an arrival."""


@dataclass(frozen=True)
class ModelScenario:
    """All that a scenario says of one of its models: how it is served, and what the requests to it are."""

    key: str  # where it stands: `model`, or `models[1]` of several
    model: ModelEntry
    clients: ClientConfig  # with what the model has of its own
    seed: int

    def rows_of(self, phase_rows: RowsConfig | None) -> RowsConfig:
        """How many rows its requests carry in a phase that says `phase_rows` itself, or nothing."""
        return self.model.rows or phase_rows or self.clients.rows

    def place_of(self, key: str) -> str:
        """The path of that key of `clients`, or of the model where it has its own."""
        is_own = getattr(self.model, key) is not None
        return f"models.{self.model.name}.{key}" if is_own else f"clients.{key}"


def model_scenarios(
    model: ModelConfig | None, models: tuple[ModelEntry, ...] | None, clients: ClientConfig, seed: int
) -> tuple[ModelScenario, ...]:
    """Of a scenario that states `model` or `models`, in order: `model` is one that has nothing of its own."""
    found = []
    for index, entry in enumerate(models or ()):
        own = {key: value for key in _OF_REQUESTS if (value := getattr(entry, key)) is not None}
        found.append(ModelScenario(f"models[{index}]", entry, clients.model_copy(update=own), seed))
    if model is not None:
        entry = ModelEntry.model_construct(model.model_fields_set, **dict(model))
        found.append(ModelScenario("model", entry, clients, seed))
    return tuple(found)


def served_at(models: Sequence[ModelScenario], n_servers: int) -> tuple[tuple[int, ...], ...]:
    """The servers of each model, by their numbers, sorted. Raises ValueError for one that there is not."""
    names = [f"server-{number}" for number in range(n_servers)]
    found = []
    for one in models:
        stated = range(n_servers) if one.model.servers is None else one.model.servers
        numbers = [names.index(server) if server in names else server for server in stated]
        strange = next((one for one in numbers if one not in range(n_servers)), None)
        refuse({
            f"{one.key}.servers: there is no server {strange!r}, there are {', '.join(names)}": strange is not None,
            f"{one.key}.servers: names server-{repeated(numbers)} twice": repeated(numbers) is not None,
        })  # fmt: skip
        found.append(tuple(sorted(map(int, numbers))))
    return tuple(found)


def shares_of(
    models: Sequence[ModelScenario], own: Mapping[str, float] | None, where: str
) -> tuple[float, ...]:
    """Of each model, in order, where a phase at `where` has shares of its `own` or none. Raises ValueError for a model
    that there is not, and where nothing is left."""
    names = [one.model.name for one in models]
    for name in own or ():
        if name not in names:
            raise ValueError(f"{where}.{name}: there is no such model, there are {', '.join(names)}")
    shares = tuple(one.model.share if own is None else own.get(one.model.name, 0.0) for one in models)
    if not any(shares):
        raise ValueError(f"{'models' if own is None else where}: the shares are all 0, one must be above")
    return shares


def misfits_of_several(
    models: Sequence[ModelScenario], clients: ClientConfig, n_servers: int | None
) -> Iterator[str]:
    """What several models cannot have together, as sentences that begin with a key path; `n_servers` None: the nodes
    say it."""
    twice = repeated([one.model.name for one in models])
    if twice is not None:
        yield f"models: the name {twice!r} is used twice"
    for key, mend in {"sequences": "leave it out", "data": "give each its own in models[].data"}.items():
        if getattr(clients, key) is not None:
            yield f"clients.{key}: is for a scenario with one model, and models are several; {mend}"
    for where, rows in [("clients", clients.rows), *((one.key, one.model.rows) for one in models)]:
        if isinstance(rows, TraceRows):
            yield f"{where}.rows: {NO_TRACE_ROWS}"
    is_compressed = [
        one.clients.request is not None and one.clients.request.compression is not None for one in models
    ]
    for one, compresses in zip(models, is_compressed, strict=True):
        data, request = one.model.data, one.model.request
        if data is not None and isinstance(data.order, TraceOrder):
            yield (
                f"{one.key}.data.order: kind 'trace' is for a scenario with one model, for a trace does not say which"
                " model a request asks; use sequence, random or zipf"
            )
        if data is not None and one.model.payload_variants is not None:
            yield f"{one.key}.data: each entry is a payload of its own; leave payload_variants out"
        if data is not None and clients.shared_memory is not None:
            yield f"{one.key}.data: its entries travel in messages; leave clients.shared_memory out"
        if compresses != is_compressed[0]:
            yield (
                f"{one.key}.request.compression: requests are compressed to all models or to none; say it in"
                " clients.request"
            )
        if request is not None and not request.binary and clients.protocol == "grpc":
            yield f"{one.key}.request.binary: false is for protocol http, gRPC carries tensors as bytes"
    yield from _misplaced(models, clients, n_servers)


NO_TRACE_ROWS: Final = (
    "kind 'trace' is for a scenario with one model, and models are several; use another kind, such as 'empirical' with"
    " the same file"
)


def _misplaced(
    models: Sequence[ModelScenario], clients: ClientConfig, n_servers: int | None
) -> Iterator[str]:
    """Servers that serve nothing, or among which the routing cannot choose. Raises ValueError as `served_at`."""
    placed = [f"{one.key}.servers" for one in models if one.model.servers is not None]
    if not placed:
        return
    if n_servers is None:
        yield f"{placed[0]}: only the nodes say how many servers there are; write servers as a list, or its count"
        return
    of_model = served_at(models, n_servers)
    idle = set(range(n_servers)).difference(*of_model)
    if idle:
        yield f"models: server-{min(idle)} serves none of them"
    if clients.routing.kind not in _BY_SERVER and any(len(servers) < n_servers for servers in of_model):
        yield (
            f"{placed[0]}: clients.routing {clients.routing.kind!r} is for servers that all serve the same models; use"
            f" {', '.join(_BY_SERVER)}"
        )


_BATCHER: Final = "config.dynamic_batching."
_WRITTEN: Final = {
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
"""Keys of a model whose configuration squall writes, which it does where it starts Triton with a model of the zoo, and
where `server.control.load.NAME` says it of another. `version`, `max_batch_size`, `shapes` and `settings` describe a
model to the clients, whoever serves it."""


def keys_without_effect(one: ModelScenario, is_started: bool) -> tuple[str, ...]:
    """Keys of the model, stated or not, that change nothing. `is_started`: squall starts its servers."""
    if is_started:
        return tuple(_WRITTEN) if one.model.repository is not None else ()
    has_zoo_check = one.clients.check is not None and one.clients.check.is_of_zoo
    return (*_WRITTEN, "repository", *(() if has_zoo_check else ("weights",)))


def why_without_effect(key: str, one: ModelScenario, is_started: bool) -> str:
    """In words."""
    if key in _WRITTEN:
        return (
            f"has no effect, {has_its_own(is_started)}: leave it out, or change it there with"
            f" server.control.load.{one.model.name}.{_WRITTEN[key]}"
        )
    return "is for a model that squall serves, and a server at url has its own: leave it out, server.control loads it"


def has_its_own(is_started: bool) -> str:
    """Why squall does not configure the model, in words."""
    if is_started:
        return "the model of repository has a configuration of its own"
    return "a server at url has its models configured"
