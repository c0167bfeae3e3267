"""What is observed beside the requests, and how often: configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from squall.scenarios.config.duty import Duty, DutyField
from squall.scenarios.fields import Duration, Section
from squall.scenarios.units import NS_PER_S

SampleInterval = Annotated[Duration, Field(ge=NS_PER_S // 100)]
"""Between two samples: at shorter ones a sampler reads without a pause and takes the cores from what it observes."""


def _kinds_named(value: tuple[str, ...]) -> tuple[str, ...]:
    """Calls and waits alone say nothing of the GPU."""
    if not {"kernels", "copies"} & set(value):
        raise ValueError("name kernels, copies or both: without them nothing on the GPU is recorded")
    twice = [kind for index, kind in enumerate(value) if kind in value[:index]]
    if twice:
        raise ValueError(f"{twice[0]} is named twice")
    return value


class ProfileConfig(Section):
    """What is observed beside the requests, and how often."""

    nsys: Literal["auto", "off", "required"] = "off"  # it changes the latency: only for who asks
    nsys_session: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,126}$")] | None = (
        None  # of a server at server.url that somebody started with `nsys launch --session-new=NAME`
    )
    on_nsys_failure: Literal["keep", "restart"] = "keep"  # the server, where its session is lost
    trace: Annotated[tuple[Literal["cuda", "nvtx", "osrt"], ...], Field(min_length=1)] = (
        "cuda",
        "nvtx",
        "osrt",
    )
    cuda_graph_trace: Literal["graph", "node"] = "node"  # whole graphs cost less and hide their kernels
    keep_raw_report: bool = False  # the report that still holds environments and output, on its node
    batches: Literal["auto", "off", "required"] = (
        "auto"  # by the library, of models that record none themselves
    )
    kernels: Literal["auto", "off", "required"] = "auto"  # by the library that CUDA loads into its processes
    kernel_kinds: Annotated[
        tuple[Literal["kernels", "copies", "sync", "runtime", "driver", "events"], ...],
        AfterValidator(_kinds_named),
    ] = ("kernels", "copies")
    duty: DutyField = Duty(
        NS_PER_S // 5, 2 * NS_PER_S
    )  # which part of each measured phase they are recorded in
    nvml: Literal["auto", "off", "required"] = "auto"
    gpm: Literal["auto", "off"] = "auto"
    triton_trace: Literal["auto", "off", "required"] = (
        "auto"  # per-request server times; auto: from Triton 2.57 on
    )
    triton_interval_ns: SampleInterval = Field(default=NS_PER_S // 10, alias="triton_interval")
    host_interval_ns: SampleInterval = Field(default=NS_PER_S, alias="host_interval")
    thread_interval_ns: SampleInterval = Field(default=NS_PER_S, alias="thread_interval")
    gpu_interval_ns: SampleInterval = Field(default=NS_PER_S // 10, alias="gpu_interval")
    osrt_threshold_ns: Duration = Field(default=100_000, alias="osrt_threshold")

    @model_validator(mode="after")
    def _one_of_cupti(self) -> ProfileConfig:
        if self.kernels == self.nsys == "required" and "cuda" in self.trace:
            raise ValueError(
                "nsys with cuda in trace and kernels cannot both be required: one has CUPTI at a time"
            )
        return self
