"""What a request of another kind costs the client: text, large tensors, sizes that vary, sequences, streams.

    python -m tests.bench.request_kinds [SECONDS]

prints one JSON object. `null`: kinds that differ in their inputs alone, to the null Triton, which looks at none.
`triton`: a real Triton with a model that answers two numbers, with a sequence batcher where requests are of sequences,
and decoupled for streams: one response, then the end of the stream. Sequences go through the lane, and all in Python
beside it. Kinds are sent in turn by 64 users in a closed loop, three rounds after one that is thrown away, HTTP and
gRPC, with figures as in `tests.bench.engine`, all as ordinary processes. `over_dense`: a kind's median over that of
the first, 4 payloads of 64 FP32, to the same server.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from squall.actors.load.lane import IS_BUILT
from squall.actors.load.streams import StreamRule
from squall.actors.load.worker import ModelRequests
from squall.models.spec import TensorSpec
from squall.scenarios.config.inputs import InputConfig
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.rows import ConstantRows
from squall.scenarios.sequences import SequenceRule
from tests.bench.engine import closed
from tests.bench.h2load import null_triton
from tests.bench.target import Target, serving

_USERS = 64
_ROUNDS = 3
_PROTOCOLS = ("http", "grpc")
_MIB = 1 << 20
_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

ANSWER = np.zeros((1, 2), np.float32)


class TritonPythonModel:
    def execute(self, requests):
        answers = [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUTPUT", ANSWER.copy())]) for _ in requests
        ]
        if not DECOUPLED:
            return answers
        for request, answer in zip(requests, answers):
            sender = request.get_response_sender()
            sender.send(answer)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_CONFIG = """
name: "answerer"
backend: "python"
max_batch_size: 8
model_transaction_policy {{ decoupled: {decoupled} }}
{batcher}
input [ {{ name: "INPUT", data_type: TYPE_FP32, dims: [ 64 ] }} ]
output [ {{ name: "OUTPUT", data_type: TYPE_FP32, dims: [ 2 ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
"""
_BATCHER = "sequence_batching { oldest { max_candidate_sequences: 256 } }"


@dataclass(frozen=True)
class Kind:
    """What is sent: the input's datatype and dims, how it is made, how many payloads; in streams or not; of
    sequences of so many requests, 0: of none; through the lane where that can be."""

    name: str
    datatype: str = "FP32"
    dims: tuple[int, ...] = (64,)
    n_variants: int = 4
    made: Mapping[str, InputConfig] = field(default_factory=dict)
    streams: StreamRule | None = None
    length: int = 0
    has_lane: bool = IS_BUILT

    def sequences(self, n_users: int) -> SequenceRule | None:
        """Those of the users."""
        return SequenceRule(n_users, ConstantRows(value=self.length), 1, "r") if self.length else None

    @property
    def needs(self) -> tuple[bool, bool]:
        """Whether its model is decoupled, and has a sequence batcher."""
        return self.streams is not None, self.length > 0

    def of(self, target: Target) -> Target:
        """The server, whose model takes that."""
        inputs = (TensorSpec("INPUT", self.datatype, self.dims),)
        return replace(target, spec=replace(target.spec, inputs=inputs))


def _uniform(low: int, high: int) -> dict[str, Any]:
    return {"kind": "uniform", "low": low, "high": high}


def _inputs(**how: Any) -> dict[str, InputConfig]:
    return {"INPUT": InputConfig.model_validate(how)}


SEQUENCES = (
    Kind("sequences of 16 requests", length=16),
    Kind("sequences of 16 requests, all in Python", length=16, has_lane=False),
)
INPUTS = (
    Kind("dense, 4 payloads"),
    *SEQUENCES,
    Kind("dense, 1,000 payloads", n_variants=1_000),
    Kind("text of 1 to 512 bytes, 1,000 payloads", "BYTES", (1,), 1_000, _inputs(length=_uniform(1, 512))),
    Kind("1 to 128 elements, 1,000 payloads", "FP32", (-1,), 1_000, _inputs(sizes=_uniform(1, 128))),
    Kind("1 MiB, 4 payloads", dims=(_MIB // 4,)),
)
REAL = (Kind("dense, 4 payloads"), *SEQUENCES, Kind("stream of one response", streams=StreamRule()))


def write_model(folder: Path, kind: Kind) -> ModelConfig:
    """A repository with the model, as requests of that kind need it."""
    is_decoupled, is_stateful = kind.needs
    version = folder / "answerer" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(f"DECOUPLED = {is_decoupled}\n{_MODEL}")
    (version.parent / "config.pbtxt").write_text(
        _CONFIG.format(decoupled=str(is_decoupled).lower(), batcher=_BATCHER * is_stateful)
    )
    return ModelConfig.model_validate({"name": "answerer", "repository": str(folder), "max_batch_size": 8})


def measured(
    server: str, kinds: Sequence[Kind], targets: Sequence[Target], protocol: str, seconds: float
) -> list[dict[str, Any]]:
    """A figure of each kind, sent to the server at its place."""
    cpu_us: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    rates_hz: dict[str, list[int]] = {kind.name: [] for kind in kinds}
    cases = list(zip(kinds, targets, strict=True))
    for number in range(_ROUNDS + 1):
        for kind, target in cases[:: (1, -1)[number % 2]]:
            figure = closed(
                kind.of(target),
                protocol,
                _USERS,
                seconds,
                kind.has_lane,
                n_variants=kind.n_variants,
                models=(ModelRequests(made=kind.made),),
                streams=kind.streams,
                sequences=kind.sequences(_USERS),
                priority="normal",
            )
            if number:
                cpu_us[kind.name].append(figure["cpu_us_per_request"])
                rates_hz[kind.name].append(figure["rate_hz"])
    dense = statistics.median(cpu_us[kinds[0].name])
    return [
        {
            "server": server, "protocol": protocol, "kind": kind.name, "rate_hz": sorted(rates_hz[kind.name]),
            "cpu_us_per_request": sorted(cpu_us[kind.name]), "median": statistics.median(cpu_us[kind.name]),
            "over_dense": round(statistics.median(cpu_us[kind.name]) / dense, 2),
        }
        for kind in kinds
    ]  # fmt: skip


def main(seconds: float = 3.0) -> None:
    figures = []
    with null_triton() as target:
        for protocol in _PROTOCOLS:
            figures += measured("null", INPUTS, [target] * len(INPUTS), protocol, seconds)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        servers: dict[tuple[bool, bool], Target] = {}
        for kind in REAL:
            if kind.needs not in servers:
                model = write_model(Path(name) / str(len(servers)), kind)
                servers[kind.needs] = stack.enter_context(serving(model))
        targets = [servers[kind.needs] for kind in REAL]
        for protocol in _PROTOCOLS:
            figures += measured("triton", REAL, targets, protocol, seconds)
    machine = {"cpu_count": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    print(json.dumps({"machine": machine, "has_lane": IS_BUILT, "figures": figures}, indent=2))


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
