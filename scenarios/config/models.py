"""The models under load: how each is served, its share of the requests, and what these say."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from squall.scenarios.config.client import ClientConfig, RequestConfig, ValueCheckConfig
from squall.scenarios.config.inputs import DataConfig, InputConfig
from squall.scenarios.config.rows import RowsConfig
from squall.scenarios.errors import Sentences, holding
from squall.scenarios.fields import (
    Count,
    Duration,
    Keys,
    NonEmpty,
    NonNegative,
    Section,
    Text,
    Version,
    Whole,
)
from squall.scenarios.records import Frozen
from squall.scenarios.sizes import LARGEST_BATCH, LARGEST_VARIANT_COUNT


class QueuePolicy(Section):
    """Triton's queue of a model: longest length (0 = unbounded) and longest wait (0 = no limit)."""

    max_size: Whole = 0
    timeout_ns: Duration = 0
    on_timeout: Literal["reject", "delay"] = "reject"


class ModelConfig(Section):
    """The model that is served: one of the zoo, or one from a user's own repository."""

    name: Text
    version: Version | None = None  # the latest that the server has ready; 1 of a head that squall writes
    settings: dict[str, Whole] = Field(default_factory=dict)
    instances: Count = 1
    max_batch_size: Annotated[Count, Field(le=LARGEST_BATCH)] = 32
    preferred_batch_sizes: tuple[Count, ...] = ()
    queue_delay_ns: Duration = 0
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

    def misfits(self) -> Sentences:
        is_on_gpu = self.framework == "torch" and self.device != "cpu"
        largest = max(self.preferred_batch_sizes, default=0)
        yield from holding({
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

    @property
    def is_cpu_head(self) -> bool:
        """Whether it is a model of the zoo that computes on the CPU."""
        return self.repository is None and (self.framework == "numpy" or self.device == "cpu")


class ModelEntry(ModelConfig):
    """One of the models under load: its share of the requests to those of the others, and what is other than in
    `clients`."""

    share: NonNegative = 1.0
    servers: NonEmpty[Whole | Text] | None = None  # that serve it; none: all
    rows: RowsConfig | None = None  # in every phase
    inputs: dict[str, InputConfig] | None = None
    data: DataConfig | None = None  # inputs of the user's in place of made ones
    request: RequestConfig | None = None
    check: ValueCheckConfig | None = None
    payload_variants: Annotated[Count, Field(le=LARGEST_VARIANT_COUNT)] | None = None

    def own_of_clients(self) -> Keys:
        """What it has of its own in place of what `clients` says."""
        return {key: value for key in _OF_REQUESTS if (value := getattr(self, key)) is not None}


_OF_REQUESTS: Final = tuple(ModelEntry.model_fields.keys() - ModelConfig.model_fields - {"share", "servers"})
"""Keys of `clients` that a model may have of its own."""


class ModelScenario(Frozen):
    """All that a scenario says of one of its models: how it is served, and what the requests to it are."""

    key: str  # where it stands: `model`, or `models[1]` of several
    model: ModelEntry
    clients: ClientConfig  # with what the model has of its own
    seed: int

    @property
    def is_compressed(self) -> bool:
        """Whether requests to it are."""
        return self.clients.request is not None and self.clients.request.compression is not None

    def rows_of(self, phase_rows: RowsConfig | None) -> RowsConfig:
        """How many rows its requests carry in a phase that says `phase_rows` itself, or nothing."""
        return self.model.rows or phase_rows or self.clients.rows

    def place_of(self, key: str) -> str:
        """The path of that key of `clients`, or of the model where it has its own."""
        is_own = getattr(self.model, key) is not None
        return f"models.{self.model.name}.{key}" if is_own else f"clients.{key}"
