"""What a probe of the GPU alone may be: an operator over sizes, or a pipeline's stages in several variants."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from squall.scenarios.errors import Sentences, holding
from squall.scenarios.fields import BY_KIND, Count, NonEmpty, Section, Whole, repeated

Device = Literal["gpu", "cpu"]
Dtype = Literal["bf16", "fp16", "fp32"]
Memory = Literal["pageable", "pinned"]
Kernels = Literal["separate", "graph", "compiled"]
Size = Annotated[Count, Field(ge=2, le=65536)]

KERNELS_NAMED: dict[str, str] = {
    "separate": "separate kernels",
    "graph": "one CUDA graph",
    "compiled": "one compiled stage",
}
STAGES = ("prep", "h2d", "preprocess", "inference", "fused", "d2h", "postprocess")
"""In their order; `fused` stands for preprocess, inference and postprocess where these are one stage on the device."""


class ScheduleConfig(Section):
    """Steps as torch.profiler.schedule counts them: after `wait` and `warmup` steps, `active` ones are recorded."""

    wait: Whole = 1
    warmup: Count = 2  # without one the profiler's own start is in the first step that it records
    active: Count = 10


class OperatorProbe(Section):
    """One operator on squares of growing size: what the host needs for a call, and what the kernels need."""

    kind: Literal["operator"]
    operation: Literal["matmul_add"] = "matmul_add"
    sizes: NonEmpty[Size] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    dtype: Dtype = "bf16"
    device: Device = "gpu"
    schedule: ScheduleConfig = ScheduleConfig()
    repeats: Count = 3
    calls_per_step: Count = 10

    def misfits(self) -> Sentences:
        if list(self.sizes) != sorted({*self.sizes}):
            yield "sizes: give each once, the smallest first"

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows of figures: one a size, and one of the probe as a whole."""
        return (*map(str, self.sizes), WHOLE)


WHOLE = "all sizes"
"""Row of what the sizes together say: where the crossover lies."""


class VariantConfig(Section):
    """How the batch lies in the host's memory, and what the device is given to do."""

    memory: Memory
    kernels: Kernels

    @property
    def name(self) -> str:
        """Of its row."""
        return f"{self.memory}, {KERNELS_NAMED[self.kernels]}"


class NetConfig(Section):
    """The network of the pipeline: a stem, `blocks` residual pairs of convolutions of `width` channels, a head."""

    blocks: Count = 8
    width: Count = 64
    classes: Count = 1000


BASE = VariantConfig(memory="pageable", kernels="separate")
"""What gains are over."""


class PipelineProbe(Section):
    """A chain of stages around a small network, the same batches through each of its variants."""

    kind: Literal["pipeline"]
    device: Device = "gpu"
    dtype: Dtype = "fp16"
    batch_size: Count = 32
    image_size: Annotated[Count, Field(ge=16, le=2048)] = 224
    net: NetConfig = NetConfig()
    top_k: Count = 5
    variants: NonEmpty[VariantConfig] = (
        BASE,
        VariantConfig(memory="pinned", kernels="separate"),
        VariantConfig(memory="pinned", kernels="graph"),
        VariantConfig(memory="pinned", kernels="compiled"),
    )
    warmup: Count = 10
    calls: Count = 100
    repeats: Count = 3

    def misfits(self) -> Sentences:
        twice = repeated(self.rows)
        yield from holding({
            f"variants: {twice!r} is there twice": twice,
            "variants: pageable with separate kernels must be one of them, as the base of all gains": (
                BASE not in self.variants
            ),
            f"top_k: there are {self.net.classes} classes": self.top_k > self.net.classes,
        })  # fmt: skip

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows of figures: one a variant."""
        return tuple(one.name for one in self.variants)


ProbeConfig = Annotated[OperatorProbe | PipelineProbe, BY_KIND]
