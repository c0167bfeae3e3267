"""What is observed beside the requests, and how often: configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from squall.scenarios.config.duty import Duty, DutyField
from squall.scenarios.errors import Sentences
from squall.scenarios.fields import EACH_ONCE, Duration, NonEmpty, Section
from squall.scenarios.units import NS_PER_S, format_duration

if TYPE_CHECKING:
    from squall.scenarios.config.scenario import PhaseConfig

SampleInterval = Annotated[Duration, Field(ge=NS_PER_S // 100)]
"""Between two samples: at shorter ones a sampler reads without a pause and takes the cores from what it observes."""

Wanted = Literal["auto", "off", "required"]
"""A collector: where it can be had, never, or else the run does not start."""


def _kinds_named(value: tuple[str, ...]) -> tuple[str, ...]:
    """Calls and waits alone say nothing of the GPU."""
    if not {"kernels", "copies"} & set(value):
        raise ValueError("name kernels, copies or both: without them nothing on the GPU is recorded")
    return value


class ProfileConfig(Section):
    """What is observed beside the requests, and how often."""

    nsys: Wanted = "off"  # it changes the latency: only for who asks
    nsys_session: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,126}$")] | None = (
        None  # of a server at server.url that somebody started with `nsys launch --session-new=NAME`
    )
    on_nsys_failure: Literal["keep", "restart"] = "keep"  # the server, where its session is lost
    trace: NonEmpty[Literal["cuda", "nvtx", "osrt"]] = (
        "cuda",
        "nvtx",
        "osrt",
    )
    cuda_graph_trace: Literal["graph", "node"] = "node"  # whole graphs cost less and hide their kernels
    keep_raw_report: bool = False  # the report that still holds environments and output, on its node
    batches: Wanted = "auto"  # by the library, of models that record none themselves
    kernels: Wanted = "auto"  # by the library that CUDA loads into its processes
    kernel_kinds: Annotated[
        tuple[Literal["kernels", "copies", "sync", "runtime", "driver", "events"], ...],
        AfterValidator(_kinds_named),
        EACH_ONCE,
    ] = ("kernels", "copies")
    duty: DutyField = Duty(
        NS_PER_S // 5, 2 * NS_PER_S
    )  # which part of each measured phase they are recorded in
    nvml: Wanted = "auto"
    gpm: Literal["auto", "off"] = "auto"
    triton_trace: Wanted = "auto"  # per-request server times; auto: from Triton 2.57 on
    triton_interval_ns: SampleInterval = NS_PER_S // 10
    host_interval_ns: SampleInterval = NS_PER_S
    thread_interval_ns: SampleInterval = NS_PER_S
    gpu_interval_ns: SampleInterval = NS_PER_S // 10
    osrt_threshold_ns: Duration = 100_000

    def misfits(self) -> Sentences:
        if self.kernels == self.nsys == "required" and "cuda" in self.trace:
            yield "nsys with cuda in trace and kernels cannot both be required: one has CUPTI at a time"


LEAST_PAUSE_NS = 5 * NS_PER_S
"""Without a GPU: 1.5 to 3.0 s of stop for 5, 10 and 20 s of recording at 100 requests/s, 0.2 to 0.3 s of start (nsys
2022.4.2, 2 busy cores, 2026-11-22), and the driver looks once a second."""


def needed_pause_ns(recorded_ns: int, may_use_gpu: bool) -> int:
    """Between the end of a measured phase of `recorded_ns` and the next one's start, for nsys to record both whole: it
    records one at a time, and on a GPU the import at its end grows with what was recorded (9.0 and 11.1 s of stop for
    6 s, docs/results.md).

    phase one ──────┤ noticed │ stop, with the import of the report │ noticed │ start ├────── phase two
                    └─────────────────────── the pause ───────────────────────────────┘
    """
    return max(LEAST_PAUSE_NS, 3 * NS_PER_S + recorded_ns * 3 // 2) if may_use_gpu else LEAST_PAUSE_NS


def too_close(phases: Iterable[PhaseConfig], may_use_gpu: bool) -> Sentences:
    """Which two measured phases nsys cannot both record; and the mend."""
    before, needed_ns, pause_ns = "", 0, 0
    for phase in phases:
        if phase.kind != "measure":
            pause_ns += phase.duration_ns
            continue
        if pause_ns < needed_ns:
            needed, pause = format_duration(needed_ns), format_duration(pause_ns)
            yield (
                f"phases: nsys would miss the beginning of phase {phase.name!r} or all of it: {pause} lie"
                f" between it and {before!r}, whose recording takes up to {needed} to end; put a warmup phase of"
                f" {needed} in all between the two, or set profile.nsys=off"
            )
        before, needed_ns, pause_ns = phase.name, needed_pause_ns(phase.duration_ns, may_use_gpu), 0
