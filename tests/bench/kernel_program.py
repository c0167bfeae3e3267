"""A program that uses a GPU as a model does, for `tests.bench.kernel_library`: lines on its input say what to do.

    loop SECONDS FILE    batches one after another; their instants ((n, 2) int64 CLOCK_MONOTONIC ns) go to FILE
    batches N            N batches and N / 10 replays of the CUDA graph, each waited for
    profiled N FILE      the same under torch.profiler, whose trace goes to FILE
    graph HZ SECONDS     replays of the CUDA graph at HZ kernels a second

Each line is answered by a JSON line. A batch: copy to the GPU, 20 layers of Linear(1024) and ReLU in fp16, copy back
(which waits), as linear_head of the zoo.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_ROWS, _WIDTH, _LAYERS = 64, 1024, 20
GRAPH_KERNELS = 1_000
_REPLAYS_IN_FLIGHT = 8


class Program:
    """Weights and a captured graph on the GPU."""

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        torch = self._torch
        torch.set_num_threads(1)
        self._weights = [
            torch.randn(_WIDTH, _WIDTH, device="cuda", dtype=torch.float16) / 32 for _ in range(_LAYERS)
        ]
        self._bias = torch.zeros(_WIDTH, device="cuda", dtype=torch.float16)
        self._rows = torch.randn(_ROWS, _WIDTH).half().pin_memory()
        self._graph = self._captured()
        for _ in range(20):
            self._batch()

    def _captured(self) -> Any:
        torch = self._torch
        value = torch.zeros(256, device="cuda")
        for _ in range(3):
            value.add_(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_KERNELS):
                value.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        return graph

    def _batch(self) -> None:
        x = self._rows.to("cuda", non_blocking=True)
        for matrix in self._weights:
            x = self._torch.addmm(self._bias, x, matrix).relu_()
        x.cpu()

    def loop(self, seconds: str, file: str) -> dict[str, Any]:
        """Batches until `seconds` are over."""
        instants, end_ns = [], time.monotonic_ns() + round(float(seconds) * 1e9)
        while (began_ns := time.monotonic_ns()) < end_ns:
            self._batch()
            instants.append((began_ns, time.monotonic_ns()))
        np.save(file, np.array(instants, np.int64))
        return {"n_batches": len(instants)}

    def batches(self, n: str) -> dict[str, Any]:
        """Known work, waited for."""
        for _ in range(int(n)):
            self._batch()
        for _ in range(int(n) // 10):
            self._graph.replay()
            self._torch.cuda.synchronize()
        return {"n_graph_kernels": int(n) // 10 * GRAPH_KERNELS}

    def profiled(self, n: str, file: str) -> dict[str, Any]:
        """The same under PyTorch's profiler: kernels by name, copies by kind and size."""
        activity = self._torch.profiler.ProfilerActivity
        with self._torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as profiler:
            self.batches(n)
        profiler.export_chrome_trace(file)
        return {}

    def graph(self, rate_hz: str, seconds: str) -> dict[str, Any]:
        """Replays, each begun when it is due."""
        torch, rate, n, began_s = self._torch, float(rate_hz), 0, time.monotonic()
        free_before, _ = torch.cuda.mem_get_info()
        while (now_s := time.monotonic() - began_s) < float(seconds):
            due_s = n * GRAPH_KERNELS / rate
            if due_s > now_s:
                time.sleep(due_s - now_s)
            self._graph.replay()
            n += 1
            if n % _REPLAYS_IN_FLIGHT == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        took_s = time.monotonic() - began_s
        free_after, _ = torch.cuda.mem_get_info()
        return {"n_kernels": n * GRAPH_KERNELS, "took_s": took_s, "gpu_bytes_more": free_before - free_after}


def main() -> None:
    program = Program()
    does: dict[str, Callable[..., dict[str, Any]]] = {
        "loop": program.loop, "batches": program.batches, "profiled": program.profiled, "graph": program.graph,
    }  # fmt: skip
    print(json.dumps({"rss_bytes": rss_bytes()}), flush=True)
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps(does[name](*arguments) | {"rss_bytes": rss_bytes()}), flush=True)


def rss_bytes() -> int:
    """Resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
