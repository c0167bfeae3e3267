"""The one model of the null server: its documents, and the count of what it answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from squall.models.spec import DATATYPE_BYTES as SIZES

SERVER_NAME = "squall-null"
SERVER_VERSION = "2.51.0"
"""The Triton whose bytes the null server imitates."""
DATATYPE = "FP32"
DATATYPE_BYTES = 4
QUEUE_FULL = "Exceeds maximum queue size"
OUTPUT = "OUTPUT"


def wanted_bytes(datatype: str, shape: Sequence[int]) -> int | None:
    """Size of a tensor's data; None of text, which may have any, and 0 of a datatype that there is not."""
    return None if datatype == "BYTES" else prod(shape) * SIZES.get(datatype, 0)


class Peer(Protocol):
    """What stands at the other end of one connection, without its socket."""

    out: list[bytes]
    """Bytes to write, oldest first; whoever writes them empties it."""
    rows: list[int]
    """Rows of the record whose answers are in `out`."""
    is_over: bool
    """The connection ends when `out` is written."""

    def feed(self, data: bytes, now_ns: int) -> None:
        """Takes what was read at `now_ns`; hands whole requests over to `Submit`."""
        ...

    def reply(self, stream: int, answer: Tally, wire_id: bytes) -> bool:
        """Puts the answer into `out`; False where the client gave the request up."""
        ...

    def reject(self, stream: int, wire_id: bytes) -> None:
        """Puts Triton's words for a full queue into `out`."""
        ...

    def refuse(self, stream: int, status: int, text: str) -> None:
        """Puts an error of this HTTP status, or its counterpart, into `out`."""
        ...

    def farewell(self) -> None:
        """Puts what the protocol says before the server goes into `out`."""
        ...


Submit = Callable[["Peer", int, "Tally", bytes, int], None]
"""peer, its stream, the answer's kind, the request's id as it came, and when the request was read (ns)."""


class BadRequest(Exception):
    """A request that no answer fits; the text says why."""


@dataclass(eq=False)
class Tally:
    """What was answered to requests of one kind: count and sums in ns. `rows`: batch size of each of them."""

    rows: int
    n_answered: int = 0
    queue_ns: int = 0
    service_ns: int = 0


@dataclass(eq=False)
class NullModel:
    """`INPUT` FP32 [rows, width] to outputs FP32 [rows, classes] of zeros, whatever they are called."""

    name: str
    width: int
    classes: int
    max_batch_size: int
    version: str = "1"
    tallies: list[Tally] = field(default_factory=list)
    n_rejected: int = 0

    def __post_init__(self) -> None:
        if not self.name or min(self.width, self.classes, self.max_batch_size) < 1:
            raise ValueError("a model has a name, a width, classes and a batch size of 1 or more")

    def is_called(self, name: str, version: str) -> bool:
        """Whether a request means this model; an empty version is the latest."""
        return name == self.name and version in ("", self.version)

    def check_rows(self, rows: int) -> None:
        """Raises BadRequest in Triton's words for a batch that the model does not take."""
        if rows > self.max_batch_size:
            raise BadRequest(
                f"inference request batch-size must be <= {self.max_batch_size} for '{self.name}'"
            )

    def server(self) -> dict[str, Any]:
        """`GET /v2`."""
        extensions = ["binary_tensor_data", "model_configuration", "statistics"]
        return {"name": SERVER_NAME, "version": SERVER_VERSION, "extensions": extensions}

    def metadata(self) -> dict[str, Any]:
        """`GET /v2/models/M`."""
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "null",
            "inputs": [{"name": "INPUT", "datatype": DATATYPE, "shape": [-1, self.width]}],
            "outputs": [{"name": OUTPUT, "datatype": DATATYPE, "shape": [-1, self.classes]}],
        }

    def config(self) -> dict[str, Any]:
        """`GET /v2/models/M/config`."""
        return {
            "name": self.name,
            "platform": "",
            "backend": "null",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": self.max_batch_size,
            "input": [{"name": "INPUT", "data_type": f"TYPE_{DATATYPE}", "dims": [self.width]}],
            "output": [{"name": OUTPUT, "data_type": f"TYPE_{DATATYPE}", "dims": [self.classes]}],
            "instance_group": [{"name": self.name, "kind": "KIND_CPU", "count": 1, "gpus": []}],
        }

    def stats(self) -> dict[str, Any]:
        """`GET /v2/models/M/stats`: sums since the start in ns; every request is an execution of its own.

        `last_inference` is always 0: no wall clock is read for it.
        """
        sizes: dict[int, Tally] = {}
        for tally in self.tallies:
            size = sizes.setdefault(tally.rows, Tally(tally.rows))
            size.n_answered += tally.n_answered
            size.queue_ns += tally.queue_ns
            size.service_ns += tally.service_ns
        answered = [size for _, size in sorted(sizes.items()) if size.n_answered]
        n = sum(size.n_answered for size in answered)
        queue_ns = sum(size.queue_ns for size in answered)
        service_ns = sum(size.service_ns for size in answered)
        return {
            "model_stats": [
                {
                    "name": self.name,
                    "version": self.version,
                    "last_inference": 0,
                    "inference_count": sum(size.rows * size.n_answered for size in answered),
                    "execution_count": n,
                    "inference_stats": {
                        "success": _sum(n, queue_ns + service_ns),
                        "fail": _sum(self.n_rejected, 0),
                        "queue": _sum(n, queue_ns),
                        "compute_input": _sum(n, 0),
                        "compute_infer": _sum(n, service_ns),
                        "compute_output": _sum(n, 0),
                        "cache_hit": _sum(0, 0),
                        "cache_miss": _sum(0, 0),
                    },
                    "response_stats": {},
                    "batch_stats": [
                        {
                            "batch_size": size.rows,
                            "compute_input": _sum(size.n_answered, 0),
                            "compute_infer": _sum(size.n_answered, size.service_ns),
                            "compute_output": _sum(size.n_answered, 0),
                        }
                        for size in answered
                    ],
                    "memory_usage": [],
                }
            ]
        }


def _sum(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}
