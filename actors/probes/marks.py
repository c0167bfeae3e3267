"""Instants of a device's stream: CUDA events, or the host's clock on the CPU. Of the probe's process."""

from __future__ import annotations

import time
from typing import Any

import torch

_NS_PER_MS = 1_000_000


class Marks:
    """`n` instants that are set anew at each call; spans between two of them are known after `wait`."""

    def __init__(self, device: torch.device, n: int) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._events: list[Any] = []
        if self._is_cuda:
            make: Any = torch.cuda.Event  # without types
            self._events = [make(enable_timing=True) for _ in range(n)]
        self._at_ns = [0] * n

    def set(self, index: int) -> None:
        """Now, or when the stream's work up to here is done."""
        if self._is_cuda:
            self._events[index].record()
        else:
            self._at_ns[index] = time.monotonic_ns()

    def wait(self) -> None:
        """Until all that was given to the device is done."""
        if self._is_cuda:
            torch.cuda.synchronize(self._device)

    def span_ns(self, first: int, last: int) -> int:
        """From one instant to another. CUDA events tell it in ms, to about half a us (CUDA runtime API,
        cudaEventElapsedTime)."""
        if self._is_cuda:
            span_ms: float = self._events[first].elapsed_time(self._events[last])
            return round(span_ms * _NS_PER_MS)
        return self._at_ns[last] - self._at_ns[first]
