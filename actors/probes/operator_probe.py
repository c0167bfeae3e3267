"""One operator on squares of growing size, call by call. Of the probe's process.

All sizes are measured with nothing beside them first, then again under torch.profiler: what that costs is in neither
the first calls nor the times of the host that stand for themselves.

    mark ─ t0 ─ op ─ t1 ─ mark ─ wait for the device ─ t2      host: t0-t1, synced: t0-t2, event: mark-mark
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from squall.actors.probes.host_share import host_share, since
from squall.actors.probes.marks import Marks
from squall.actors.probes.trace import CALL, TracedCall, names_of_host, scrubbed, traced_calls, write_trace

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Row = dict[str, Any]
_NO_KERNELS = (
    "torch.profiler recorded no kernel: CUPTI cannot be used here, as where another profiler has the GPU or the driver "
    "keeps its counters for administrators; times by CUDA events stand"
)


DIED = "the probe's process died under torch.profiler"
"""Unless it says otherwise behind that."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an allocator says so, CUDA's or the CPU's."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate" in text


class OperatorMeasure:
    """`config`: the resolved probe of kind operator. Rows go to `emit` as they come."""

    def __init__(
        self,
        config: Mapping[str, Any],
        device: torch.device,
        seed: int,
        emit: Callable[[Row], None],
        traces: Path,
    ) -> None:
        self._config = config
        self._device = device
        self._seed = seed
        self._emit = emit
        self._traces = traces
        self._marks = Marks(device, 2)
        self._left_out: dict[str, str] = {}
        self._operators: dict[str, list[Row]] = {}
        self._no_kernels = "" if device.type == "cuda" else "the probe ran on the CPU, which has no kernels"

    def measure(self) -> Iterator[dict[str, Any]]:
        """All sizes; gives what is to be known beside the rows: once before the profiler, once at the end."""
        self._marks.wait()
        before = host_share()
        for size in self._config["sizes"]:
            self._guarded(size, self._undisturbed)
        facts = {
            "left_out": self._left_out,
            "no_kernels": self._no_kernels or DIED,
            "operators": self._operators,
            "host_share": since(before),
        }
        yield facts
        for size in self._config["sizes"]:
            if str(size) not in self._left_out:
                self._guarded(size, self._profiled)
        yield {**facts, "no_kernels": self._no_kernels}

    def _guarded(self, size: int, measure: Callable[[int], None]) -> None:
        """A size that does not fit into memory is left out, and those behind it are tried all the same."""
        try:
            measure(size)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._left_out[str(size)] = f"size {size} does not fit into the memory of the device"
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _call(self, size: int) -> Callable[[], torch.Tensor]:
        generator = torch.Generator(device=self._device).manual_seed(self._seed + size)
        dtype = DTYPES[self._config["dtype"]]

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device=self._device, dtype=torch.float32).to(
                dtype
            )

        x, w, b = drawn(size, size), drawn(size, size) / size**0.5, drawn(size)
        self._marks.wait()
        return lambda: x @ w + b

    def _undisturbed(self, size: int) -> None:
        call = self._call(size)
        first = {"size": size, "under": "nothing", "part": "first", "repeat": 0, "step": 0, "call": 0}
        self._emit({**first, **self._timed(call)})
        for place in self._places():
            self._emit({"size": size, "under": "nothing", **place, **self._timed(call)})

    def _places(self) -> Iterator[Row]:
        """Every call of the schedule in order."""
        for repeat in range(self._config["repeats"]):
            yield from self._places_of_cycle(repeat)

    def _places_of_cycle(self, repeat: int) -> Iterator[Row]:
        steps = self._config["schedule"]
        parts = ["wait"] * steps["wait"] + ["warmup"] * steps["warmup"] + ["active"] * steps["active"]
        for step, part in enumerate(parts):
            for call in range(self._config["calls_per_step"]):
                yield {"part": part, "repeat": repeat, "step": step, "call": call}

    def _timed(self, call: Callable[[], torch.Tensor]) -> Row:
        self._marks.set(0)
        begun_ns = time.monotonic_ns()
        result = call()
        returned_ns = time.monotonic_ns()
        self._marks.set(1)
        self._marks.wait()
        synced_ns = time.monotonic_ns()
        del result
        return {
            "start_ns": begun_ns,
            "host_ns": returned_ns - begun_ns,
            "synced_ns": synced_ns - begun_ns,
            "event_ns": self._marks.span_ns(0, 1) if self._device.type == "cuda" else None,
        }

    def _profiled(self, size: int) -> None:
        """The same calls under the profiler, whose trace says what each took on the device."""
        call, steps = self._call(size), self._config["schedule"]
        traced: list[list[TracedCall]] = []

        def take(profiler: profile) -> None:
            traced.append(self._take(profiler, size, is_first=not traced))

        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        warnings.filterwarnings(
            "ignore", "Warning: Profiler clears events"
        )  # each cycle is taken when it ends
        rows: list[Row] = []
        plan = schedule(**steps, repeat=self._config["repeats"])
        try:
            with profile(activities=activities, schedule=plan, on_trace_ready=take) as profiler:
                for place in self._places():
                    with record_function(CALL):
                        rows.append({"size": size, "under": "profiler", **place, **self._timed(call)})
                    if place["call"] == self._config["calls_per_step"] - 1:
                        profiler.step()
            self._fill(rows, traced)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            words = (str(error).strip() or type(error).__name__).splitlines()[0]
            self._no_kernels = f"torch.profiler failed at size {size}: {words}"
            return
        for row in rows:
            self._emit(row)

    def _fill(self, rows: list[Row], traced: list[list[TracedCall]]) -> None:
        """Puts what the traces say into the active rows. Raises RuntimeError where calls are missing there."""
        for repeat, found in enumerate(traced):
            active = [row for row in rows if row["repeat"] == repeat and row["part"] == "active"]
            if len(found) != len(active):
                raise RuntimeError(f"its trace has {len(found)} calls of {len(active)}")
            for row, one in zip(active, found, strict=True):
                row["op_cpu_ns"], row["kernel_ns"] = one.op_cpu_ns, one.kernel_ns
                row["n_kernels"] = one.n_kernels if one.kernel_ns is not None else None
        if not self._no_kernels and all(row.get("kernel_ns") is None for row in rows):
            self._no_kernels = _NO_KERNELS

    def _take(self, profiler: profile, size: int, is_first: bool) -> list[TracedCall]:
        """The calls of a cycle; the first cycle's trace and operators are kept."""
        path = self._traces / f"{size}.json"
        self._traces.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        document = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        if is_first:
            write_trace(scrubbed(document, names_of_host()), path.with_suffix(".json.gz"))
            self._operators[str(size)] = [_operator(one) for one in profiler.key_averages()]
        return traced_calls(document)


def _operator(event: Any) -> Row:
    """A line of torch.profiler's own table."""
    total_us = getattr(event, "device_time_total", None)
    own_us = getattr(event, "self_device_time_total", None)
    if total_us is None:  # before torch 2.4
        total_us, own_us = event.cuda_time_total, event.self_cuda_time_total
    return {
        "name": event.key,
        "n": event.count,
        "self_cpu_time_total_us": event.self_cpu_time_total,
        "device_time_total_us": total_us,
        "self_device_time_total_us": own_us,
    }
