"""A model that is served: configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from squall.scenarios.fields import Count, Duration, Section, Text, Version, Whole
from squall.scenarios.sizes import LARGEST_BATCH


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
        if self.framework == "numpy" and (self.device == "gpu" or self.precision != "fp32"):
            raise ValueError("framework numpy computes in fp32 on the CPU: use framework torch")
        if self.cuda_graphs and (self.framework != "torch" or self.device == "cpu"):
            raise ValueError("cuda_graphs needs framework torch on a GPU")
        if self.pinned is False and (self.framework != "torch" or self.device == "cpu"):
            raise ValueError("pinned: false needs framework torch on a GPU")
        if self.is_compiled and self.framework != "torch":
            raise ValueError("compile needs framework torch")
        if self.weights is not None and self.repository is not None:
            raise ValueError("weights are of an encoder of the zoo, and the model is from repository")
        too_large = [size for size in self.preferred_batch_sizes if size > self.max_batch_size]
        if too_large:
            raise ValueError(
                f"preferred batch size {too_large[0]} is above max_batch_size {self.max_batch_size}"
            )
        return self
