"""Variants of the pipeline: where the batch lies on the host, and how the device's stages are given to it.

    prep ─ h2d ─ preprocess ─ inference ─ d2h (logits) ─ postprocess      separate kernels
    prep ─ h2d ─ fused: all three on the device ─ d2h (the best)          one CUDA graph, or compiled

Of the probe's process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from squall.actors.probes.marks import Marks
from squall.actors.probes.stages import Fused
from squall.scenarios.units import digits_text

Outputs = tuple[Tensor, Tensor]
"""Probabilities and numbers of the best classes, on the host."""
_CAPTURE_WARMUPS = 3


class NotHere(Exception):
    """A variant that cannot run here: why."""


@dataclass(frozen=True)
class Source:
    """Pictures in the host's memory, from which `prep` cuts each batch."""

    pictures: Tensor
    batch_size: int
    image_size: int
    offsets: tuple[tuple[int, int], ...]

    def cut(self, index: int) -> Tensor:
        """The batch of that number, as a view."""
        at = index % len(self.offsets)
        top, left = self.offsets[at]
        first, size = at * self.batch_size, self.image_size
        return self.pictures[first : first + self.batch_size, top : top + size, left : left + size]


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, memory: str, device: torch.device) -> Tensor:
    """Raises NotHere for pinned memory without a GPU."""
    if memory == "pinned" and device.type != "cuda":
        raise NotHere("pinned memory is for copies to a GPU, and the probe ran on the CPU")
    return torch.empty(shape, dtype=dtype, pin_memory=memory == "pinned")


class Pipeline:
    """One variant. `run` gives the outputs of a batch and leaves its times in `spans`."""

    def __init__(
        self, fused: Fused, source: Source, device: torch.device, memory: str, kernels: str, top_k: int
    ) -> None:
        """Captures or compiles what the variant says. Raises NotHere where that cannot be done."""
        self._fused, self._source, self._device = fused, source, device
        self._is_pinned = memory == "pinned"
        n, size = source.batch_size, source.image_size
        self._batch = host_buffer((n, size, size, 3), torch.uint8, memory, device)
        self._on_device = torch.zeros((n, size, size, 3), dtype=torch.uint8, device=device)
        classes = fused.net.head.out_features
        self._logits = host_buffer((n, classes), torch.float32, memory, device)
        self._best = (
            host_buffer((n, top_k), torch.float32, memory, device),
            host_buffer((n, top_k), torch.int64, memory, device),
        )
        self._stage = None if kernels == "separate" else self._one_stage(kernels)
        self._marks = Marks(device, 5)
        self.begun_ns = 0
        self.spans: dict[str, int] = {}
        """ns by stage of the last run, and `total`."""

    def _one_stage(self, kernels: str) -> Callable[[], Outputs]:
        self._batch.copy_(self._source.cut(0))
        self._on_device.copy_(self._batch)
        if kernels == "compiled":
            compiled = torch.compile(self._fused, fullgraph=True, dynamic=False)
            compiled(self._on_device)

            def called() -> Outputs:
                found: Outputs = compiled(self._on_device)
                return found

            return called
        if self._device.type != "cuda":
            raise NotHere("CUDA graphs need a GPU, and the probe ran on the CPU")
        stream: Any = torch.cuda.Stream  # without types
        aside = stream(self._device)
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(aside):
            for _ in range(_CAPTURE_WARMUPS):
                self._fused(self._on_device)
        torch.cuda.current_stream(self._device).wait_stream(aside)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs: Outputs = self._fused(self._on_device)

        def replayed() -> Outputs:
            graph.replay()
            return outputs

        return replayed

    def run(self, index: int) -> Outputs:
        """The batch of that number through all stages, and to the end of the last."""
        marks = self._marks
        self.begun_ns = time.monotonic_ns()
        self._batch.copy_(self._source.cut(index))
        prepared_ns = time.monotonic_ns()
        marks.set(0)
        self._on_device.copy_(self._batch, non_blocking=self._is_pinned)
        marks.set(1)
        if self._stage is not None:
            self._to_host(self._best, self._stage())
            marks.wait()
            ended_ns = time.monotonic_ns()
            self.spans = {
                "prep": prepared_ns - self.begun_ns,
                "h2d": marks.span_ns(0, 1),
                "fused": marks.span_ns(1, 2),
                "d2h": marks.span_ns(2, 3),
                "total": ended_ns - self.begun_ns,
            }
            return self._best
        normalised = self._fused.preprocess(self._on_device)
        marks.set(2)
        logits = self._fused.net(normalised)
        marks.set(3)
        self._logits.copy_(logits, non_blocking=self._is_pinned)
        marks.set(4)
        marks.wait()
        copied_ns = time.monotonic_ns()
        best: Outputs = self._fused.postprocess(self._logits)
        ended_ns = time.monotonic_ns()
        self.spans = {
            "prep": prepared_ns - self.begun_ns,
            "h2d": marks.span_ns(0, 1),
            "preprocess": marks.span_ns(1, 2),
            "inference": marks.span_ns(2, 3),
            "d2h": marks.span_ns(3, 4),
            "postprocess": ended_ns - copied_ns,
            "total": ended_ns - self.begun_ns,
        }
        return best

    def _to_host(self, places: Outputs, found: Outputs) -> None:
        self._marks.set(2)
        for place, one in zip(places, found, strict=True):
            place.copy_(one, non_blocking=self._is_pinned)
        self._marks.set(3)


def probabilities(pipeline_of: Fused, source: Source, device: torch.device, index: int) -> Tensor:
    """Of every class, [batch, classes] on the host, by the modules alone: no buffer, graph or compiler in between."""
    logits = pipeline_of.net(pipeline_of.preprocess(source.cut(index).to(device)))
    return torch.softmax(logits, dim=-1).cpu()


def difference(expected: Tensor, outputs: Outputs, tolerance: float) -> str:
    """How outputs differ from the probabilities of all classes; empty where they do not.

    Best classes may change places where they are as good within `tolerance` (relative), but each must have the
    probability that it is said to have, and be as good as the best of its rank.
    """
    values, indices = outputs
    k = values.shape[-1]
    if not bool(torch.isfinite(values).all()):
        return "probabilities that are no numbers"
    if bool((indices < 0).any()) or bool((indices >= expected.shape[-1]).any()):
        return "classes that do not exist"
    if any(len(set(row)) != k for row in indices.tolist()):
        return "a class twice among the best"
    least = torch.finfo(torch.float32).tiny
    for what, should in (
        ("probability of the class named", expected.gather(-1, indices)),
        ("probability of that rank", expected.topk(k, dim=-1).values),
    ):
        worst = float(((values - should).abs() / should.clamp_min(least)).max())
        if not worst <= tolerance:
            return (
                f"{what} differs by up to {digits_text(worst, 2)} of itself, allowed {digits_text(tolerance)}"
            )
    return ""
