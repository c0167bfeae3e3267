"""A pipeline's stages, variant by variant. Of the probe's process.

Every variant is made and held to the outputs of the modules alone before any figure is taken; then rounds, in each of
which every variant runs its calls, the order turned by one from round to round: a host or GPU that drifts does so for
all of them.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from squall.actors.probes.host_share import host_share, since
from squall.actors.probes.operator_probe import DIED, DTYPES, is_out_of_memory
from squall.actors.probes.stages import Fused, Postprocess, Preprocess, seeded_net, seeded_pictures
from squall.actors.probes.trace import CALL, names_of_host, scrubbed, write_trace
from squall.actors.probes.variants import NotHere, Pipeline, Source, difference, probabilities

Row = dict[str, Any]
N_BATCHES = 4
_MARGIN = 16
_TRACED_CALLS = 3
TOLERANCE = {"fp32": 5e-2, "fp16": 1e-1, "bf16": 4e-1}
"""Relative, of a probability. The default network on a CPU in fp16 differs from float32 by 0.014, in bf16 by 0.16
(torch 2.13, 2026-11-26); products in TensorFloat-32 have the digits of fp16."""
_SCALED_BY = 8
"""Pictures by whose logits the head is scaled: it is done on the CPU."""
_LONGEST_REASON = 300
"""Letters of a compiler's words."""


class PipelineMeasure:
    """`config`: the resolved probe of kind pipeline. Rows go to `emit` as they come."""

    def __init__(
        self,
        config: Mapping[str, Any],
        device: torch.device,
        seed: int,
        emit: Callable[[Row], None],
        traces: Path,
    ) -> None:
        self._config, self._device, self._emit, self._traces = config, device, emit, traces
        pictures = seeded_pictures(config, seed, N_BATCHES, _MARGIN)
        draw = random.Random(seed)
        offsets = tuple((draw.randrange(_MARGIN + 1), draw.randrange(_MARGIN + 1)) for _ in range(N_BATCHES))
        self._source = Source(pictures, config["batch_size"], config["image_size"], offsets)
        dtype = DTYPES[config["dtype"]]
        net = seeded_net(config, seed, self._source.cut(0)[:_SCALED_BY]).to(device=device, dtype=dtype)
        preprocess = Preprocess(dtype).to(device)
        self._fused = Fused(preprocess, net, Postprocess(config["top_k"])).eval()
        self._not_here: dict[str, str] = {}
        self._setup_ns: dict[str, int] = {}
        self._differing: dict[str, str] = {}

    def measure(self) -> Iterator[dict[str, Any]]:
        """All variants; gives what is to be known beside the rows: once before the trace, once at the end."""
        with torch.no_grad():
            expected = [
                probabilities(self._fused, self._source, self._device, index) for index in range(N_BATCHES)
            ]
            pipelines = self._pipelines()
            for name, pipeline in list(pipelines.items()):
                self._hold(name, pipeline, expected, pipelines)
            before = host_share()
            for repeat in range(self._config["repeats"]):
                names = list(pipelines)
                turned = names[repeat % len(names) :] + names[: repeat % len(names)] if names else []
                for name in turned:
                    self._round(name, pipelines[name], repeat)
            share = since(before)
            for name, pipeline in list(pipelines.items()):
                self._hold(name, pipeline, expected, pipelines)
        facts = {
            "left_out": self._not_here
            | {name: f"its outputs differ: {why}" for name, why in self._differing.items()},
            "differing": self._differing,
            "setup_ns": self._setup_ns,
            "tolerance": TOLERANCE[self._config["dtype"]],
            "host_share": share,
        }
        yield {**facts, "no_trace": DIED}
        with torch.no_grad():
            no_trace = self._trace(pipelines)
        yield {**facts, "no_trace": no_trace}

    def _pipelines(self) -> dict[str, Pipeline]:
        found = {}
        for one in self._config["variants"]:
            begun_ns = time.monotonic_ns()
            try:
                found[one["name"]] = Pipeline(
                    self._fused,
                    self._source,
                    self._device,
                    one["memory"],
                    one["kernels"],
                    self._config["top_k"],
                )
            except NotHere as error:
                self._not_here[one["name"]] = str(error)
            except Exception as error:  # compilers fail in many ways; the row says how, and the others go on
                if one["kernels"] == "separate":
                    raise
                self._not_here[one["name"]] = _reason(error)
            self._setup_ns[one["name"]] = time.monotonic_ns() - begun_ns
        return found

    def _hold(
        self, name: str, pipeline: Pipeline, expected: Sequence[torch.Tensor], pipelines: dict[str, Pipeline]
    ) -> None:
        """Takes a variant whose outputs differ out of the round; behind the last round its figures do not count."""
        for index, one in enumerate(expected):
            why = difference(one, pipeline.run(index), TOLERANCE[self._config["dtype"]])
            if why:
                self._differing[name] = f"batch {index}: {why}"
                del pipelines[name]
                return

    def _round(self, name: str, pipeline: Pipeline, repeat: int) -> None:
        warmup, rows = self._config["warmup"], []
        for call in range(warmup + self._config["calls"]):
            pipeline.run(call)
            part = "warmup" if call < warmup else "active"
            place = {
                "variant": name,
                "repeat": repeat,
                "call": call,
                "part": part,
                "start_ns": pipeline.begun_ns,
            }
            rows += [{**place, "stage": stage, "span_ns": span} for stage, span in pipeline.spans.items()]
        for row in rows:
            self._emit(row)

    def _trace(self, pipelines: Mapping[str, Pipeline]) -> str:
        """A few calls of every variant under the profiler, after all that is measured; why there is none, if so."""
        activities = [ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        try:
            with profile(activities=activities) as profiler:
                for name, pipeline in pipelines.items():
                    for index in range(_TRACED_CALLS):
                        with record_function(f"{CALL} {name}"):
                            pipeline.run(index)
        except RuntimeError as error:
            return _reason(error)
        path = self._traces / "pipeline.json"
        self._traces.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        document = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        write_trace(scrubbed(document, names_of_host()), path.with_suffix(".json.gz"))
        return ""


def _reason(error: Exception) -> str:
    """In one line: the kind and what it says first."""
    if isinstance(error, RuntimeError) and is_out_of_memory(error):
        return "it does not fit into the memory of the device"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:_LONGEST_REASON]
